"""Status-table mode."""
