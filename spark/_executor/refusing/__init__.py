"""Rows that the target refuses."""
