"""Kafka: each topic with three partitions, and a consumer group for each."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.order_chain import worker
from examples.order_chain.shop import TOPICS
from examples.order_chain.steps import Step
from inbox.kafka import KafkaConsumer
from outbox.kafka import KafkaPublisher

T = TypeVar("T")
PARTITIONS = 3
DEAD = "order-chain-dead"
PATIENCE = 30
"""The most seconds for an answer."""
SESSION = 6_000
"""Milliseconds after which the partitions of a killed consumer go to another."""


@dataclass(frozen=True, slots=True)
class Kafka:
    """The Kafka with these bootstrap servers."""

    address: str

    def publisher(self) -> KafkaPublisher:
        """A publisher."""
        return KafkaPublisher(self._settings(), timeout=worker.TIMEOUT)

    def consumer(self, topic: str, handler: Step) -> KafkaConsumer:
        """A member of the topic's group."""
        settings = self._settings() | {"group.id": topic, "session.timeout.ms": SESSION}
        return KafkaConsumer(settings, topic, handler, dead_letter=DEAD, backoff=worker.BACKOFF)

    def create(self) -> None:
        """Create the topics."""
        admin = AdminClient(self._settings())
        _done(
            lambda: admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in (*TOPICS, DEAD)]),
            KafkaError.TOPIC_ALREADY_EXISTS,
        )

    def delete(self) -> None:
        """Delete topics and groups."""
        admin = AdminClient(self._settings())
        _done(lambda: admin.delete_topics([*TOPICS, DEAD]), KafkaError.UNKNOWN_TOPIC_OR_PART)
        _done(lambda: admin.delete_consumer_groups([*TOPICS]), KafkaError.GROUP_ID_NOT_FOUND)

    def waiting(self) -> int:
        """Messages that have not been committed."""
        return sum(end - done for topic in TOPICS for done, end in self._places(topic))

    def dead(self) -> int:
        """Messages in the topic for dead letters."""
        return sum(end for _, end in self._places(DEAD))

    def _places(self, topic: str) -> list[tuple[int, int]]:
        """For each partition: what its group has committed, and where it ends."""
        given = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        reader = Consumer(self._settings() | {"group.id": topic})
        try:
            committed = _once_ready(partial(reader.committed, given, PATIENCE))
            ends = [_once_ready(partial(reader.get_watermark_offsets, each, PATIENCE))[1] for each in given]
        finally:
            reader.close()
        return [(max(0, each.offset), end) for each, end in zip(committed, ends, strict=True)]

    def _settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.address, "log_level": 0}


def _once_ready(ask: Callable[[], T]) -> T:
    """The answer, which a broker that has just started does not know yet.

    Raises:
        RuntimeError: there is none.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except KafkaException as error:
            if time.monotonic() > end:
                raise RuntimeError(f"Kafka does not answer: {error.args[0].str()}") from None
        time.sleep(0.1)


def _done(begin: Callable[[], dict[str, Future[None]]], absent: int | None = None) -> None:
    """Do something to topics or groups; one that is absent has the code `absent`."""

    def end() -> None:
        for each in begin().values():
            try:
                each.result(PATIENCE)
            except KafkaException as error:
                if error.args[0].code() != absent:
                    raise

    _once_ready(end)
