"""Relays."""
