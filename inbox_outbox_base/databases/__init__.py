"""What differs between databases: one folder for each database, one contract for each task."""
