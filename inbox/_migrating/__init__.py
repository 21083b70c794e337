"""Revisions, and one migration at a time."""
