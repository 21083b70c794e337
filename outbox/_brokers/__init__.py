"""What the publishers for RabbitMQ and Kafka are made of."""
