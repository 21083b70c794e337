"""A topic of Kafka that takes dead letters."""

import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from .._decision import Decision
from .._delivery import Delivery
from .kafka_record import headers_of

_CONNECTION = (
    "bootstrap.servers",
    "broker.",
    "client.id",
    "enable.ssl.",
    "logger",
    "metadata.broker.list",
    "oauth_cb",
    "sasl.",
    "security.",
    "socket.",
    "ssl.",
)
"""How the settings begin that say how to reach a broker; the others are the consumer's own."""


class DeadLetterTopic:
    """Writes messages to a topic, as they came: the function that `dead_letter=` of a listener wants.

    Headers are added: "dead-letter-reason", "dead-letter-topic", "dead-letter-partition" and
    "dead-letter-offset". May be called by several threads.

    Args:
        config: the consumer's settings; those that say how to reach a broker are used.
        topic: its name.
    """

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self._topic = topic
        self._settings = {
            **{name: value for name, value in config.items() if name.startswith(_CONNECTION)},
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": 30_000,
            "topic.metadata.propagation.max.ms": 5_000,  # until a missing topic is reported
        }
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def __call__(self, delivery: Delivery, decision: Decision) -> None:
        """Returns once all replicas in sync have the message.

        Raises:
            KafkaException: it may not have been written.
        """
        record: Message = delivery.raw
        added = {
            "dead-letter-reason": decision.reason,
            "dead-letter-topic": record.topic(),
            "dead-letter-partition": record.partition(),
            "dead-letter-offset": record.offset(),
        }
        self._write(record, [(name, str(value).encode(errors="replace")) for name, value in added.items()])

    def close(self) -> None:
        """Give the connections back."""
        if self._producer is not None:
            self._producer.flush(1)
            self._producer = None

    def _write(self, record: Message, added: list[tuple[str, bytes]]) -> None:
        answers: list[KafkaError | None] = []
        producer = self._open()
        producer.produce(
            self._topic,
            record.value(),
            record.key(),
            headers=[*headers_of(record), *added],
            on_delivery=lambda error, _: answers.append(error),
        )
        while not answers:
            producer.poll(0.1)  # another thread may be the one that sees the answer
        if answers[0] is not None:
            raise KafkaException(answers[0])

    def _open(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._settings)
            return self._producer
