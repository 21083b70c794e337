"""The code that runs on the executors."""
