"""Which messages a relay reads next, and which of them have to wait."""
