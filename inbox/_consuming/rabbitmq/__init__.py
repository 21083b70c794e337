"""Consumers for RabbitMQ."""
