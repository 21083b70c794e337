"""Consumers and publishers of Kafka and RabbitMQ."""
