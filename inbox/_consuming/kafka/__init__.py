"""Consumers for Kafka."""
