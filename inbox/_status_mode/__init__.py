"""Status-table mode: handlers without a transaction around them."""
