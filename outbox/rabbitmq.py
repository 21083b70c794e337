"""Publishers that send outbox messages to RabbitMQ with aiormq, aio-pika's base (the extra `rabbitmq`)."""

from inbox_outbox_base.brokers.rabbitmq.publisher import AsyncRabbitPublisher, RabbitPublisher

__all__ = ["AsyncRabbitPublisher", "RabbitPublisher"]
