"""What runs on the executors."""
