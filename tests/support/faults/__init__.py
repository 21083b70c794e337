"""Handlers for the fault kit, and the shop whose messages they take."""
