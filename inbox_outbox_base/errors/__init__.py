"""What can go wrong, and whose fault it is."""
