"""The caller's connections, sessions and transactions."""
