"""Handlers take messages from RabbitMQ, through aiormq, on which aio-pika is built (extra `rabbitmq`)."""

from inbox_outbox_base.brokers.rabbitmq.consumer import AsyncRabbitConsumer, RabbitConsumer

__all__ = ["AsyncRabbitConsumer", "RabbitConsumer"]
