"""Deliver messages from NATS JetStream to a handler of an inbox (the extra `nats`)."""

from inbox._consuming.nats.consumer import AsyncNatsConsumer, NatsConsumer

__all__ = ["AsyncNatsConsumer", "NatsConsumer"]
