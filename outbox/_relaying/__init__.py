"""Relays take committed messages to a publisher."""
