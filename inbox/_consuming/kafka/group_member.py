"""A member of a consumer group: it polls, runs the messages of each partition, and commits them."""

import functools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any, Generic, TypeVar, Unpack

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from inbox._consuming.journal import ConsumerJournal
from inbox._consuming.life import ConsumerLife
from inbox._listening.listener_base import ListenerBase
from inbox._listening.options import ListenerOptions, check_names
from inbox._listening.outcome import Decision, Decisions
from inbox_outbox_base.checks import options
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.monitoring.life_signs import Probe
from inbox_outbox_base.words.incoming import Delivery

from . import consumer_settings
from .dead_letters import DeadLetterTopic
from .lane import PartitionLane
from .record import place_of

H = TypeVar("H", bound=Callable[[Delivery], Any])

_log = logging.getLogger("inbox.kafka")
_NOT_A_MEMBER = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.FENCED_INSTANCE_ID}
_QUESTION_EVERY = 1.0
"""Seconds between two questions while no broker answers."""
_TURN = 0.1
"""Seconds that the client waits for a message before the consumer does its other work."""


class GroupMember(ABC, Generic[H]):
    """The part that Kafka's consumers share, for any kind of handler.

    The options are those of `inbox.kafka.KafkaConsumer`.
    """

    _listener: type[ListenerBase]

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: str | Sequence[str],
        handler: H,
        *,
        batch: int = 100,
        partitions: int = 8,
        max_attempts: int | None = 16,
        dead_letter: str | Callable[[Delivery, Decision], Any] | None = None,
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        check_names(listener)
        self._check(handler)
        self._settings = consumer_settings.settings(config)
        self._topics = consumer_settings.topics(topics)
        self._handler = handler
        self._batch = options.count("batch", batch)
        self._partitions = options.count("partitions", partitions)
        self._dead_letters = None
        if isinstance(dead_letter, str):
            left_out = str(config.get("topic.blacklist", ""))
            consumer_settings.check_dead_letter(dead_letter, self._topics, left_out)
            self._dead_letters = DeadLetterTopic(config, dead_letter)
            dead_letter = self._storing_in(self._dead_letters)
        self._make_listener = functools.partial(
            self._listener,
            order="in_order",
            attempt=attrgetter("attempt"),
            max_attempts=max_attempts,
            dead_letter=dead_letter,
            **listener,
        )
        self._whole = self._make_listener(failures=lambda _: 0)  # only for its stop and its grace
        consumer_settings.check_grace(self._whole.grace, self._settings)
        self._lanes: dict[tuple[str, int], PartitionLane] = {}
        names = ", ".join(self._topics)
        self._journal = ConsumerJournal(_log, f"consumer of {names}")
        self._life = ConsumerLife(f"consumer of {names}", names, on_event, self._whole.grace)
        self._is_member = False
        self._next_question = 0.0
        """When to ask whether a broker answers again; 0 while one does."""

    def _new_listener(self, **options: Any) -> ListenerBase:
        listener = self._make_listener(**options)
        listener.tracing = self._life.tracing
        return listener

    def probe(self) -> Probe:
        """Say how the consumer is; any thread may ask. See `inbox.probes`.

        It is live while its loop turns, and ready while it is in its group and a broker answers.
        """
        return self._life.probe(is_stopping=self.stopped)

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self._whole.stopped

    def stop(self) -> None:
        """Stop `run`: it begins no more messages, gives the running ones `grace` seconds, commits
        acknowledged messages and leaves the group.

        Returns immediately. You can call it from any thread, from a signal handler, and repeatedly.
        """
        self._whole.stop()

    @abstractmethod
    def _check(self, handler: H) -> None:
        """Raise InvalidOption if the handler cannot run."""

    @abstractmethod
    def _decide(self, listener: Any, batch: list[Delivery]) -> Decisions:
        """Run a batch with the listener of its partition, in a thread."""

    def _decide_and_count(self, listener: Any, batch: list[Delivery]) -> Decisions:
        decisions = self._decide(listener, batch)
        self._journal.count(decisions)
        return decisions

    @abstractmethod
    def _storing_in(self, dead_letters: DeadLetterTopic) -> Callable[[Delivery, Decision], Any]:
        """The function that the listener calls for dead letters."""

    def _consume(self) -> None:
        """Consume until stopped.

        Raises:
            KafkaException: the client cannot continue.
        """
        group, servers = (self._settings.get(name) for name in ("group.id", "bootstrap.servers"))
        self._journal.say("starts: group %r at %s", group, servers)
        self._life.begin()
        fixed = {"logger": _log, "on_commit": _report_commit}
        consumer = Consumer({**fixed, **self._settings, "error_cb": self._client_error})
        # Threads whose handler takes longer than `grace` are left behind; they end with the process.
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
            self._life.end()
            self._journal.say("has stopped")

    def _turn(self, consumer: Consumer) -> None:
        self._journal.summarise()
        self._life.beat()
        if self._next_question and time.monotonic() >= self._next_question:
            self._ask(consumer)
        for record in self._fetched(consumer):
            if not _is_notice(record) and (lane := self._lanes.get(place_of(record))):
                lane.add(record)
        for lane in self._lanes.values():
            if lane.failure is not None:
                raise lane.failure
            self._begin(lane)
            self._throttle(consumer, lane)
        self._commit(consumer, self._lanes.values())

    def _client_error(self, error: KafkaError) -> None:
        """The client reports an error that it tries to recover from."""
        if (hook := self._settings.get("error_cb")) is not None:
            hook(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - the client's way to name its own codes
            self._life.disconnected(str(error))
            self._next_question = time.monotonic() + _QUESTION_EVERY

    def _ask(self, consumer: Consumer) -> None:
        """Ask whether a broker answers again: the client does not say so."""
        try:
            consumer.list_topics(self._topics[0], _QUESTION_EVERY)
        except KafkaException:
            self._next_question = time.monotonic() + _QUESTION_EVERY
        else:
            self._next_question = 0.0
            if self._is_member:
                self._life.connected()
            else:
                self._life.not_ready("it is not in its group")

    def _fetched(self, consumer: Consumer) -> list[Message]:
        first = consumer.poll(_TURN)
        # With a time limit the client would wait for a whole batch.
        return [] if first is None else [first, *consumer.consume(self._batch, 0)]

    def _begin(self, lane: PartitionLane) -> None:
        if lane.begin():
            self._pool.submit(self._run, lane)

    def _run(self, lane: PartitionLane) -> None:
        lane.run()
        self._begin(lane)

    def _throttle(self, consumer: Consumer, lane: PartitionLane) -> None:
        if not lane.is_paused and lane.is_full:
            consumer.pause([lane.partition])
            lane.is_paused = True
        elif lane.is_paused and lane.has_room:
            consumer.resume([lane.partition])
            lane.is_paused = False

    def _commit(self, consumer: Consumer, lanes: Iterable[PartitionLane], *, again: bool = False) -> None:
        offsets = [offset for lane in lanes if (offset := lane.to_commit(again=again)) is not None]
        if offsets:
            # Do not wait: a broker may hang. Each commit covers the commits before it, and the broker gets
            # the last commit before it learns that the partition is given up.
            consumer.commit(offsets=offsets, asynchronous=True)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            lane = PartitionLane(each, self._new_listener, self._decide_and_count, self._batch)
            self._lanes[each.topic, each.partition] = lane
        self._say_owned()
        self._is_member = True
        self._life.connected()

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._release(consumer, self._taken_away(partitions))
        self._say_owned()

    def _say_owned(self) -> None:
        owned = _named(self._lanes)
        self._journal.say("is connected, and has %s", f"partitions {owned}" if owned else "no partition")

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The partitions already belong to another consumer: work done here stays done, but must not be
        committed."""
        lanes = self._taken_away(partitions)
        _log.warning(
            "the group has dropped this consumer, which did not poll or answer in time "
            "(max.poll.interval.ms, session.timeout.ms). Its uncommitted messages are delivered again: %s",
            _named((each.topic, each.partition) for each in partitions),
        )
        self._is_member = False
        self._life.disconnected("the group has dropped this consumer")
        for lane in lanes:
            lane.stop()
        self._resume(consumer, lanes)
        self._say_owned()

    def _taken_away(self, partitions: Iterable[TopicPartition]) -> list[PartitionLane]:
        places = [(each.topic, each.partition) for each in partitions]
        return [self._lanes.pop(place) for place in places if place in self._lanes]

    def _release(self, consumer: Consumer, lanes: list[PartitionLane]) -> None:
        """Let running messages end, and commit the offsets at which the next owner continues."""
        for lane in lanes:
            lane.stop()
        for lane in lanes:
            lane.wait()
        self._commit(consumer, lanes, again=True)
        self._resume(consumer, lanes)

    def _resume(self, consumer: Consumer, lanes: list[PartitionLane]) -> None:
        """Resume paused partitions: the client would remember a pause until the partition comes back, and
        then fetch nothing."""
        if paused := [lane.partition for lane in lanes if lane.is_paused]:
            consumer.resume(paused)

    def _leave(self, consumer: Consumer) -> None:
        """Leave the group; wait for the broker at most `grace`, as for a running message."""
        leaving = threading.Thread(target=consumer.close, name="inbox kafka leaves", daemon=True)
        leaving.start()
        leaving.join(self._whole.grace)
        if leaving.is_alive():
            _log.warning("no broker has confirmed the last commit: its messages may be redelivered")


def _named(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{topic} [{number}]" for topic, number in sorted(partitions))


def _is_notice(record: Message) -> bool:
    """Whether this is a notice from the client instead of a message; raise a fatal notice."""
    error = record.error()
    if error is None:
        return False
    if error.fatal():
        raise KafkaException(error)
    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's way to name its own codes
        _log.warning("%s", error)
    return True


def _report_commit(error: KafkaError | None, offsets: list[TopicPartition]) -> None:
    if error is None:
        return
    if error.code() in _NOT_A_MEMBER:
        _log.warning("commit failed, the next owner of the partitions gets these messages again: %s", error)
    else:
        _log.warning("commit failed, the next one covers it: %s", error)
