"""The processes of the tests with several relays. Each function is the main function of a process."""

import logging
import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection as Pipe
from typing import Any, NoReturn

from sqlalchemy import URL, Connection, Engine, event, insert
from sqlalchemy.exc import DBAPIError

from inbox import Backoff, Delivery, Inbox, message_id
from inbox.kafka import KafkaConsumer
from inbox.rabbitmq import RabbitConsumer
from outbox import Envelope, Outcome, Publisher, Relay
from outbox.kafka import KafkaPublisher
from outbox.rabbitmq import RabbitPublisher
from tests.support.status_mode.worker import shift_clock

from .crashes import TAKEN, Post, arrivals, newest, open_engine, produce, take

QUICK = Backoff(first=0.1, longest=0.5)
NEVER_DEAD = 10_000
COMPLETION = r"(?s)(WITH .*)?DELETE .*outbox_message\b"
"""How the statement begins, on any database, that forgets messages."""
POINTS = (
    "before the batch is noted",
    "before the send",
    "inside the send",
    "before the completion is committed",
    "after the completion is committed",
)
"""Where a relay can die on the way of a message."""


def relay(pipe: Pipe, url: URL, name: str, lease: float) -> None:
    """Relay into the table of arrivals until SIGTERM. Sends a word when it begins, and when it has ended."""
    run_relay(pipe, url, Post(open_engine(url), name), name, lease)


def wrong_clock_relay(pipe: Pipe, url: URL, name: str, lease: float, minutes: float) -> None:
    """`relay` with a wall clock that is wrong."""
    shift_clock(minutes * 60)
    relay(pipe, url, name, lease)


def rabbit_relay(pipe: Pipe, url: URL, name: str, lease: float, rabbit: str, exchange: str) -> None:
    """`relay` into an exchange of RabbitMQ."""
    run_relay(pipe, url, RabbitPublisher(rabbit, exchange=exchange, timeout=lease / 2), name, lease)


def kafka_relay(pipe: Pipe, url: URL, name: str, lease: float, kafka: str) -> None:
    """`relay` into topics of Kafka."""
    run_relay(pipe, url, KafkaPublisher({"bootstrap.servers": kafka}, timeout=lease / 2), name, lease)


def run_relay(pipe: Pipe, url: URL, publisher: Publisher, name: str, lease: float) -> None:
    """`relay` into any publisher."""
    options: dict[str, Any] = {"backoff": QUICK, "poll": 0.1, "max_attempts": NEVER_DEAD}
    relay = Relay(open_engine(url), publisher, name=name, lease=lease, **options)
    with relay.stopping_on_sigterm():
        pipe.send("begun")
        relay.run()
    pipe.send("ended")


class Heard(logging.Handler):
    """A logging handler that sends each line to the test."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        self._pipe.send(record.getMessage())


class Halting(Post):
    """A publisher that first says how many messages it is about to send, and waits for permission."""

    def __init__(self, engine: Engine, name: str, pipe: Pipe) -> None:
        super().__init__(engine, name)
        self._pipe = pipe
        self._may_send = False

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Accept a batch."""
        if not self._may_send:
            self._pipe.send(len(batch))
            self._pipe.recv()
            self._may_send = True
        return super().send(batch)


def halting_relay(pipe: Pipe, url: URL, name: str, lease: float) -> None:
    """Relay until SIGTERM. Before the first send it sends the number of messages, and waits to be told to go
    on. It also sends the relay's log."""
    logging.getLogger("outbox.relay").addHandler(Heard(pipe))
    relay = Relay(open_engine(url), Halting(open_engine(url), name, pipe), name=name, lease=lease, poll=0.1)
    with relay.stopping_on_sigterm():
        relay.run()


