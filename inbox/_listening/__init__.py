"""Listeners: messages run at the same time, those of one key in order."""
