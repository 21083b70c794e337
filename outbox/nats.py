"""Publishers that send outbox messages to NATS JetStream with nats-py (the extra `nats`)."""

from outbox._publishers.nats.publisher import AsyncNatsPublisher, NatsPublisher

__all__ = ["AsyncNatsPublisher", "NatsPublisher"]
