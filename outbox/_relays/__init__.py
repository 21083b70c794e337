"""Relays: what takes committed messages to a publisher."""
