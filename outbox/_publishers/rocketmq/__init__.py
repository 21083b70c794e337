"""Publishers for RocketMQ."""
