"""Runnable examples: naive ways and how they fail, inbox and outbox in their forms, a demo on real data."""
