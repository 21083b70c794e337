"""Kafka: our consumer, and confluent-kafka's alone."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from confluent_kafka import Consumer, TopicPartition

from inbox import Delivery, Outcome
from inbox.kafka import KafkaConsumer
from outbox.kafka import KafkaPublisher
from tests.support.brokers.kafka_topics import Topics

from ._brokers_lab import Count


class Kafka:
    """A partition for each worker."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.publisher = KafkaPublisher({"bootstrap.servers": topics.address})

    def new_topic(self, workers: int) -> str:
        """As `Broker.new_topic`."""
        return self._topics.new(workers)

    def close(self) -> None:
        """Close the publisher."""
        self.publisher.close()

    def consumer(self, topic: str, workers: int, handler: Callable[[Delivery], Outcome]) -> KafkaConsumer:
        """As `Broker.consumer`."""
        config = {"bootstrap.servers": self._topics.address, "group.id": topic}
        return KafkaConsumer(config, topic, handler, partitions=workers)

    def consume_bare(self, topic: str, workers: int, work: Callable[[bytes], object], count: Count) -> None:
        """Each worker has a consumer of its own, which commits handled messages in the background."""
        ended = threading.Event()
        count.on_end = ended.set
        consume = partial(self._consume, topic, work, ended)
        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(consume, range(workers)):
                pass

    def _consume(
        self, topic: str, work: Callable[[bytes], object], ended: threading.Event, partition: int
    ) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._topics.address,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.offset.store": False,
            }
        )
        consumer.assign([TopicPartition(topic, partition)])
        try:
            while not ended.is_set():
                record = consumer.poll(0.1)
                if record is not None and record.error() is None:
                    work(record.value() or b"")
                    consumer.store_offsets(record)
        finally:
            ended.set()
            consumer.close()
