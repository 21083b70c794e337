"""Messages of an outbox go to RabbitMQ, through aiormq, on which aio-pika is built (extra `rabbitmq`)."""

from inbox_outbox_base.brokers.rabbitmq.publisher import AsyncRabbitPublisher, RabbitPublisher

__all__ = ["AsyncRabbitPublisher", "RabbitPublisher"]
