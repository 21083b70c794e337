"""The exactly-once path."""
