"""The consumer sides of the brokers: messages go to a listener, and its decisions go back to the broker."""
