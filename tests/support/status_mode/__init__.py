"""What the tests of status-table mode share."""
