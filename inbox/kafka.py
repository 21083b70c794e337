"""Deliver messages from Kafka to a handler of an inbox, and move dead letters back, through confluent-kafka
(extra `kafka`)."""

from inbox._consuming.kafka.consumer import AsyncKafkaConsumer, KafkaConsumer
from inbox._consuming.kafka.redrive import redrive
from inbox_outbox_base.words.redriven import Redriven

__all__ = ["AsyncKafkaConsumer", "KafkaConsumer", "Redriven", "redrive"]
