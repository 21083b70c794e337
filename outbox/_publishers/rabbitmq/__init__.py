"""Publishers for RabbitMQ."""
