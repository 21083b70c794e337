"""Runnable examples: the naive ways and how they fail, the inbox in its forms, and a demo on real data."""
