"""Kafka: consumer and publisher."""
