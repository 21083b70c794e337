"""What operators see and decide."""
