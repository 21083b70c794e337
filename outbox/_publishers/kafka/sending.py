"""One batch on its way to Kafka."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from inbox_outbox_base.calls import clock
from inbox_outbox_base.words.outgoing import ACCEPTED, Envelope, Outcome, Refused, Unavailable, Unknown

from .answers import JUDGED_TOGETHER, outcome_of, outcome_of_unsent

Answers = list[tuple[int, Outcome]]
"""Places in the batch, and the outcomes of their messages."""

_SLICE = 0.05
"""Seconds for which answers wait for missing ones before they are passed on."""
_QUIET = 1.0
"""Seconds without an answer after which the send asks whether partitions have lost their leader."""


class KafkaSending:
    """Sends a batch, part by part, through a producer that nobody else uses.

    A part with several messages of a key is one request for each partition, and Kafka writes a request as a
    whole or not at all. The next part leaves after all answers to this one. So when a message fails, no later
    one of its key is on its way. If an old connection delivers messages late, they are in order, and begin
    with the first one that has no answer.

    Args:
        producer: has the settings of `producer_settings.filled_in`.
        parts: as `parts_of` returns them.
        deadline: the time, by `clock.now`, after which nothing is sent.
        leaderless: the partitions that had no leader right before.
        ask: a function that returns the partitions without a leader; its argument is a time limit in seconds.
    """

    def __init__(
        self,
        producer: Producer,
        batch: Sequence[Envelope],
        parts: list[list[int]],
        deadline: float,
        leaderless: set[int],
        ask: Callable[[float], set[int]],
    ) -> None:
        self._producer = producer
        self._batch = batch
        self._parts = parts[::-1]
        self._deadline = deadline
        self._leaderless_before = leaderless
        self._ask = ask
        self.leaderless = set[int]()
        """The partitions that have no leader, if this has ended the send."""
        self._failed: set[str] = set()
        """Keys with a message that was not accepted: no more of their messages are sent."""
        self._queued: list[int] = []
        """The places of this part that the client has."""
        self._arrived: list[tuple[int, KafkaError | None, int | None]] = []
        """Places, errors, and partitions."""
        self._judged = 0
        """How many of the delivery reports have been evaluated."""
        self._has_failed = False

    @property
    def is_usable(self) -> bool:
        """Whether the producer can be used again: it holds nothing of this batch, and its client and its
        brokers are well."""
        return not (self._is_waiting or self._has_failed)

    @property
    def _is_waiting(self) -> bool:
        return len(self._arrived) < len(self._queued)

    def answers(self) -> Iterator[Answers]:
        """Send, and yield the outcomes as they arrive."""
        while self._parts:
            part = self._parts.pop()
            if clock.now() < self._deadline:
                yield from self._sent(part)
            else:
                yield [self._answer(place, Unavailable("no time was left to send it")) for place in part]

    def _sent(self, part: list[int]) -> Iterator[Answers]:
        yield self._queue(part)
        is_shared, again = len(self._queued) > 1, list[int]()
        arrived, quiet_since = 0, clock.now()
        while self._is_waiting and (rest := self._deadline - clock.now()) > 0:
            self._producer.flush(min(rest, _SLICE))  # before a flush, the client sends nothing
            yield self._judge(again if is_shared else None)
            if len(self._arrived) > arrived:
                arrived, quiet_since = len(self._arrived), clock.now()
            elif clock.now() > quiet_since + _QUIET:
                self._look_for_leaders(min(rest, _QUIET))
                quiet_since = clock.now()
        if self._is_waiting:
            yield self._given_up()
        # Send each half in its own parts: a single message may have made the request fail.
        again.sort()
        half = (len(again) + 1) // 2
        self._parts += [places for places in (again[half:], again[:half]) if places]

    def _look_for_leaders(self, timeout: float) -> None:
        """End the send if a partition has no leader: waiting longer would only delay other messages."""
        self.leaderless = self._ask(timeout)
        if self.leaderless:
            self._deadline = 0.0

    def _queue(self, part: list[int]) -> Answers:
        """Pass messages to the client; return the outcomes of those that it does not take."""
        self._queued, self._arrived, self._judged = [], [], 0
        answers: Answers = []
        for place in part:
            envelope = self._batch[place]
            if envelope.key in self._failed:
                answers.append((place, Unavailable("an earlier message of its key was not accepted")))
                continue
            try:
                # Without a timestamp: with its own, a message that waited long would already be past the
                # topic's retention.
                self._producer.produce(
                    envelope.topic,
                    envelope.payload,
                    envelope.key,
                    on_delivery=partial(_note, self._arrived, place),
                    headers=_headers(envelope),
                )
            except (KafkaException, BufferError) as error:
                answers.append(self._answer(place, outcome_of_unsent(error)))
            else:
                self._queued.append(place)
        return answers

    def _judge(self, again: list[int] | None) -> Answers:
        """The outcomes that have arrived. Messages to be sent again in smaller requests are added to `again`
        instead."""
        answers: Answers = []
        for place, error, partition in self._arrived[self._judged :]:
            if error is None:
                answers.append((place, ACCEPTED))
            elif self._had_no_leader(error, partition):
                answers.append(self._answer(place, Unavailable(f"partition {partition} has no leader")))
            elif again is not None and error.code() in JUDGED_TOGETHER:
                again.append(place)
            else:
                answers.append(self._answer(place, outcome_of(error)))
        self._judged = len(self._arrived)
        return answers

    def _had_no_leader(self, error: KafkaError, partition: int | None) -> bool:
        """Whether the client still had the message, and no broker could have taken it."""
        is_queued = error.code() == KafkaError._PURGE_QUEUE  # noqa: SLF001 - the client's own codes
        return is_queued and partition in self._leaderless_before & self.leaderless

    def _given_up(self) -> Answers:
        """The outcomes of messages without an answer. Queued messages must not leave later, when another
        relay may own the bucket."""
        self._producer.purge()
        self._producer.poll(0)
        answers = self._judge(None)
        late = Unknown("no answer within the time limit")
        missing = set(self._queued).difference(place for place, *_ in self._arrived)
        answers += [self._answer(place, late) for place in sorted(missing)]
        return answers

    def _answer(self, place: int, outcome: Outcome) -> tuple[int, Outcome]:
        """Note the outcome of a message that was not accepted."""
        self._has_failed |= not isinstance(outcome, Refused)
        key = self._batch[place].key
        if key is not None:
            self._failed.add(key)
        return place, outcome


def _note(
    arrived: list[tuple[int, KafkaError | None, int | None]],
    place: int,
    error: KafkaError | None,
    message: Message,
) -> None:
    arrived.append((place, error, None if error is None else message.partition()))


def _headers(envelope: Envelope) -> dict[str, str | bytes | None]:
    headers: dict[str, str | bytes | None] = {**envelope.headers, "outbox-id": envelope.id}
    headers["outbox-created-at"] = envelope.created_at.isoformat()
    if envelope.payload is not None:
        headers["content-type"] = envelope.content_type
    return headers
