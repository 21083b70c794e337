"""For brokers that lease messages: a message that was received is hidden from the other consumers until its
time is over, and its consumer renews that time."""
