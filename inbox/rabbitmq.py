"""Deliver messages from RabbitMQ to a handler of an inbox, through aiormq, on which aio-pika is built (extra
`rabbitmq`)."""

from inbox._consuming.rabbitmq.consumer import AsyncRabbitConsumer, RabbitConsumer

__all__ = ["AsyncRabbitConsumer", "RabbitConsumer"]
