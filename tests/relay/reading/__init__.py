"""Which messages a relay reads next."""
