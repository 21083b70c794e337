"""Deliver messages from NATS JetStream to a handler of an inbox; move dead letters back (extra `nats`)."""

from inbox._consuming.nats.consumer import AsyncNatsConsumer, NatsConsumer
from inbox._consuming.nats.redrive import redrive
from inbox_outbox_base.words.redriven import Redriven

__all__ = ["AsyncNatsConsumer", "NatsConsumer", "Redriven", "redrive"]
