"""Consumers for NATS JetStream."""
