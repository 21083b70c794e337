"""Move dead letters back to their topic."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
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

from inbox._consuming.redriving import LetterChoice
from inbox._consuming.text import readable
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.redriven import Only, Redriven

from .dead_letters import LEFT_OUT, LETTERS, OFFSET, PARTITION, TOPIC, settings_of
from .record import DEAD_CREATED_AT, DEAD_ID, delivery_of, headers_of, place

_PATIENCE = 30.0
"""Seconds that Kafka has for one answer."""
_AT_ONCE = 500
_READER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
}

_log = logging.getLogger("inbox.kafka")


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
    there. With `only`, each call reads the whole topic, and moves again what was moved before. If a message
    is written twice, its inbox takes it once. The letters that are there when the call begins are looked at
    once.

    Args:
        config: settings of confluent-kafka's `Consumer`, at least "bootstrap.servers".
        dead_letters: the topic with the dead letters.
        to: the topic to which they go; by default each goes to the one that it names.
        only: a function of a `Delivery`: whether this message goes back; None: all.
        limit: move at most this many; None: all.
        dry_run: write and commit nothing, and count what would be moved.

    Returns:
        How many were moved, how many were left, and how many cannot be moved.

    Raises:
        InvalidOption: an argument cannot be used, such as a topic that does not exist.
        KafkaException: Kafka does not answer, or does not take a message; what was moved before stays moved.
    """
    for name, value in (("dead_letters", dead_letters), ("to", to)):
        if value is not None and not (isinstance(value, str) and value):
            raise InvalidOption(f"{name}={value!r}: expected the name of a topic")
    if to == dead_letters:
        raise InvalidOption(f"to={to!r}: expected another topic than that of the dead letters")
    choice = LetterChoice(only, limit)
    settings = {"group.id": f"{dead_letters}.redrive", **config, **_READER}
    with closing(Consumer(settings)) as consumer:
        partitions = _partitions(consumer, "dead_letters", dead_letters)
        if to is not None:
            _partitions(consumer, "to", to)
        with closing(Consumer(settings)) as originals:
            move = _TopicMover(consumer, originals, Producer({**settings_of(config), "linger.ms": 5}), to)
            for letters in _letters(consumer, dead_letters, partitions, from_start=only is not None):
                done = move.some(letters, choice, dry_run=dry_run)
                if only is None and not dry_run and done:
                    consumer.commit(offsets=_behind(done), asynchronous=False)
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

    def __init__(self, consumer: Consumer, originals: Consumer, producer: Producer, to: str | None) -> None:
        self._consumer, self._originals, self._producer, self._to = consumer, originals, producer, to
        self._sizes: dict[str, int] = {}
        self._errors: list[KafkaError] = []

    def some(self, letters: Sequence[Message], choice: LetterChoice, *, dry_run: bool) -> list[Message]:
        """Write those that are wanted; return those which have been dealt with."""
        done = [letter for letter in letters if self._is_done(letter, choice, dry_run)]
        if self._producer.flush(_PATIENCE) and not self._errors:
            self._errors.append(_timed_out("not confirmed"))
        if self._errors:
            raise KafkaException(self._errors[0])
        return done

    def _is_done(self, letter: Message, choice: LetterChoice, dry_run: bool) -> bool:
        if choice.is_full:
            choice.left += 1
            return False
        headers = dict(headers_of(letter))
        whole = letter if headers.get(LEFT_OUT) is None else self._original(headers)
        topic = self._to or _text(headers, TOPIC)
        if whole is None or not topic:
            _log.warning("%s: cannot be moved back: %s", place(letter), _why(headers, whole))
            choice.unreadable += 1
        elif not choice.wants(_as_handled(whole, letter, topic)):
            choice.left += 1
        else:
            choice.moved += 1
            if not dry_run:
                self._write(whole, letter, topic)
        return True

    def _original(self, headers: Mapping[str, Any]) -> Message | None:
        """The message that the letter is about, from its topic; None if it is not there any more."""
        try:
            number, offset = int(_text(headers, PARTITION)), int(_text(headers, OFFSET))
            there = TopicPartition(_text(headers, TOPIC), number, offset)
            first, end = self._originals.get_watermark_offsets(there, _PATIENCE)
        except (ValueError, KafkaException):
            return None
        if not first <= offset < end:
            return None
        self._originals.assign([there])
        found = self._originals.consume(1, _PATIENCE)
        # A topic that was created again has another message in this place.
        is_it = found and found[0].error() is None and delivery_of(found[0], 1).id == _text(headers, DEAD_ID)
        return found[0] if is_it else None

    def _write(self, whole: Message, letter: Message, topic: str) -> None:
        names = dict(headers_of(letter))
        kept = [(name, value) for name, value in headers_of(whole) if name not in LETTERS]
        if whole is not letter:
            kept += [(name, names[name]) for name in (DEAD_ID, DEAD_CREATED_AT) if name in names]
        partition = _text(names, PARTITION)
        is_known = topic == _text(names, TOPIC) and partition.isdecimal()
        self._producer.produce(
            topic,
            whole.value(),
            whole.key(),
            int(partition) if is_known and int(partition) < self._size(topic) else -1,
            headers=kept,
            on_delivery=lambda error, _: None if error is None else self._errors.append(error),
        )

    def _size(self, topic: str) -> int:
        """How many partitions the topic has."""
        if topic not in self._sizes:
            found = self._consumer.list_topics(topic, _PATIENCE).topics[topic]
            self._sizes[topic] = len(found.partitions)
        return self._sizes[topic]


def _as_handled(whole: Message, letter: Message, topic: str) -> Delivery:
    """The message as its handler would get it."""
    found, id = delivery_of(whole, 1), _text(dict(headers_of(letter)), DEAD_ID)  # noqa: A001 - what it is
    return replace(found, id=id or found.id, topic=topic)


def _why(headers: Mapping[str, Any], whole: Message | None) -> str:
    """Why a letter cannot be moved back."""
    if whole is not None:
        return "it names no topic; give one with to="
    topic, partition, offset = (_text(headers, name) for name in (TOPIC, PARTITION, OFFSET))
    return f"a part of it was left out, and {topic} [{partition}] has the message no more at offset {offset}"


def _text(headers: Mapping[str, Any], name: str) -> str:
    return readable(headers.get(name) or "")
