"""Publishers for NATS JetStream."""
