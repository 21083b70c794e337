"""Consumers for Amazon SQS and queues like it."""
