"""A Kafka topic for dead letters."""

import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from inbox._listening.outcome import Decision
from inbox_outbox_base.words.incoming import Delivery

from .record import DEAD_CREATED_AT, DEAD_ID, headers_of

_CONNECTION = (
    "api.version.",
    "bootstrap.servers",
    "broker.",
    "client.dns.",
    "client.id",
    "connections.max.idle.",
    "enable.sasl.",
    "enable.ssl.",
    "https.",
    "logger",
    "metadata.broker.list",
    "oauth_cb",
    "plugin.",
    "reconnect.",
    "resolve_cb",
    "sasl.",
    "security.",
    "socket.",
    "ssl.",
)
"""Prefixes of the settings that say how to reach a broker; the others are the consumer's own."""

REASON, TOPIC = "dead-letter-reason", "dead-letter-topic"
PARTITION, OFFSET = "dead-letter-partition", "dead-letter-offset"
LEFT_OUT = "dead-letter-left-out"
ADDED = frozenset({REASON, TOPIC, PARTITION, OFFSET, LEFT_OUT, DEAD_ID, DEAD_CREATED_AT})
"""The headers that a dead letter has beside those of its message."""
TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
_Bytes = str | bytes | None
_Headers = list[tuple[str, _Bytes]]

_log = logging.getLogger("inbox.kafka")


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a producer that loses no message, from those of a consumer."""
    return {
        **{name: value for name, value in config.items() if name.startswith(_CONNECTION)},
        "acks": "all",
        "batch.num.messages": 1,  # so that no message is refused because others are large
        "compression.type": "gzip",  # so that a message that came compressed fits
        "enable.idempotence": True,
        "linger.ms": 0,
        "message.max.bytes": 1_000_000_000,  # the maximum: let the topic decide
        "message.timeout.ms": 30_000,
        "topic.metadata.propagation.max.ms": 5_000,  # time until a missing topic is reported
    }


class DeadLetterTopic:
    """Writes messages unchanged to a topic: the function for a listener's `dead_letter=`.

    Headers are added: "dead-letter-reason", "dead-letter-topic", "dead-letter-partition" and
    "dead-letter-offset"; and the message's id and time, "dead-letter-id" and "dead-letter-created-at", so
    that it is the same message if it is moved back. A message too large for Kafka is written without its
    value and, if need be, without its key and headers; "dead-letter-left-out" names what is missing. The
    whole message can still be read in its original place.

    Thread-safe.

    Args:
        config: the consumer's settings; only those that say how to reach a broker are used.
        topic: the topic's name.
    """

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self._topic = topic
        self._settings = settings_of(config)
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def __call__(self, delivery: Delivery, decision: Decision) -> None:
        """Returns once all replicas in sync have the message.

        Raises:
            KafkaException: the message may not have been written.
        """
        record: Message = delivery.raw
        added = {
            REASON: decision.reason,
            TOPIC: record.topic(),
            PARTITION: record.partition(),
            OFFSET: record.offset(),
            DEAD_ID: delivery.id,
        }
        if delivery.created_at is not None:
            added[DEAD_CREATED_AT] = delivery.created_at.isoformat()
        place: _Headers = [(name, str(value).encode(errors="replace")) for name, value in added.items()]
        for letter in _letters(record, place):
            error = self._write(*letter)
            if error is None:
                return
            if error.code() not in TOO_LARGE:
                break
            _log.warning("%s: too large for topic %s, leaving out a part", delivery.id, self._topic)
        raise KafkaException(error)

    def close(self) -> None:
        """Close the connections."""
        if self._producer is not None:
            self._producer.flush(1)
            self._producer = None

    def _write(self, key: _Bytes, value: _Bytes, headers: _Headers) -> KafkaError | None:
        answers: list[KafkaError | None] = []
        producer = self._open()
        producer.produce(
            self._topic,
            value,
            key,
            headers=headers,
            on_delivery=lambda error, _: answers.append(error),
        )
        while not answers:
            producer.poll(0.1)  # another thread may receive the answer
        return answers[0]

    def _open(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._settings)
            return self._producer


def _letters(record: Message, place: _Headers) -> Iterator[tuple[_Bytes, _Bytes, _Headers]]:
    """Key, value and headers: everything first, then less and less of a record that is too large."""
    before = [(name, value) for name, value in headers_of(record) if name not in ADDED]
    whole = [*before, *place]
    yield record.key(), record.value(), whole
    yield record.key(), None, [*whole, (LEFT_OUT, b"value")]
    yield None, None, [*place, (LEFT_OUT, b"key, value, headers")]
