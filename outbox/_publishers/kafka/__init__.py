"""Publishers for Kafka."""
