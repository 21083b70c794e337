"""Messages of an outbox go to Kafka, through confluent-kafka's producer (the extra `kafka`)."""

from inbox_outbox_base.brokers.kafka.publisher import AsyncKafkaPublisher, KafkaPublisher

__all__ = ["AsyncKafkaPublisher", "KafkaPublisher"]
