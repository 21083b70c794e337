"""What runs until it is told to end: relays and exporters, with their log and their health checks."""
