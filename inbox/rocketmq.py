"""Deliver messages from RocketMQ to a handler of an inbox (extra `rocketmq`)."""

from inbox._consuming.rocketmq.consumer import AsyncRocketMQConsumer, RocketMQConsumer

__all__ = ["AsyncRocketMQConsumer", "RocketMQConsumer"]
