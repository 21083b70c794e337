"""Publish an outbox's messages to Kafka, through confluent-kafka's producer (extra `kafka`)."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.errors.outbox import UnsafeBroker
from inbox_outbox_base.words.outgoing import Envelope, Outcome, Unavailable, Unknown

from . import producer_settings

with brought_by("kafka"):
    from confluent_kafka import KafkaError, KafkaException, Message, Producer

    from .answers import JUDGED_TOGETHER, outcome_of

_log = logging.getLogger("outbox.kafka")
_SHARE_FOR_CLEANING_UP = 0.1


class KafkaPublisher:
    """A `Publisher` that says `Accepted` once all replicas in sync have the message.

    Messages of one key are written in the order in which they are sent. A message may be written twice, with
    the same id: after an `Unknown` outcome, or when a relay dies before it has recorded the answer.

    Once `send` has returned, the client sends nothing more of that batch. A broker that hangs may still write
    messages that were on the network before; their outcome was `Unknown`.

    Args:
        config: settings of confluent-kafka's `Producer`, at least "bootstrap.servers". By default `acks` is
            "all", `enable.idempotence` True, `retries` 5, `linger.ms` 1, `message.timeout.ms` the `timeout`.
        timeout: the longest time that `send` takes, in seconds or as `timedelta`; shorter than the relay's
            lease.

    Raises:
        InvalidOption: `timeout` cannot be used.
    """

    def __init__(self, config: Mapping[str, Any], *, timeout: float | timedelta = 10) -> None:
        self.timeout = outbox_options.seconds("timeout", timeout)
        self._settings = {"logger": _log, **producer_settings.filled_in(config, self.timeout)}
        self._producer: Producer | None = None
        self._has_answered = False

    def check(self, lease: float) -> None:
        """Make sure that the settings keep the promise within a lease of this many seconds.

        It does not connect to Kafka: a relay starts even if the broker is down.

        Raises:
            UnsafeBroker: names the setting, its value, and why.
            KafkaException: the client does not know the setting or its value.
        """
        if self.timeout >= lease:
            raise UnsafeBroker(f"timeout={self.timeout:g}: expected less than the lease of {lease:g} s")
        producer_settings.check(self._settings, lease)
        self._open()

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Send a batch; outcome i belongs to envelope i. Errors that Kafka reports are outcomes, not
        exceptions."""
        if not batch:
            return []
        deadline = time.monotonic() + self.timeout * (1 - _SHARE_FOR_CLEANING_UP)
        try:
            producer = self._connected(batch[0].topic)
        except KafkaException as error:
            return [Unavailable(f"no broker answers: {error}")] * len(batch)
        outcomes = self._sent(producer, batch, deadline)
        if any(isinstance(outcome, Unknown) for outcome in outcomes):
            # The next producer first contacts a broker: while none answers, no more outcomes become unknown.
            self.close()
        return outcomes

    def close(self) -> None:
        """Close the connections; `send` opens new ones. Messages without an answer are not sent any more."""
        producer, self._producer, self._has_answered = self._producer, None, False
        if producer is not None:
            producer.purge()
            producer.flush(self.timeout * _SHARE_FOR_CLEANING_UP)

    def _open(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(self._settings)
        return self._producer

    def _connected(self, topic: str) -> Producer:
        """A producer that has reached a broker; raises KafkaException if none answers."""
        producer = self._open()
        if not self._has_answered:
            # Without a broker nothing is sent yet, so the outcome is Unavailable instead of Unknown.
            producer.list_topics(topic, timeout=self.timeout / 2)
            self._has_answered = True
        return producer

    def _sent(self, producer: Producer, batch: Sequence[Envelope], deadline: float) -> list[Outcome]:
        answers = _answers(producer, batch, deadline)
        return [
            self._alone(producer, envelope, deadline)
            if len(batch) > 1 and answer is not None and answer.code() in JUDGED_TOGETHER
            else outcome_of(answer)
            for envelope, answer in zip(batch, answers, strict=True)
        ]

    def _alone(self, producer: Producer, envelope: Envelope, deadline: float) -> Outcome:
        """Send alone a message whose request was refused: another message may have caused that."""
        if time.monotonic() >= deadline:
            return Unavailable("Kafka refused a request that held other messages as well")
        return outcome_of(_answers(producer, [envelope], deadline)[0])


class AsyncKafkaPublisher:
    """`KafkaPublisher` for an `AsyncRelay`: the same arguments and promises, its sends in a thread.

    One send at a time. A cancelled send ends first, which takes at most `timeout`, so that none of its
    messages is sent after the cancellation has been raised.
    """

    def __init__(self, config: Mapping[str, Any], *, timeout: float | timedelta = 10) -> None:
        self._publisher = KafkaPublisher(config, timeout=timeout)
        self.timeout = self._publisher.timeout

    def check(self, lease: float) -> None:
        """As `KafkaPublisher.check`."""
        self._publisher.check(lease)

    async def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """As `KafkaPublisher.send`."""
        sending = asyncio.ensure_future(asyncio.to_thread(self._publisher.send, batch))
        try:
            return await asyncio.shield(sending)
        finally:
            await asyncio.wait([sending])

    async def close(self) -> None:
        """As `KafkaPublisher.close`."""
        await asyncio.to_thread(self._publisher.close)


def _answers(producer: Producer, batch: Sequence[Envelope], deadline: float) -> list[KafkaError | None]:
    """The result of each message: None, or Kafka's or the client's error. After `deadline` nothing is
    sent."""
    answers: dict[int, KafkaError | None] = {}
    for index, envelope in enumerate(batch):
        try:
            _produce(producer, envelope, partial(_note, answers, index))
        except KafkaException as error:
            answers[index] = error.args[0]
        except BufferError as error:
            answers[index] = KafkaError(KafkaError._QUEUE_FULL, str(error))  # noqa: SLF001
    while len(answers) < len(batch) and (rest := deadline - time.monotonic()) > 0:
        producer.poll(rest)
    if len(answers) < len(batch):
        # What is still queued must not leave later: by then another relay may own the bucket.
        producer.purge()
        producer.poll(0)
    late = KafkaError(KafkaError._TIMED_OUT, "no answer within the time limit")  # noqa: SLF001
    return [answers.get(index, late) for index in range(len(batch))]


def _note(
    answers: dict[int, KafkaError | None], index: int, error: KafkaError | None, message: Message
) -> None:
    answers[index] = error


def _produce(producer: Producer, envelope: Envelope, on_delivery: Any) -> None:
    # Without a timestamp of its own: a message that waited long would already be past the topic's retention.
    own = {"outbox-id": envelope.id, "outbox-created-at": envelope.created_at.isoformat()}
    if envelope.payload is not None:
        own["content-type"] = envelope.content_type
    producer.produce(
        envelope.topic,
        envelope.payload,
        envelope.key,
        on_delivery=on_delivery,
        headers={**envelope.headers, **own},
    )
