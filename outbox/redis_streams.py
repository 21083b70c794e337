"""Publishers that send outbox messages to Redis Streams with redis-py (the extra `redis`)."""

from outbox._publishers.redis_streams.publisher import AsyncRedisStreamsPublisher, RedisStreamsPublisher

__all__ = ["AsyncRedisStreamsPublisher", "RedisStreamsPublisher"]
