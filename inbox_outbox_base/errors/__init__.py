"""Errors, and whether a message is to blame for them."""
