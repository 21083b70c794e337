"""Publishers that send outbox messages to RocketMQ with rocketmq-python-client (the extra `rocketmq`)."""

from outbox._publishers.rocketmq.publisher import AsyncRocketMQPublisher, RocketMQPublisher

__all__ = ["AsyncRocketMQPublisher", "RocketMQPublisher"]
