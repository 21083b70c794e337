"""Deliver messages from RocketMQ to a handler of an inbox, and move dead letters back (extra `rocketmq`)."""

from inbox._consuming.rocketmq.consumer import AsyncRocketMQConsumer, RocketMQConsumer
from inbox._consuming.rocketmq.redrive import redrive
from inbox_outbox_base.words.redriven import Redriven

__all__ = ["AsyncRocketMQConsumer", "Redriven", "RocketMQConsumer", "redrive"]
