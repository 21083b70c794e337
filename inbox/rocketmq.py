"""Deliver messages from RocketMQ to a handler of an inbox (extra `rocketmq`)."""

from inbox_outbox_base.brokers.rocketmq.consumer import AsyncRocketMQConsumer, RocketMQConsumer

__all__ = ["AsyncRocketMQConsumer", "RocketMQConsumer"]
