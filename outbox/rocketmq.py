"""Publishers that send outbox messages to RocketMQ with rocketmq-python-client (the extra `rocketmq`)."""

from inbox_outbox_base.brokers.rocketmq.publisher import AsyncRocketMQPublisher, RocketMQPublisher

__all__ = ["AsyncRocketMQPublisher", "RocketMQPublisher"]
