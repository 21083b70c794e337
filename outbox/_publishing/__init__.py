"""Writing messages in the caller's transaction."""
