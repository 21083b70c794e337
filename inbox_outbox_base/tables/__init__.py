"""The tables, their columns and their types."""
