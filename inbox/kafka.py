"""Deliver messages from Kafka to a handler of an inbox, through confluent-kafka's consumer (extra
`kafka`)."""

from inbox._consuming.kafka.consumer import AsyncKafkaConsumer, KafkaConsumer

__all__ = ["AsyncKafkaConsumer", "KafkaConsumer"]
