"""Relays, which send committed messages through a publisher."""
