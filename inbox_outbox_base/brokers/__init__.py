"""Both sides of each broker, one folder for each."""
