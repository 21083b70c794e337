"""Deliver messages from RabbitMQ to a handler of an inbox, and move dead letters back, through aiormq, on
which aio-pika is built (extra `rabbitmq`)."""

from inbox._consuming.rabbitmq.consumer import AsyncRabbitConsumer, RabbitConsumer
from inbox._consuming.rabbitmq.redrive import redrive
from inbox_outbox_base.words.redriven import Redriven

__all__ = ["AsyncRabbitConsumer", "RabbitConsumer", "Redriven", "redrive"]
