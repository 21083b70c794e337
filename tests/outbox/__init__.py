"""Messages written in the caller's transaction."""
