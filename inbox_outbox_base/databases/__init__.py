"""What each database does its own way: one folder for each, one contract for each task."""
