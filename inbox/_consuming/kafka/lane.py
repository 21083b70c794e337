"""A consumer's messages of one partition."""

import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import Message, TopicPartition

from inbox._listening.listener_base import ListenerBase
from inbox._listening.outcome import Action, Decision, Decisions
from inbox_outbox_base.words.incoming import Delivery

from .record import delivery_of

MOST = 10_000
"""Fetching from a partition pauses at this many messages, or at two batches if that is more."""
MOST_BYTES = 16 * 1024 * 1024

_log = logging.getLogger("inbox.kafka")


class PartitionLane:
    """The unacknowledged messages of one partition, from the first on, without a gap.

    They run in batches, in order. A message that must be redelivered stays in its place, and later messages
    wait. One worker at a time calls `run`; only the polling thread calls everything else.
    """

    def __init__(
        self,
        partition: TopicPartition,
        new_listener: Callable[..., ListenerBase],
        decide: Callable[[Any, list[Delivery]], Decisions],
        batch: int,
    ) -> None:
        self.is_paused = False
        """Whether the client has been told to stop fetching."""
        self.failure: BaseException | None = None
        """The error that ends the consumer; no message is to blame for it."""
        self._partition = partition
        self._listener = new_listener(failures=lambda delivery: self._failures[_offset(delivery.raw)])
        self._decide = decide
        self._batch = batch
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._is_queued = False
        self._is_running = False
        self._records: deque[Message] = deque()
        self._size = 0
        self._attempts: dict[int, int] = {}
        self._failures: Counter[int] = Counter()
        self._not_before = 0.0
        self._acknowledged: int | None = None
        self._committed: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether the lane holds so much that fetching should pause."""
        return len(self._records) >= max(MOST, 2 * self._batch) or self._size >= MOST_BYTES

    @property
    def has_room(self) -> bool:
        """Whether half of the limit is free: Kafka's client takes a while to resume fetching."""
        return len(self._records) <= max(MOST, 2 * self._batch) // 2 and self._size <= MOST_BYTES // 2

    @property
    def partition(self) -> TopicPartition:
        """The partition; a new object each time, because Kafka's client writes into the objects it gets."""
        return TopicPartition(self._partition.topic, self._partition.partition)

    def add(self, record: Message) -> None:
        """Take the partition's next record."""
        with self._lock:
            self._records.append(record)
            self._size += len(record)

    def begin(self) -> bool:
        """Return whether there is a batch to run now; if so, the caller must let a worker call `run`."""
        with self._lock:
            if self._is_queued or self._is_running or not self._records or self._listener.stopped:
                return False
            if self.failure is not None or time.monotonic() < self._not_before:
                return False
            self._is_queued = True
            return True

    def run(self) -> None:
        """Run one batch, unless the lane was stopped before its turn."""
        with self._lock:
            self._is_queued = False
            if self._listener.stopped:
                return
            self._is_running = True
            # Records stay in the deque until they are acknowledged.
            records = [*itertools.islice(self._records, self._batch)]
        batch, decisions = list[Delivery](), Decisions()
        try:
            batch = [self._delivery(record) for record in records]
            decisions = self._decide(self._listener, batch)
        except BaseException as error:  # noqa: BLE001 - the polling thread raises it
            self.failure = error
        with self._lock:
            self._settle(batch, decisions)
            self._is_running = False
            self._idle.notify_all()

    def stop(self) -> None:
        """Begin no more messages."""
        self._listener.stop()

    def wait(self) -> None:
        """After `stop`, return once the running message has ended or was given up.

        A batch that no worker has begun will not run, so `wait` ignores it.
        """
        with self._lock:
            self._idle.wait_for(lambda: not self._is_running)

    def to_commit(self, *, again: bool = False) -> TopicPartition | None:
        """The offset at which Kafka should continue; None if it is the same as in the last call, unless
        `again`."""
        with self._lock:
            if self._acknowledged is None or (self._acknowledged == self._committed and not again):
                return None
            self._committed = self._acknowledged
            return TopicPartition(self._partition.topic, self._partition.partition, self._committed)

    def _delivery(self, record: Message) -> Delivery:
        return delivery_of(record, 1 + self._attempts.get(_offset(record), 0))

    def _settle(self, batch: list[Delivery], decisions: Decisions) -> None:
        # Kafka commits one offset for each partition, so only an unbroken run from the start counts.
        for _ in range(decisions.acknowledged):
            record = self._records.popleft()
            self._size -= len(record)
            offset = _offset(record)
            self._attempts.pop(offset, None)
            self._failures.pop(offset, None)
            self._acknowledged = offset + 1
        rest = [*zip(batch, decisions, strict=False)][decisions.acknowledged :]
        # The rest keeps its place and runs again; count the attempts and failures so far.
        for delivery, decision in rest:
            if decision.outcome is not None and decision.action is not Action.ACK:
                self._attempts[_offset(delivery.raw)] = delivery.attempt
                self._failures[_offset(delivery.raw)] += decision.outcome.is_failure
        # Head-of-line blocking: nothing of the partition runs before its first message does.
        if rest:
            self._not_before = time.monotonic() + self._delay(*rest[0])

    def _delay(self, delivery: Delivery, decision: Decision) -> float:
        if decision.action is Action.RETRY:
            return decision.delay
        pause = self._listener.backoff.longest
        _log.error(
            "partition %s [%s] is blocked by %s, which is retried in %g s because no dead_letter= is set: %s",
            self._partition.topic,
            self._partition.partition,
            delivery.id,
            pause,
            decision.reason,
        )
        return pause


def _offset(record: Message) -> int:
    offset = record.offset()
    assert offset is not None, "a record that was fetched has an offset"  # noqa: S101 - for the type checker
    return offset
