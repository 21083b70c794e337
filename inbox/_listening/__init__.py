"""Listeners: messages run at the same time, but messages with the same key run in order."""
