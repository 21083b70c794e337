"""Runnable examples: naive ways and how they fail, uses of inbox and outbox, and a demo on real data."""
