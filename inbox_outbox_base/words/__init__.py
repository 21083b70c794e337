"""The values that the parts exchange, incoming and outgoing."""
