"""Move dead letters back to their topic."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from inbox._consuming.redriving import LetterChoice, check_places
from inbox._consuming.text import readable
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.redriven import Only, Redriven

from .dead_letters import ADDED, LEFT_OUT, OFFSET, PARTITION, TOO_LARGE, TOPIC, settings_of
from .record import DEAD_CREATED_AT, DEAD_ID, delivery_of, headers_of, place

_log = logging.getLogger("inbox.kafka")

_PATIENCE = 30.0
"""Seconds that Kafka has for one answer."""
_AT_ONCE = 500
_GONE = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - its only name
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - its only name
)
_READER: dict[str, Any] = {
    "logger": _log,
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
}


def redrive(
    config: Mapping[str, Any],
    dead_letters: str,
    *,
    to: str | None = None,
    only: Only | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> Redriven:
    """Write dead letters to the topic from which they came, to be handled again.

    A message keeps its id, its key and its time. It arrives behind the messages that wait, in the partition
    from which it came. What has been moved stays in the topic of dead letters, as all that Kafka has; without
    `only`, the group "<dead_letters>.redrive" commits how far it has come, and the next call goes on from
    there, for as long as Kafka keeps the group's offsets (`offsets.retention.minutes`, by default 7 days).
    With `only`, each call reads the whole topic, and moves again what was moved before. If a message is
    written twice, its inbox takes it once. The letters that are there when the call begins are looked at
    once.

    A letter that cannot go back is counted and named in the log: Kafka refuses it as too large, or a part of
    it was left out and the message is not in its topic any more. A call with `only` finds it again.

    Args:
        config: settings of confluent-kafka's `Consumer`, at least "bootstrap.servers"; those of a group are
            not used.
        dead_letters: the topic with the dead letters.
        to: the topic to which they go; by default each goes to the one that it names.
        only: a function of a `Delivery`: whether this message goes back; None: all.
        limit: move at most this many; None: all.
        dry_run: write and commit nothing, and count what would be moved.

    Returns:
        How many were moved, how many were left, and how many could not be moved.

    Raises:
        InvalidOption: an argument cannot be used, such as a topic that does not exist; or a letter names no
            topic, and `to` is None.
        ConnectionError: Kafka does not answer, or takes no message; what was moved before stays moved.
    """
    check_places("topic", dead_letters, to)
    if to == dead_letters:
        raise InvalidOption(f"to={to!r}: expected another topic than that of the dead letters")
    choice = LetterChoice(only, limit)
    given = {name: value for name, value in config.items() if not name.startswith("group.")}
    settings = {**given, "group.id": f"{dead_letters}.redrive", **_READER}
    try:
        consumer, originals = Consumer(settings), Consumer(settings)
        producer = Producer({**settings_of(config), "linger.ms": 5, "logger": _log})
    except KafkaException as error:
        raise InvalidOption(f"config: {error.args[0].str()}") from None
    with closing(consumer), closing(originals):
        try:
            partitions = _partitions(consumer, "dead_letters", dead_letters)
            if to is not None:
                _partitions(consumer, "to", to)
            move = _TopicMover(consumer, originals, producer, to, choice, dry_run)
            for letters in _letters(consumer, dead_letters, partitions, from_start=only is not None):
                done = move.some(letters)
                if only is None and not dry_run and done:
                    consumer.commit(offsets=_behind(done), asynchronous=False)
                move.check()
        except KafkaException as error:
            reason = f"{dead_letters}: {error.args[0].str()}; {choice.moved} messages were moved before"
            raise ConnectionError(reason) from error
    return choice.result()


def _partitions(consumer: Consumer, option: str, topic: str) -> list[int]:
    found = consumer.list_topics(topic, _PATIENCE).topics[topic]
    if found.error is not None:
        raise InvalidOption(f"{option}={topic!r}: {found.error.str()}")
    return list(found.partitions)


def _letters(
    consumer: Consumer, topic: str, partitions: Sequence[int], *, from_start: bool
) -> Iterator[list[Message]]:
    """The records that are there now, some at a time. A message that dies again meanwhile is not among
    them."""
    places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions]
    if not from_start:
        known = consumer.committed(places, _PATIENCE)
        places = [
            each if each.offset >= 0 else TopicPartition(topic, each.partition, OFFSET_BEGINNING)
            for each in known
        ]
    ends = {each.partition: consumer.get_watermark_offsets(each, _PATIENCE)[1] for each in places}
    consumer.assign(places)
    running = set(partitions)
    while running:
        batch = consumer.consume(1, _PATIENCE)
        if not batch:
            raise KafkaException(_timed_out(f"topic {topic}: no answer"))
        letters = []
        for record in [*batch, *consumer.consume(_AT_ONCE, 0)]:
            error, partition, offset = record.error(), record.partition() or 0, record.offset() or 0
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                raise KafkaException(error)
            if error is not None or offset + 1 >= ends[partition]:
                running.discard(partition)
            if error is None and offset < ends[partition]:
                letters.append(record)
        yield letters


def _behind(records: Sequence[Message]) -> list[TopicPartition]:
    """For each partition, the offset behind the last of these."""
    offsets = {record.partition() or 0: (record.offset() or 0) + 1 for record in records}
    topic = str(records[0].topic())
    return [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]


def _timed_out(what: str) -> KafkaError:
    return KafkaError(KafkaError._TIMED_OUT, what)  # noqa: SLF001 - its only name


class _TopicMover:
    """Writes letters to their topics."""

    def __init__(
        self,
        consumer: Consumer,
        originals: Consumer,
        producer: Producer,
        to: str | None,
        choice: LetterChoice,
        dry_run: bool,
    ) -> None:
        self._consumer, self._originals, self._producer, self._to = consumer, originals, producer, to
        self._choice, self._dry_run = choice, dry_run
        self._sizes: dict[str, int] = {}
        self._error: Exception | None = None

    def some(self, letters: Sequence[Message]) -> Sequence[Message]:
        """Write those that are wanted; return the first ones, up to one with an error that `check` raises."""
        answers: list[KafkaError | None] = []
        """For each letter, why it was not written; None if it was, or need not be."""
        for number, letter in enumerate(letters):
            if self._choice.is_full:
                self._choice.left += len(letters) - number
                break
            answers.append(None)
            try:
                self._take(letter, answers)
            except (InvalidOption, KafkaException) as error:
                answers.pop()
                self._error = error
                break
        self._producer.flush(_PATIENCE)
        return letters[: self._dealt_with(letters, answers)]

    def check(self) -> None:
        """Raise the error that has ended the last `some`, if there was one."""
        if self._error is not None:
            raise self._error

    def _dealt_with(self, letters: Sequence[Message], answers: Sequence[KafkaError | None]) -> int:
        """How many of the letters, from the first one on, need not be looked at again."""
        first = len(answers)
        for number, error in reversed([*enumerate(answers)]):
            if error is None:
                continue
            self._choice.moved -= 1
            if error.code() in TOO_LARGE:
                self._fail(letters[number], error.str())
            else:
                first, self._error = number, KafkaException(error)
        return first

    def _take(self, letter: Message, answers: list[KafkaError | None]) -> None:
        headers = dict(headers_of(letter))
        topic = self._to or _text(headers, TOPIC)
        if not topic:
            raise InvalidOption(f"to=None: {place(letter)} names no topic to which it could go back")
        whole = letter if headers.get(LEFT_OUT) is None else self._original(headers)
        if whole is None:
            where = " ".join(_text(headers, name) for name in (TOPIC, PARTITION, OFFSET))
            self._fail(letter, f"a part of it was left out, and {where} has the message no more")
            return
        delivery = _as_handled(whole, letter, topic)
        if not self._choice.wants(delivery):
            self._choice.left += 1
            return
        self._choice.moved += 1
        if not self._dry_run:
            answers[-1] = _timed_out("not confirmed")
            self._write(whole, letter, delivery, partial(answers.__setitem__, len(answers) - 1))

    def _fail(self, letter: Message, reason: str) -> None:
        self._choice.failed += 1
        _log.warning("%s, id %s: cannot be moved back: %s", place(letter), delivery_of(letter, 1).id, reason)

    def _original(self, headers: Mapping[str, Any]) -> Message | None:
        """The message that the letter is about, from its topic; None if it is not there any more."""
        there = TopicPartition(_text(headers, TOPIC), _number(headers, PARTITION), _number(headers, OFFSET))
        try:
            first, end = self._originals.get_watermark_offsets(there, _PATIENCE)
        except KafkaException as error:
            if error.args[0].code() in _GONE:
                return None
            raise
        if not first <= there.offset < end:
            return None
        self._originals.assign([there])
        found = self._originals.consume(1, _PATIENCE)
        if not found:
            raise KafkaException(_timed_out(f"topic {there.topic}: no answer"))
        if (broken := found[0].error()) is not None:
            raise KafkaException(broken)
        # A topic that was created again has another message in this place.
        return found[0] if delivery_of(found[0], 1).id == _text(headers, DEAD_ID) else None

    def _write(
        self, whole: Message, letter: Message, delivery: Delivery, answer: Callable[[Any], None]
    ) -> None:
        names = dict(headers_of(letter))
        kept = [(name, value) for name, value in headers_of(whole) if name not in ADDED]
        kept.append((DEAD_ID, delivery.id.encode()))
        if delivery.created_at is not None:
            kept.append((DEAD_CREATED_AT, delivery.created_at.isoformat().encode()))
        topic, partition = delivery.topic, _text(names, PARTITION)
        is_known = topic == _text(names, TOPIC) and partition.isdecimal()
        self._producer.produce(
            topic,
            whole.value(),
            whole.key(),
            int(partition) if is_known and int(partition) < self._size(topic) else -1,
            headers=kept,
            on_delivery=lambda error, _: answer(error),
        )

    def _size(self, topic: str) -> int:
        """How many partitions the topic has."""
        if topic not in self._sizes:
            found = self._consumer.list_topics(topic, _PATIENCE).topics[topic]
            self._sizes[topic] = len(found.partitions)
        return self._sizes[topic]


def _as_handled(whole: Message, letter: Message, topic: str) -> Delivery:
    """The message as its handler would get it."""
    found, headers = delivery_of(whole, 1), dict(headers_of(letter))
    before = delivery_of(letter, 1)
    id = _text(headers, DEAD_ID)  # noqa: A001 - what it is
    return replace(found, id=id or found.id, created_at=before.created_at, topic=topic)


def _number(headers: Mapping[str, Any], name: str) -> int:
    text = _text(headers, name)
    return int(text) if text.isdecimal() else -1


def _text(headers: Mapping[str, Any], name: str) -> str:
    return readable(headers.get(name) or "")
