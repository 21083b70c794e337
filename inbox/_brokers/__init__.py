"""What the consumers of RabbitMQ and Kafka are made of."""
