"""Deliver messages from RabbitMQ to a handler of an inbox, through aiormq, on which aio-pika is built (extra
`rabbitmq`)."""

from inbox_outbox_base.brokers.rabbitmq.consumer import AsyncRabbitConsumer, RabbitConsumer

__all__ = ["AsyncRabbitConsumer", "RabbitConsumer"]
