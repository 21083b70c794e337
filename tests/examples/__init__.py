"""The demo and the examples."""
