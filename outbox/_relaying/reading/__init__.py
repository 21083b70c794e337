"""Chooses the messages that a relay reads next, and those that have to wait."""
