"""One batch on its way to Kafka."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from inbox_outbox_base.words.outgoing import Accepted, Envelope, Outcome, Unavailable, Unknown

from .answers import JUDGED_TOGETHER, outcome_of, outcome_of_unsent

Answers = list[tuple[int, Outcome]]
"""Places in the batch, and the outcomes of their messages."""

_SLICE = 0.05
"""Seconds for which answers wait for those still missing, before they are passed on."""


class Sending:
    """Sends a batch, part by part, through a producer that nobody else uses.

    A part with several messages of a key is one request for each partition, and Kafka writes a request as a
    whole or not at all. The next part leaves after all answers to this one. So when a message fails, no later
    one of its key is on its way; and what an old connection delivers late is in order, from the first message
    without an answer.

    Args:
        producer: has the settings of `producer_settings.filled_in`.
        parts: as `parts_of` returns them.
        deadline: on the monotonic clock; after it nothing is sent.
    """

    def __init__(
        self, producer: Producer, batch: Sequence[Envelope], parts: list[list[int]], deadline: float
    ) -> None:
        self._producer = producer
        self._batch = batch
        self._parts = parts[::-1]
        self._deadline = deadline
        self._failed: set[str] = set()
        """Keys of which nothing more is sent."""
        self._arrived: list[tuple[int, KafkaError | None]] = []
        self._missing: set[int] = set()
        self._has_failed = False

    @property
    def is_usable(self) -> bool:
        """Whether the producer can be used again: nothing of this batch is left in it, and its client and its
        brokers are well."""
        return not (self._missing or self._has_failed)

    def answers(self) -> Iterator[Answers]:
        """Send, and yield the outcomes as they arrive."""
        while self._parts:
            part = self._parts.pop()
            if time.monotonic() < self._deadline:
                yield from self._sent(part)
            else:
                yield [self._answer(place, Unavailable("no time was left to send it")) for place in part]

    def _sent(self, part: list[int]) -> Iterator[Answers]:
        yield self._queue(part)
        is_shared, again = len(self._missing) > 1, list[int]()
        while self._missing and (rest := self._deadline - time.monotonic()) > 0:
            self._producer.flush(min(rest, _SLICE))  # before a flush, the client sends nothing
            answers, refused = self._judged(is_shared)
            again += refused
            yield answers
        if self._missing:
            yield self._given_up()
        # Each half in parts of its own: one message may have been too much for all.
        half = (len(again) + 1) // 2
        self._parts += [places for places in (again[half:], again[:half]) if places]

    def _queue(self, part: list[int]) -> Answers:
        """Pass messages to the client; the outcomes of those that it does not take."""
        answers: Answers = []
        for place in part:
            envelope = self._batch[place]
            if envelope.key in self._failed:
                answers.append((place, Unavailable("an earlier message of its key was not accepted")))
                continue
            self._missing.add(place)
            try:
                _produce(self._producer, envelope, partial(self._note, place))
            except (KafkaException, BufferError) as error:
                self._missing.discard(place)
                answers.append(self._answer(place, outcome_of_unsent(error)))
        return answers

    def _note(self, place: int, error: KafkaError | None, message: Message) -> None:
        self._arrived.append((place, error))

    def _judged(self, is_shared: bool) -> tuple[Answers, list[int]]:
        """The outcomes that have arrived, and messages to be sent again in smaller requests."""
        arrived, self._arrived = self._arrived, []
        self._missing.difference_update([place for place, _ in arrived])
        answers: Answers = []
        refused: list[int] = []
        for place, error in arrived:
            if is_shared and error is not None and error.code() in JUDGED_TOGETHER:
                refused.append(place)
            else:
                answers.append(self._answer(place, outcome_of(error)))
        return answers, refused

    def _given_up(self) -> Answers:
        """The outcomes of messages without an answer. What is still queued must not leave later: by then
        another relay may own the bucket."""
        self._producer.purge()
        self._producer.poll(0)
        answers, _ = self._judged(is_shared=False)
        late = Unknown("no answer within the time limit")
        answers += [self._answer(place, late) for place in sorted(self._missing)]
        return answers

    def _answer(self, place: int, outcome: Outcome) -> tuple[int, Outcome]:
        if not isinstance(outcome, Accepted):
            self._has_failed |= isinstance(outcome, Unavailable | Unknown)
            key = self._batch[place].key
            if key is not None:
                self._failed.add(key)
        return place, outcome


def _produce(producer: Producer, envelope: Envelope, on_delivery: Callable[..., None]) -> None:
    """Queue a message.

    Without a timestamp of its own: a message that waited long would already be past the topic's retention.
    """
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
