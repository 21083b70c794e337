"""Publishers that send outbox messages to Kafka with confluent-kafka (the extra `kafka`)."""

from inbox_outbox_base.brokers.kafka.publisher import AsyncKafkaPublisher, KafkaPublisher

__all__ = ["AsyncKafkaPublisher", "KafkaPublisher"]
