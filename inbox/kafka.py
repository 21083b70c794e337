"""Messages from Kafka to a handler of an inbox, through confluent-kafka's consumer (the extra `kafka`)."""

import functools
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from . import _options
from ._brokers import kafka_options
from ._brokers.kafka_dead_letters import DeadLetterTopic
from ._brokers.kafka_lane import Lane
from ._brokers.kafka_options import Handler
from ._brokers.kafka_record import place_of
from ._decision import Decision
from ._delivery import Delivery
from ._listener import Listener

_log = logging.getLogger("inbox.kafka")
_TURN = 0.1
"""Seconds that the client waits for a message before the consumer looks around."""


class KafkaConsumer:
    """Feeds the messages of topics to a handler, as a member of a consumer group.

    A message is committed once its handler has said so through the inbox, never before. Of a partition the
    messages run in their order: one that has to come again holds up those behind it, in its partition alone.
    While handlers run, however long, the consumer goes on polling, so that it stays in its group.

    When a partition goes to another consumer, the running message may end, what is acknowledged is committed,
    and the rest is left to the other one. Messages that come twice because a consumer died, or was too slow
    for that, are duplicates for the inbox.

    Args:
        config: settings of confluent-kafka's `Consumer`, at least "bootstrap.servers" and "group.id". By
            default `auto.offset.reset` is "earliest"; `enable.auto.commit` is always off.
        topics: a topic, or several; a name that begins with ^ is a regular expression.
        handler: what an inbox's `handler` decorates, or another function of a `Delivery` that returns an
            `Outcome`. It is not asynchronous.
        batch: how many messages of a partition are decided together.
        partitions: of how many partitions messages run at once. Each runs `concurrency` of them (a listener's
            option), so let the engine's pool have the product of both.
        max_attempts: a message whose handler raises so often becomes a dead letter; None: never. It counts in
            memory: a restart or a rebalance begins anew. Failures of the database do not count, nor do those
            of messages claimed in status-table mode, whose inbox counts for itself (`Outcome.is_failure`).
        dead_letter: a topic, or a function of a `Delivery` and its `Decision` that puts the message away: it
            is acknowledged when that returns, and tried again when it raises. None: a dead letter blocks its
            partition, is tried again after the longest delay, and is reported as an error each time.
        listener_options: `concurrency`, `key`, `backoff`, `grace` and `too_old`, as for `Listener`.

    Raises:
        InvalidOption: an argument cannot be used.
        TypeError: there is no such argument.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: str | Sequence[str],
        handler: Handler,
        *,
        batch: int = 100,
        partitions: int = 8,
        max_attempts: int | None = 16,
        dead_letter: str | Callable[[Delivery, Decision], Any] | None = None,
        **listener_options: Any,
    ) -> None:
        kafka_options.check_listener_options(listener_options)
        kafka_options.check_handler(handler)
        self._settings = kafka_options.settings(config)
        self._topics = kafka_options.topics(topics)
        self._handler = handler
        self._batch = _options.count("batch", batch)
        self._partitions = _options.count("partitions", partitions)
        self._dead_letters = None
        if isinstance(dead_letter, str):
            dead_letter = self._dead_letters = DeadLetterTopic(config, dead_letter)
        self._new_listener = functools.partial(
            Listener,
            order="in_order",
            attempt=_attempt,
            max_attempts=max_attempts,
            dead_letter=dead_letter,
            **listener_options,
        )
        self._whole = self._new_listener(failures=lambda _: 0)  # decides nothing: for its stop and its grace
        kafka_options.check_grace(self._whole.grace, self._settings)
        self._lanes: dict[tuple[str, int], Lane] = {}

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self._whole.stopped

    def stop(self) -> None:
        """Let `run` end: it begins no more messages, gives the running ones `grace` seconds, commits what is
        acknowledged and leaves the group.

        Returns at once. May be called from any thread, from a signal handler, and again.
        """
        self._whole.stop()

    def run(self) -> None:
        """Consume until `stop`, which SIGTERM and SIGINT call if this is the main thread. Once per object.

        Raises:
            KafkaException: the client cannot go on: it does not know a setting, or its member was fenced.
        """
        with self._stopping_on_signals():
            consumer = Consumer({"logger": _log, "on_commit": _report_commit, **self._settings})
            # Its threads are left behind when a handler outlasts `grace`; they end with the process.
            self._pool = ThreadPoolExecutor(self._partitions, thread_name_prefix="inbox kafka")
            try:
                consumer.subscribe(
                    self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
                )
                while not self.stopped:
                    self._turn(consumer)
            finally:
                self._release(consumer, self._taken_away(lane.partition for lane in self._lanes.values()))
                self._leave(consumer)
                self._pool.shutdown(wait=False)
                if self._dead_letters is not None:
                    self._dead_letters.close()

    def _stopping_on_signals(self) -> AbstractContextManager[None]:
        if threading.current_thread() is threading.main_thread():
            return self._whole.stopping_on_sigterm(signal.SIGINT)
        return nullcontext()

    def _turn(self, consumer: Consumer) -> None:
        for record in self._fetched(consumer):
            if not _is_notice(record) and (lane := self._lanes.get(place_of(record))):
                lane.add(record)
        for lane in self._lanes.values():
            if lane.failure is not None:
                raise lane.failure
            self._begin(lane)
            self._throttle(consumer, lane)
        self._commit(consumer, self._lanes.values())

    def _fetched(self, consumer: Consumer) -> list[Message]:
        first = consumer.poll(_TURN)
        # With a time limit the client would wait until it has all of them.
        return [] if first is None else [first, *consumer.consume(self._batch, 0)]

    def _begin(self, lane: Lane) -> None:
        if lane.begin():
            self._pool.submit(self._run, lane)

    def _run(self, lane: Lane) -> None:
        lane.run()
        self._begin(lane)

    def _throttle(self, consumer: Consumer, lane: Lane) -> None:
        if not lane.is_paused and lane.is_full:
            consumer.pause([lane.partition])
            lane.is_paused = True
        elif lane.is_paused and lane.has_room:
            consumer.resume([lane.partition])
            lane.is_paused = False

    def _commit(self, consumer: Consumer, lanes: Iterable[Lane], *, again: bool = False) -> None:
        offsets = [offset for lane in lanes if (offset := lane.to_commit(again=again)) is not None]
        if offsets:
            # A wait would last as long as a broker hangs. Each commit covers those before it, and the broker
            # gets the last one before it hears that the partition is given away.
            consumer.commit(offsets=offsets, asynchronous=True)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            lane = Lane(each, self._new_listener, self._handler, self._batch)
            self._lanes[each.topic, each.partition] = lane

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._release(consumer, self._taken_away(partitions))

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """They are somebody else's already: what is done here is done, and is not to be committed."""
        lanes = self._taken_away(partitions)
        for lane in lanes:
            lane.stop()
        self._resume(consumer, lanes)

    def _taken_away(self, partitions: Iterable[TopicPartition]) -> list[Lane]:
        places = [(each.topic, each.partition) for each in partitions]
        return [self._lanes.pop(place) for place in places if place in self._lanes]

    def _release(self, consumer: Consumer, lanes: list[Lane]) -> None:
        """Let running messages end, and tell Kafka from where the next owner has to go on."""
        for lane in lanes:
            lane.stop()
        for lane in lanes:
            lane.wait()
        self._commit(consumer, lanes, again=True)
        self._resume(consumer, lanes)

    def _resume(self, consumer: Consumer, lanes: list[Lane]) -> None:
        """The client would remember a pause until the partition comes back, and fetch nothing of it then."""
        if paused := [lane.partition for lane in lanes if lane.is_paused]:
            consumer.resume(paused)

    def _leave(self, consumer: Consumer) -> None:
        """Leave the group; a broker that hangs is not waited for any longer than a message."""
        leaving = threading.Thread(target=consumer.close, name="inbox kafka leaves", daemon=True)
        leaving.start()
        leaving.join(self._whole.grace)
        if leaving.is_alive():
            _log.warning("no broker has confirmed the last commit: those messages may be delivered again")


def _attempt(delivery: Delivery) -> int:
    return delivery.attempt


def _is_notice(record: Message) -> bool:
    """Whether it is no message but what the client has to say; raises it if it is fatal."""
    error = record.error()
    if error is None:
        return False
    if error.fatal():
        raise KafkaException(error)
    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's way to name its own codes
        _log.warning("%s", error)
    return True


def _report_commit(error: KafkaError | None, offsets: list[TopicPartition]) -> None:
    if error is not None:
        _log.warning("not committed, the next commit covers it: %s", error)
