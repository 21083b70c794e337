"""Publishers that send outbox messages to Kafka with confluent-kafka (the extra `kafka`)."""

from outbox._publishers.kafka.publisher import AsyncKafkaPublisher, KafkaPublisher

__all__ = ["AsyncKafkaPublisher", "KafkaPublisher"]
