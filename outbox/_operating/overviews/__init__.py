"""What an operator sees of the outbox as a whole: the overview, the status, numbers over time."""
