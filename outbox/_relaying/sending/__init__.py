"""Batches on their way to the publisher."""
