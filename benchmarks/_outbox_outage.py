"""A broker outage: the sends during it, and the time the outbox takes to drain afterwards.

Millions of messages wait, and a producer goes on until the broker is back. The broker then checks that each
message arrives once, and in order for each key.
"""

import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any

from sqlalchemy import URL, create_engine, func, select

from outbox import Envelope, Message, Outbox, Outcome, Relay, Unavailable
from outbox.schema import tables

from ._measure import Grid, Report, figure
from ._outbox_lab import OutboxLab, running, settle
from ._outbox_peer import pace
from ._outbox_rows import ACCEPTED, TOPIC, fill_keys, key_of, number_of, numbered

_KEYS = 10_000
_PER_SECOND, _TOGETHER = 2_000, 20
"""Messages that the producer publishes per second, and in one transaction."""
_LIMIT = 3_600
"""The most seconds for the drain."""
_START = 60
"""The most seconds for a process to start, and to end."""
_CONTEXT = multiprocessing.get_context("spawn")


def outage(lab: OutboxLab) -> Report:
    """Sends during the outage, time to drain, and messages that came out of order or not at all."""
    pending, seconds = lab.sizes.outage_pending, lab.sizes.outage_seconds
    with lab.outbox("outage", connections=6) as engine:
        with lab.lab.step(f"filling an outbox with {pending:,} messages"):
            with engine.begin() as connection:
                fill_keys(connection, _KEYS, pending)
            settle(engine)
        broker = _Broker()
        with _producing(engine.url, pending) as producer, running(Relay(engine, broker)):
            with lab.lab.step(f"a broker that is away for {seconds:g} seconds"):
                time.sleep(seconds)
                messages = pending + producer.end()
            with lab.lab.step(f"draining {messages:,} messages"):
                drained = broker.drain(messages)
        with engine.connect() as connection:
            left = connection.execute(select(func.count()).select_from(tables().message)).scalar_one()
    missing = messages - len(broker.numbers)
    rows = [
        ["seconds away", f"{seconds:g}"],
        ["messages when it was back", f"{messages:,}"],
        ["sends while it was away", f"{broker.refused:,}"],
        ["seconds to drain", f"{drained:.1f}"],
        ["messages/s", f"{messages / drained:,.0f}"],
    ]
    return Report(
        [
            figure("messages that came out of order, or twice", [broker.misplaced], at_most=0),
            figure("messages that did not come, or stayed", [missing + left], at_most=0),
        ],
        [Grid("A broker that is away", ["what", ""], rows)],
    )


class _Broker:
    """A publisher whose broker is down at first; it remembers the last message of each key."""

    def __init__(self) -> None:
        self.refused = 0
        self.misplaced = 0
        self.numbers: set[int] = set()
        self._is_back = False
        self._wanted = 0
        self._last: dict[str | None, int] = {}
        self._done = threading.Event()

    def drain(self, messages: int) -> float:
        """End the outage; return the seconds until this many messages have come."""
        self._wanted = messages
        begun = time.perf_counter()
        self._is_back = True
        if not self._done.wait(_LIMIT):
            raise TimeoutError(f"{len(self.numbers)} of {messages} messages came in {_LIMIT} seconds")
        return time.perf_counter() - begun

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Accept all messages or none."""
        if not self._is_back:
            self.refused += len(batch)
            return [Unavailable("the broker is away")] * len(batch)
        for message in batch:
            number = number_of(message.payload)
            self.misplaced += number <= self._last.get(message.key, -1)
            self._last[message.key] = number
            self.numbers.add(number)
        if len(self.numbers) >= self._wanted:
            self._done.set()
        return [ACCEPTED] * len(batch)


class _Producer:
    """A process that publishes."""

    def __init__(self) -> None:
        self.begun, self.ended = _CONTEXT.Event(), _CONTEXT.Event()
        self.published: Any = _CONTEXT.Queue()

    def end(self) -> int:
        """Stop publishing; return the number of messages published."""
        self.ended.set()
        return int(self.published.get(timeout=_START))


@contextmanager
def _producing(url: URL, first: int) -> Iterator[_Producer]:
    """A producer that publishes from message `first` on, until it is ended or the block is left."""
    producer = _Producer()
    arguments = (url, first, producer.begun, producer.ended, producer.published)
    process = _CONTEXT.Process(target=_produce, args=arguments, daemon=True)
    process.start()
    try:
        if not producer.begun.wait(_START):
            raise RuntimeError("the producer did not start")
        yield producer
    finally:
        producer.ended.set()
        process.join(_START)


def _produce(url: URL, first: int, begun: Event, ended: Event, published: Any) -> None:
    """Publish messages from number `first` on until ended; then report how many there were."""
    engine, outbox = create_engine(url), Outbox()
    number = first

    def publish() -> None:
        nonlocal number
        numbers = range(number, number + _TOGETHER)
        messages = [Message(TOPIC, numbered(each), key_of(each, _KEYS)) for each in numbers]
        with engine.begin() as connection:
            outbox.publish_many(connection, messages)
        number += _TOGETHER

    publish()
    begun.set()
    transactions = _PER_SECOND // _TOGETHER
    while not ended.is_set():
        pace(transactions, transactions, publish)
    engine.dispose()
    published.put(number - first)
