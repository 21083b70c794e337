"""Checks of callers' arguments."""
