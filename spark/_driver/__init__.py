"""The code that runs on the driver."""
