"""Waking relays immediately after a commit."""
