"""Whether the packages and the tables are as they should be, and how the tables are made."""
