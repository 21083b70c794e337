"""Topics that belong to one test, and their contents."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self
from uuid import uuid4

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from inbox._consuming.kafka.record import delivery_of
from outbox import Envelope
from tests.support import processes

wait_until = processes.wait_until
WAIT = 30
"""Seconds, for what takes milliseconds on a machine that is not busy."""

_NO_COORDINATOR_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError._UNKNOWN_PARTITION,
}
"""What a broker answers that has not finished making a group's place, or that leads its partitions again in a
moment."""


class Topics:
    """Creates topics on the broker at `address`, and deletes them at the end of the ``with`` block."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
        self._made: list[str] = []

    def new(self, partitions: int = 1, **settings: str) -> str:
        """Create an empty topic; settings have underscores in place of dots."""
        name = f"topic-{uuid4().hex}"
        self.make(name, partitions, **settings)
        return name

    def new_on(self, *partitions: int | tuple[int, ...], **settings: str) -> str:
        """Create an empty topic with these brokers for each partition."""
        name = f"topic-{uuid4().hex}"
        brokers = [[each] if isinstance(each, int) else list(each) for each in partitions]
        self._create(NewTopic(name, len(brokers), replica_assignment=brokers, config=_dotted(settings)))
        return name

    def make(self, name: str, partitions: int = 1, **settings: str) -> None:
        """Create an empty topic of this name."""
        self._create(NewTopic(name, partitions, 1, config=_dotted(settings)))

    def delete(self, topic: str) -> None:
        """Delete a topic of ours."""
        self._admin.delete_topics([topic])[topic].result(WAIT)
        self._made.remove(topic)

    def make_again(self, topic: str) -> None:
        """Delete a topic of ours, and create it again, empty."""
        self.delete(topic)
        deadline = time.monotonic() + WAIT
        while True:
            try:
                return self.make(topic)
            except KafkaException as error:  # the deletion takes a moment
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _create(self, topic: NewTopic) -> None:
        self._admin.create_topics([topic])[topic.topic].result(WAIT)
        self._made.append(topic.topic)

    def leaders(self, topic: str) -> dict[int, int]:
        """For each partition, the broker that leads it; -1 if none does."""
        found = self._admin.list_topics(topic, timeout=WAIT).topics[topic].partitions
        return {number: partition.leader for number, partition in found.items()}

    def put(self, topic: str, *values: str, key: str | None = None, **headers: str) -> None:
        """Write records as any producer would, in this order."""
        for value in values:
            self._producer.produce(topic, value, key, headers=dict(headers))
        self._flush(topic)

    def put_by_key(self, topic: str, keys: Sequence[str], each: int) -> dict[str, list[str]]:
        """Write `each` records of each key, the keys taking turns; return each key's values in order."""
        numbers = [f"{number}" for number in range(each)]
        for number in numbers:
            for key in keys:
                self._producer.produce(topic, f"{key}-{number}", key)
        self._flush(topic)
        return {key: [f"{key}-{number}" for number in numbers] for key in keys}

    def put_raw(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Mapping[str, bytes | None] | None = None,
        partition: int = -1,
        timestamp: int = 0,
    ) -> None:
        """Write a record that our publisher would not write; 0 means the time of writing."""
        given: list[tuple[str, str | bytes | None]] = list((headers or {}).items())
        self._producer.produce(topic, value, key, partition, timestamp=timestamp, headers=given)
        self._flush(topic)

    def log(self, topic: str) -> list[Message]:
        """All records of the topic, in the order of each partition."""
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "reader", "log_level": 0})
        try:
            partitions = [
                TopicPartition(topic, number, OFFSET_BEGINNING)
                for number in consumer.list_topics(topic, WAIT).topics[topic].partitions
            ]
            consumer.assign(partitions)
            ends = [
                _once_coordinated(partial(consumer.get_watermark_offsets, each, WAIT)) for each in partitions
            ]
            expected, found = sum(end - begin for begin, end in ends), list[Message]()
            while len(found) < expected:
                batch = consumer.consume(expected - len(found), WAIT)
                if not batch:
                    raise TimeoutError(f"{topic}: {len(found)} of {expected} records")
                found += batch
            return found
        finally:
            consumer.close()

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """For each partition, the offset that the group has committed."""
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group, "log_level": 0})
        try:
            numbers = consumer.list_topics(topic, WAIT).topics[topic].partitions
            found = _once_coordinated(
                lambda: consumer.committed([TopicPartition(topic, number) for number in numbers], WAIT)
            )
            return {each.partition: each.offset for each in found if each.offset >= 0}
        finally:
            consumer.close()

    def members(self, group: str) -> int:
        """How many consumers the group has."""
        described = _once_coordinated(
            lambda: self._admin.describe_consumer_groups([group], request_timeout=WAIT)[group].result()
        )
        return len(described.members)

    def _flush(self, topic: str) -> None:
        if self._producer.flush(WAIT):
            raise TimeoutError(f"{topic} takes no records")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._made:
            for deleted in self._admin.delete_topics(self._made).values():
                deleted.result(WAIT)


def values(records: list[Message]) -> list[str]:
    """The values of the records."""
    return [(record.value() or b"").decode() for record in records]


def id_of(record: Message) -> str:
    """The message's id."""
    return delivery_of(record, attempt=1).id


def envelope(topic: str, payload: str, key: str | None = None, **changes: Any) -> Envelope:
    """A message as a relay hands it over."""
    given: Mapping[str, Any] = {
        "id": str(uuid4()),
        "topic": topic,
        "key": key,
        "payload": payload.encode(),
        "content_type": "text/plain",
        "headers": {},
        "attempt": 1,
        "created_at": datetime.now(UTC),
    }
    return Envelope(**{**given, **changes})


def _dotted(settings: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def _once_coordinated(ask: Callable[[], Any]) -> Any:
    """The answer, once the broker has chosen a coordinator for the group."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _NO_COORDINATOR_YET or time.monotonic() > deadline:
                raise
        time.sleep(0.1)
