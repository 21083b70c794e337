"""The consumer for Redis Streams."""
