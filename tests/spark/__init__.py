"""The Spark writer."""
