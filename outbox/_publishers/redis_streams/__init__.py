"""The publisher for Redis Streams."""
