"""What both sides of a broker share, one folder for each broker."""
