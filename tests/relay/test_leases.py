"""A relay's lease: it is renewed in time, and a relay that loses it does no harm."""

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import pytest
from sqlalchemy import Engine, create_engine, delete, event, select, update
from sqlalchemy.exc import OperationalError

from outbox import Envelope, Message, Outbox, Outcome, Relay
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import TABLES, Recorder, count, publish
from tests.support.processes import Worker, wait_until, workers
from tests.support.proxy import TcpProxy
from tests.support.relay.crashes import (
    METADATA,
    Paused,
    arrivals,
    assert_exact,
    engine_of,
    is_shared,
    ownership,
    produce,
    running,
    take,
)
from tests.support.relay.servers import server  # noqa: F401 - where its databases are
from tests.support.relay.worker import frozen_relay, halting_relay, relay, wrong_clock_relay
from tests.support.together import Task

KEYS = [f"key-{number}" for number in range(16)]
LEASE = 3.0
"""Seconds: short enough for a test to wait for its end, long enough for a running relay to renew it."""


class Long(Recorder):
    """A publisher that takes the given number of seconds for a batch."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self.begun = threading.Event()

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Accept a batch."""
        self.begun.set()
        time.sleep(self._seconds)
        return super().send(batch)


@on("postgresql")
def test_a_lease_is_renewed_while_a_send_takes_longer(migrated: Database) -> None:
    """A send takes twice as long as the lease. No other relay gets the buckets meanwhile, and the message is
    sent once."""
    engine = engine_of(migrated)
    publish(engine, "a1")
    slow, other = Long(2 * LEASE), Recorder()
    with running(Relay(engine_of(migrated), slow, lease=LEASE)):
        assert slow.begun.wait(60)
        with running(Relay(engine_of(migrated), other, lease=LEASE)):
            owner = ownership(engine)
            wait_until(lambda: count(engine, TABLES.message) == 0)
            assert (slow.names, other.names) == (["a1"], [])
            assert owner.total() == owner.most_common(1)[0][1] == BUCKETS
            wait_until(lambda: is_shared(engine, 2))


class Timed(Paused):
    """A publisher that declares how many seconds a send can take."""

    timeout: ClassVar[float] = LEASE - 1


@on("postgresql", "mariadb")
def test_no_send_begins_that_could_outlast_the_lease(
    migrated: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Once less of the lease is left than a send can take, a relay that cannot renew it sends nothing: not
    even the second message of a batch whose first one was accepted."""
    publish(engine_of(migrated), "a1", "a2", "a3")
    publisher = Timed()
    address = migrated.url
    with TcpProxy(str(address.host), address.port or 0) as proxy:
        engine = create_engine(address.set(host="127.0.0.1", port=proxy.port))
        relay = Relay(engine, publisher, lease=LEASE)
        task = Task(relay.run)
        assert publisher.begun.wait(60)
    try:
        time.sleep(LEASE - publisher.timeout + 0.5)
        publisher.may_end.set()
        wait_until(lambda: publisher.names and "does not answer" in caplog.text)
        assert publisher.names == ["a1"]
    finally:
        relay.stop()
        task.result()
        engine.dispose()


def test_a_relay_that_reads_no_more(postgres: Database) -> None:
    """A relay stops reading while PostgreSQL is sending it a batch, as if it were frozen or its machine were
    gone. Once its lease has expired, the others take its buckets and send its messages."""
    engine = engine_of(postgres)
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message("t", b"x" * 900_000) for _ in range(16)])
    address, other = postgres.url, Recorder()
    with TcpProxy(str(address.host), address.port or 0) as proxy:
        proxy.stall_on(lambda sent: b"outbox_message.sequence, outbox_message.payload" in sent)
        still_engine = create_engine(address.set(host="127.0.0.1", port=proxy.port))
        still = Relay(still_engine, Recorder(), lease=LEASE)
        task = Task(still.run)
        assert proxy.was_cut.wait(60)
        with running(Relay(engine, other, lease=LEASE)):
            wait_until(lambda: len(other.accepted) == 16)
        still.stop()
    task.result()
    still_engine.dispose()


def freeze_at_rest(process: Worker, database: Database, name: str) -> None:
    """Freeze a relay while it holds no locks: otherwise nobody else could write on SQLite, and on MariaDB its
    rows would stay locked until its connection ends."""
    options: dict[str, Any] = {"connect_args": {"timeout": 0.5}} if database.name == "sqlite" else {}
    engine, its_row = database.engine(**options), TABLES.relay.c.name == name
    while True:
        process.freeze()
        try:
            with engine.begin() as connection:
                connection.execute(select(TABLES.relay).where(its_row).with_for_update(nowait=True)).all()
                connection.execute(update(TABLES.relay).where(its_row).values(name=name))
        except OperationalError:
            process.thaw()
        else:
            return


def test_a_relay_that_was_frozen_changes_nothing(migrated: Database) -> None:
    """One of three relays is frozen past its lease during a send, and continues while the others are sending
    the same messages. Its outcomes change no message, it logs this, and it joins again. The messages of each
    key arrive in order, including the frozen relay's copies, and each is processed once."""
    engine = engine_of(migrated)
    METADATA.create_all(engine)
    with engine.begin() as connection:
        produce(connection, range(1, 4), KEYS)
    with workers((halting_relay, migrated.url, "frozen", LEASE)) as (frozen,):
        assert hear_number(frozen) == len(KEYS)
        names = ("second", "third")
        with workers(*((halting_relay, migrated.url, name, LEASE) for name in names)) as others:
            wait_until(lambda: count(engine, TABLES.relay) == 3)
            freeze_at_rest(frozen, migrated, "frozen")
            heard: list[Any] = []

            def are_all_being_sent() -> bool:
                heard.extend(other.hear() for other in others if other.has_spoken)
                return sum(each for each in heard if isinstance(each, int)) == len(KEYS)

            wait_until(are_all_being_sent)
            before = messages(engine)
            frozen.tell()
            frozen.thaw()
            wait_until(lambda: f"could not record {len(KEYS)} sent messages" in frozen.hear())
            assert messages(engine) == before
            for other in others:
                other.tell()
            wait_until(lambda: count(engine, TABLES.message) == 0)
            wait_until(lambda: is_shared(engine, 3))
            for each in (frozen, *others):
                each.terminate()
            assert [each.exit_code() for each in (frozen, *others)] == [0, 0, 0]
    copies = arrivals(engine)
    assert sorted(copy.attempt for copy in copies if copy.number == 1) == [1] * len(KEYS) + [2] * len(KEYS)
    for copy in copies:
        take(engine, copy)
    assert_exact(engine)


def hear_number(worker: Worker) -> int:
    """How many messages a relay is about to send; skips what it logs before."""
    while not isinstance(heard := worker.hear(), int):
        pass
    return heard


def messages(engine: Engine) -> list[tuple[Any, ...]]:
    """All rows of messages, with all columns. (Buckets are not compared: a relay that has joined again gets
    its share.)"""
    query = select(TABLES.message).order_by(*TABLES.message.primary_key)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]


