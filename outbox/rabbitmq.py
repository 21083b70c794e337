"""Publishers that send outbox messages to RabbitMQ with aiormq, aio-pika's base (the extra `rabbitmq`)."""

from outbox._publishers.rabbitmq.publisher import AsyncRabbitPublisher, RabbitPublisher

__all__ = ["AsyncRabbitPublisher", "RabbitPublisher"]