def frozen_relay(pipe: Pipe, url: URL, lease: float) -> None:
    """Relay, but freeze in the transaction that records the first batch; say so before."""
    engine = open_engine(url)

    @event.listens_for(engine, "after_cursor_execute")
    def see(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE outbox_relay SET sending"):
            pipe.send("frozen")
            os.kill(os.getpid(), signal.SIGSTOP)

    Relay(engine, Post(open_engine(url), "frozen"), name="frozen", lease=lease).run()


def dying_relay(pipe: Pipe, url: URL, point: str) -> None:
    """Relay everything once, and die at a point."""
    engine = open_engine(url)
    if point == "before the batch is noted":
        _at_commit_with(engine, "UPDATE outbox_relay SET sending", die)
    elif point == "before the completion is committed":
        _at_commit_with(engine, COMPLETION, die)
    elif point == "after the completion is committed":
        # A connection comes back to the pool once its COMMIT has been answered.
        listen = lambda: event.listen(engine, "checkin", die)  # noqa: E731
        _at_commit_with(engine, COMPLETION, listen)
    Relay(engine, Dying(open_engine(url), point), name="dying").run_once()


class Dying(Post):
    """A publisher whose process dies before or after the broker has accepted the first batch."""

    concurrent = False
    """The outcomes of a batch are then written together."""

    def __init__(self, engine: Engine, point: str) -> None:
        super().__init__(engine, "dying")
        self._point = point

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Accept a batch, unless the process dies before."""
        if self._point == "before the send":
            die()
        outcomes = super().send(batch)
        if self._point == "inside the send":
            die()
        return outcomes


def producer(pipe: Pipe, url: URL, name: str, seed: int, transactions: int | None = None) -> None:
    """Publish in transactions, of which about every fourth is rolled back, with several messages of several
    keys in each. No other producer has these keys. Sends a word when it has ended, unless it publishes for
    ever."""
    chance = random.Random(seed)
    engine = open_engine(url)
    number = 0
    while transactions is None or number < transactions:
        number += 1
        keys = chance.sample([f"{name}-{each}" for each in range(6)], k=chance.randint(1, 3))
        numbers = range(10 * number, 10 * number + chance.randint(1, 3))
        try:
            with engine.connect() as connection:
                produce(connection, numbers, keys)
                if chance.random() < 0.75:
                    connection.commit()
        except DBAPIError:  # whether it was committed, the business rows will tell
            time.sleep(0.1)
        time.sleep(chance.uniform(0, 0.03))
    pipe.send("ended")


def hot_producer(pipe: Pipe, url: URL, name: str, seed: int, topics: Sequence[str]) -> None:
    """`producer` for ever, with many messages of one key in each transaction. A key has one topic."""
    chance = random.Random(seed)
    engine = open_engine(url)
    for number in count(step=100):
        key = chance.randrange(2 * len(topics))
        numbers = range(number, number + chance.randint(1, 40))
        try:
            with engine.connect() as connection:
                produce(connection, numbers, [f"{name}-{key}"], topics[key % len(topics)])
                if chance.random() < 0.75:
                    connection.commit()
        except DBAPIError:
            time.sleep(0.1)
        time.sleep(chance.uniform(0, 0.3))


def consumer(pipe: Pipe, url: URL) -> None:
    """Take arriving messages for ever, and some earlier ones again."""
    engine = open_engine(url)
    done: set[int] = set()
    while True:
        try:
            new = [copy for copy in arrivals(engine, newest(engine) - 300) if copy.n not in done]
            for copy in new:
                take(engine, copy)
                done.add(copy.n)
        except DBAPIError:
            time.sleep(0.1)
        time.sleep(0.02)


def rabbit_consumer(pipe: Pipe, url: URL, rabbit: str, queue: str) -> None:
    """Take messages from a queue of RabbitMQ for ever."""

    @Inbox("orders", wait=30).handler(open_engine(url), key=message_id)
    def handle(connection: Connection, delivery: Delivery) -> None:
        connection.execute(insert(TAKEN), {"key": delivery.key, "number": int(delivery.payload)})

    while True:
        with suppress(ConnectionError):  # it insists on a broker that is there when it begins
            RabbitConsumer(rabbit, queue, handle, backoff=QUICK).run()
        time.sleep(0.1)


def kafka_consumer(pipe: Pipe, url: URL, kafka: str, topics: Sequence[str]) -> None:
    """Take messages from topics of Kafka for ever."""

    @Inbox("orders", wait=30).handler(open_engine(url), key=message_id)
    def handle(connection: Connection, delivery: Delivery) -> None:
        connection.execute(insert(TAKEN), {"key": delivery.key, "number": int(delivery.payload)})

    config = {"bootstrap.servers": kafka, "group.id": "orders", "session.timeout.ms": 2_000}
    KafkaConsumer(config, topics, handle, backoff=QUICK).run()


def die(*_: object) -> NoReturn:
    """Kill this process, as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived kill -9")


def _at_commit_with(engine: Engine, statement: str, act: Callable[[], Any]) -> None:
    """Call a function before the first COMMIT of a transaction that executed this statement."""
    executed: list[Connection] = []

    @event.listens_for(engine, "after_cursor_execute")
    def see(connection: Connection, cursor: object, text: str, *_: object) -> None:
        if re.match(statement, text) and not executed:
            executed.append(connection)

    @event.listens_for(engine, "commit")
    def end(connection: Connection) -> None:
        if executed and executed[0] is connection:
            act()
