"""What the tests of the Spark writer share."""
