"""Consumers for RocketMQ."""
