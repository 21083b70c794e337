"""How little relays do when there is little to do: their transactions on a real server are counted."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, NullPool, Pool, QueuePool, event

from inbox_outbox_base.databases import member_statements
from outbox import Message, Outbox, Refused, Relay, Unavailable, pause, resume, retry, set_bucket_count
from outbox._operating.transact import transact
from outbox._relaying.members import Members
from outbox._relaying.reading import backlog
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import ACCEPTED, TABLES, Recorder, count, publish
from tests.support.processes import wait_until
from tests.support.relay.crashes import engine_of, is_shared, ownership, running
from tests.support.relay.servers import NAMES, server  # noqa: F401 - where its databases are

SELDOM = 600
"""Seconds: with this `poll` and this lease, relays do nothing in a test unless they are woken or have to."""
QUIET = 1.5
"""Seconds without a transaction after which a relay is idle: longer than it keeps looking after a wake-up."""
KEYS = "abcdefghij"


class Counter:
    """Counts the transactions of some engines, and their statements that contain a certain word."""

    def __init__(self, word: str = "pg_locks") -> None:
        self.transactions = self.statements = 0
        self.word = word
        self._last = time.monotonic()

    def watch(self, engine: Engine) -> Engine:
        """Count the transactions of this engine from now on."""
        event.listen(engine, "commit", self._ended)
        event.listen(engine, "rollback", self._ended)
        event.listen(engine, "after_cursor_execute", self._executed)
        return engine

    def until_idle(self) -> None:
        """Wait until no transaction has ended for a while; then count from zero."""
        wait_until(lambda: time.monotonic() > self._last + QUIET)
        self.transactions = self.statements = 0

    def _ended(self, _: Connection) -> None:
        self.transactions += 1
        self._last = time.monotonic()

    def _executed(self, _: Connection, __: object, statement: str, *___: object) -> None:
        self.statements += self.word in statement


class Idle:
    """Relays that poll rarely, and the counter of their transactions."""

    def __init__(self, database: Database, number: int, **options: Any) -> None:
        self.counter = Counter()
        self.publishers = [Recorder() for _ in range(number)]
        chosen = {"poll": SELDOM, "lease": SELDOM} | options
        engines = [self.counter.watch(engine_of(database)) for _ in range(number)]
        self.relays = [Relay(*each, **chosen) for each in zip(engines, self.publishers, strict=True)]

    def have_sent(self, number: int) -> bool:
        """Whether the relays have sent this many messages."""
        return sum(len(publisher.accepted) for publisher in self.publishers) == number


@contextmanager
def idle(database: Database, number: int, **options: Any) -> Iterator[Idle]:
    """Run this many relays during the block; they share the buckets and have nothing to do."""
    relays = Idle(database, number, **options)
    with running(*relays.relays):
        wait_until(lambda: is_shared(database.engine(), number))
        relays.counter.until_idle()
        yield relays


def elsewhere(database: Database) -> Engine:
    """An engine whose commits wake relays of this process with a NOTIFY, as another process would."""
    return database.engine_at(database.url.update_query_dict({"application_name": "elsewhere"}))


@pytest.mark.parametrize(("poll", "most"), [(60, 1), (1, 5)])
@on("postgresql")
def test_an_idle_relay(migrated: Database, poll: float, most: int) -> None:
    """An idle relay runs one transaction each time it polls. With `poll=60` and a lease of 30 seconds that is
    at most one in ten seconds."""
    relays = Idle(migrated, 1, poll=poll, lease=30)
    with running(*relays.relays):
        wait_until(lambda: is_shared(migrated.engine(), 1))
        time.sleep(1)
        relays.counter.transactions = 0
        time.sleep(4)
        assert relays.counter.transactions <= most


@pytest.mark.parametrize(
    ("where", "number"),
    [
        (elsewhere, 20),
        (Database.engine, 1),
        pytest.param(elsewhere, 1, marks=pytest.mark.long),
        pytest.param(Database.engine, 20, marks=pytest.mark.long),
    ],
)
def test_transactions_of_a_message(
    postgres: Database, where: Callable[[Database], Engine], number: int
) -> None:
    """Only the relay that owns a message's bucket wakes up, and it stops looking once it has found the
    message: a few transactions for each message, however many relays there are."""
    engine = where(postgres)
    with idle(postgres, number) as relays:
        for sent, key in enumerate(KEYS, 1):
            publish(engine, f"{key}1")
            wait_until(lambda: relays.have_sent(sent))  # noqa: B023 - it is called immediately
            time.sleep(0.2)  # a relay looks eight times in this time after a wake-up
        assert relays.counter.transactions <= 5 * len(KEYS)


def test_a_look_that_finds_a_message_scans_once(postgres: Database) -> None:
    """A relay that is woken scans its buckets, and after it has locked its lease reads only what it sends."""
    with idle(postgres, 1) as relays:
        relays.counter.word = "LATERAL"
        for sent, key in enumerate(KEYS, 1):
            publish(elsewhere(postgres), f"{key}1")
            wait_until(lambda: relays.have_sent(sent))  # noqa: B023 - it is called immediately
        # The last transaction may still be open.
        wait_until(lambda: relays.counter.statements <= relays.counter.transactions)
        assert len(KEYS) <= relays.counter.statements


@pytest.mark.long
def test_more_buckets_than_a_notification_can_name(postgres: Database) -> None:
    """A notification for more buckets than it can list contains none, and wakes every relay."""
    buckets = 4_096
    set_bucket_count(postgres.engine(), buckets)
    with idle(postgres, 2) as relays:
        with elsewhere(postgres).begin() as connection:
            Outbox().publish_many(connection, [Message("t", b"", f"{key}") for key in range(2 * buckets)])
        wait_until(lambda: relays.have_sent(2 * buckets))


def test_a_delayed_message(migrated: Database) -> None:
    """A delayed message is sent when it is due, even if its relay polls much later."""
    with idle(migrated, 1) as relays:
        _delay_until_sent(migrated.engine(), relays)


def test_a_delayed_message_of_another_process(postgres: Database) -> None:
    """The same for a message published by another process: a notification tells the relays."""
    with idle(postgres, 3) as relays:
        _delay_until_sent(elsewhere(postgres), relays)


def _delay_until_sent(engine: Engine, relays: Idle) -> None:
    """Publish until a message is sent: a wake-up may come too early for a commit that takes long."""

    def is_sent() -> bool:
        publish(engine, "a1", delay=0.5)
        with suppress(AssertionError):
            wait_until(lambda: not relays.have_sent(0), timeout=10)
        return not relays.have_sent(0)

    wait_until(is_sent)


def test_relays_that_come_and_go(postgres: Database) -> None:
    """A relay that joins gets its share, and the buckets of one that leaves go to the others, long before any
    of them polls."""
    engine = postgres.engine()
    with idle(postgres, 2):
        with running(*Idle(postgres, 1).relays):
            wait_until(lambda: is_shared(engine, 3))
        wait_until(lambda: is_shared(engine, 2))


def test_a_relay_that_is_lost(migrated: Database) -> None:
    """A relay takes the buckets that another one gives up, and the rest when the other one's lease expires,
    long before it polls."""
    engine, members = engine_of(migrated), Members(TABLES)
    join = partial(members.join, name="lost", lease=SELDOM, generation=1, keeps_sent=True)
    lost = transact(engine, TABLES, join)
    balance = partial(members.balance, epoch=lost, busy=())
    transact(engine, TABLES, balance)
    assert ownership(engine) == {lost: BUCKETS}
    with running(*Idle(migrated, 1).relays):
        wait_until(lambda: count(engine, TABLES.relay) == 2)
        transact(engine, TABLES, balance)
        wait_until(lambda: is_shared(engine, 2))
        renewal = {"epoch_": lost, "generation_": 1, "lease": 3}
        transact(engine, TABLES, lambda each: each.execute(member_statements.renew(TABLES), renewal))
        # Wakes the relay, which then reads the other's lease.
        publish(engine, *(f"{key}1" for key in KEYS), delay=SELDOM)
        wait_until(lambda: is_shared(engine, 1))


def test_relays_notice_operators(postgres: Database) -> None:
    """Relays notice a pause, its end and a retry long before they poll."""
    engine = postgres.engine()
    with idle(postgres, 1) as relays:
        [publisher] = relays.publishers
        pause(engine)
        wait_until(lambda: relays.counter.transactions)
        [message] = publish(engine, "a1")
        time.sleep(0.5)
        assert publisher.batches == []
        publisher.answer = lambda _: Refused("no")
        resume(engine)
        wait_until(lambda: count(engine, TABLES.dead) == 1)
        publisher.answer = lambda _: ACCEPTED
        retry(engine, message)
        wait_until(lambda: relays.have_sent(1))


@pytest.mark.quick("sqlite")
@spread("pool", [QueuePool, NullPool], where=NAMES)
def test_a_topic_that_is_not_taken(
    migrated: Database, monkeypatch: pytest.MonkeyPatch, pool: type[Pool]
) -> None:
    """A relay is idle until it retries a rejected topic, even if a scan reads the topic's first message
    again (because the relay knows more messages than a scan leaves out, or each transaction has a new
    connection)."""
    monkeypatch.setattr(backlog, "_MOST_ABOVE", 1)
    counter = Counter()
    engine = counter.watch(migrated.engine(poolclass=pool))
    publish(engine, "a1", "a2", "a3")
    publisher = Recorder(lambda _: Unavailable("away", retry_after=3_600))
    with running(Relay(engine, publisher, poll=SELDOM, lease=SELDOM)):
        wait_until(lambda: publisher.sent)
        counter.until_idle()
    assert publisher.names == ["a1"]


def test_scans_do_not_read_sent_messages_again(postgres: Database) -> None:
    """While messages are sent, a relay asks every second which transactions are writing, however rarely it
    polls, so that scans start behind what was sent."""
    engine = postgres.engine()
    with idle(postgres, 1) as relays:
        end = time.monotonic() + 3.5
        while time.monotonic() < end:
            publish(engine, "a1")
        assert relays.counter.statements >= 2
