"""What the drivers for PostgreSQL tell, one module for each."""
