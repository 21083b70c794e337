"""Deliver messages from Redis Streams to a handler of an inbox, and move dead letters back (extra
`redis`)."""

from inbox._consuming.redis_streams.consumer import AsyncRedisStreamsConsumer, RedisStreamsConsumer
from inbox._consuming.redis_streams.redrive import redrive
from inbox_outbox_base.words.redriven import Redriven

__all__ = ["AsyncRedisStreamsConsumer", "RedisStreamsConsumer", "Redriven", "redrive"]
