"""Webhooks: their signatures, and what a message looks like as a request."""
