"""Making and upgrading the tables."""