def test_a_relay_that_is_frozen_in_a_transaction_keeps_nothing(postgres: Database) -> None:
    """A relay is frozen while its own transaction locks its row. Once its lease has expired, the server ends
    that transaction, and others take the buckets."""
    engine = engine_of(postgres)
    METADATA.create_all(engine)
    with engine.begin() as connection:
        produce(connection, [1, 2], KEYS)
    with workers((frozen_relay, postgres.url, LEASE)) as (frozen,):
        assert frozen.hear() == "frozen"
        with workers((relay, postgres.url, "other", LEASE)):
            wait_until(lambda: count(engine, TABLES.message) == 0)
        frozen.thaw()
    for copy in arrivals(engine):
        take(engine, copy)
    assert_exact(engine)


@on("postgresql", "mariadb", "sqlite")
def test_a_transaction_that_outlasts_the_lease_keeps_the_buckets(migrated: Database) -> None:
    """A relay's transaction has renewed the lease, and then waits for longer than that. The relay does not
    take itself for lost: it keeps its buckets, and sends what comes later."""
    engine, relaying, publisher = engine_of(migrated), engine_of(migrated), Recorder()
    waits: list[float] = []
    waited = threading.Event()

    @event.listens_for(relaying, "after_cursor_execute")
    def wait(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if waits and statement.lstrip().startswith("UPDATE outbox_relay SET lease_until"):
            time.sleep(waits.pop())
            if not waits:
                waited.set()

    with running(Relay(relaying, publisher, lease=1)):
        wait_until(lambda: is_shared(engine, 1))
        waits += [1.5, 1.5]
        assert waited.wait(30)
        publish(engine, *KEYS)
        wait_until(lambda: count(engine, TABLES.message) == 0)
        wait_until(lambda: is_shared(engine, 1))
    assert sorted(publisher.names) == sorted(KEYS)


@on("postgresql", "mariadb", "sqlite")
def test_a_relay_whose_row_was_deleted_by_hand(migrated: Database) -> None:
    """The relay joins again, and takes the buckets that carry its old epoch."""
    engine, publisher = engine_of(migrated), Recorder()
    with running(Relay(engine_of(migrated), publisher)):
        wait_until(lambda: is_shared(engine, 1))
        with engine.begin() as connection:
            connection.execute(delete(TABLES.relay))
        publish(engine, *KEYS)
        wait_until(lambda: count(engine, TABLES.message) == 0)
        wait_until(lambda: is_shared(engine, 1))
    assert sorted(publisher.names) == sorted(KEYS)


@on("postgresql")
def test_relays_whose_clocks_are_wrong_agree(migrated: Database) -> None:
    """Two relays whose clocks are two hours apart share the buckets for longer than a lease, and neither is
    taken for lost. When one is frozen, the other takes over as if its clock were right."""
    engine = engine_of(migrated)
    METADATA.create_all(engine)
    slow, fast = ((wrong_clock_relay, migrated.url, f"{minutes}", LEASE, minutes) for minutes in (-60, 60))
    with workers(slow, fast) as (frozen, _):
        wait_until(lambda: is_shared(engine, 2))
        owned = ownership(engine)
        time.sleep(LEASE + 1)
        assert ownership(engine) == owned
        freeze_at_rest(frozen, migrated, "-60")
        with engine.begin() as connection:
            produce(connection, [1, 2], KEYS)
        wait_until(lambda: count(engine, TABLES.message) == 0)
        assert is_shared(engine, 1)
        frozen.thaw()
    for copy in arrivals(engine):
        take(engine, copy)
    assert_exact(engine)
