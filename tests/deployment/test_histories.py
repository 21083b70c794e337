"""The database goes back to an earlier state, or is replaced by a copy, while relays and programs run."""

from collections import Counter
from collections.abc import Iterator
from itertools import count as numbers
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine, insert, text
from sqlalchemy.exc import DBAPIError

import outbox
from inbox_outbox_base.transactions import memories
from outbox import Relay, Unavailable
from outbox._relaying import strays
from outbox.errors import UnsafeSequence
from tests.deployment.test_standby import Pair
from tests.deployment.test_standby import pair as pair  # a fixture
from tests.support.database import Database, make_tables
from tests.support.outbox_publishers import TABLES, Recorder, count, names_of, publish
from tests.support.processes import wait_until
from tests.support.relay.crashes import running
from tests.support.replication import MariaDBPair, Primary
from tests.support.together import Task

KEYS = "abcdefgh"


def lose_a_change(engine: Engine, idle: Engine, servers: Any, fail_over: Any) -> None:
    """Fail over while two relays run, and lose a change of the number of buckets. `idle` has no connection
    that could break."""
    names = (f"{KEYS[number % 8]}{number:03}" for number in numbers(100))
    publishers = Recorder(), Recorder()
    with running(*(Relay(engine, each, poll=0.1, lease=5) for each in publishers)):
        wait_until(lambda: outbox.status(engine).unowned == 0 and len(outbox.status(engine).relays) == 2)
        servers.wait_for_standby()
        with servers.cut_off():
            outbox.set_bucket_count(engine, 7)
            for each in (engine, idle) * 10:
                publish(each, next(names))
            wait_until(lambda: count(engine, TABLES.message) == 0)
            fail_over()
        expected = [next(names) for _ in range(80)]
        for number, name in enumerate(expected):
            publish_until_it_works(idle if number < 40 else engine, name)
        wait_until(lambda: count(engine, TABLES.message) == 0)
    sent = Counter(name for each in publishers for name in names_of(each.sent))
    assert {name: sent[name] for name in expected} == dict.fromkeys(expected, 1)
    assert outbox.status(engine).buckets == 64
    assert outbox.is_drained(engine)


def publish_until_it_works(engine: Engine, name: str) -> None:
    """Publish a message; a pool first has to lose its broken connections."""
    for _ in range(30):
        try:
            publish(engine, name)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        else:
            return


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays look often for messages in buckets that do not exist."""
    monkeypatch.setattr(strays, "_EVERY", 0.5)


@pytest.fixture
def mariadb_pair() -> Iterator[MariaDBPair]:
    with MariaDBPair() as servers:
        make_tables(servers.url)
        yield servers


@pytest.mark.usefixtures("often")
def test_a_standby_without_the_last_transactions(pair: Pair) -> None:
    """The messages that are published after the failover are sent once, also those of a program that still
    believes the lost number of buckets."""
    primary = pair.engine()
    idle = create_engine(primary.url, poolclass=NullPool)
    lose_a_change(primary, idle, pair.primary, pair.fail_over)


@pytest.mark.long
@pytest.mark.usefixtures("often")
def test_a_replica_without_the_last_transactions(mariadb_pair: MariaDBPair) -> None:
    """The same on MariaDB, whose replica numbers new messages as the lost ones."""
    engine = mariadb_pair.engine(pool_size=20)
    lose_a_change(engine, mariadb_pair.engine(poolclass=NullPool), mariadb_pair, mariadb_pair.fail_over)
    engine.dispose()


@pytest.mark.long
def test_a_logical_copy() -> None:
    """A subscriber has the waiting messages of its publisher, but not the sequence: a relay refuses to start,
    with the statement that repairs it."""
    with Primary({"wal_level": "logical", "fsync": "off"}) as server:
        engine = create_engine(server.url)
        make_tables(server.url)
        publish(engine, "a1", "a2", "b1")
        do(engine, "CREATE PUBLICATION outbox FOR TABLE outbox_message")
        do(engine, "CREATE DATABASE copied")
        do(engine, "SELECT pg_create_logical_replication_slot('outbox', 'pgoutput')")
        there = server.url.set(database="copied")
        make_tables(there)
        copy = create_engine(there)
        at = f"host=127.0.0.1 port={server.port} user=postgres dbname={server.url.database}"
        do(
            copy,
            f"CREATE SUBSCRIPTION outbox CONNECTION '{at}' PUBLICATION outbox "
            "WITH (create_slot = false, slot_name = 'outbox')",
        )
        wait_until(lambda: count(copy, TABLES.message) == 3)
        publisher = Recorder()
        with pytest.raises(UnsafeSequence, match="is at 0, but there are rows up to 3") as raised:
            Relay(copy, publisher).run_once()
        do(copy, "DROP SUBSCRIPTION outbox")
        do(copy, str(raised.value).partition("run ")[2].partition(",")[0] + ", 3)")
        publish(copy, "a3")
        assert Relay(copy, publisher).run_once() == 4
        assert publisher.of("a") == ["a1", "a2", "a3"]
        for each in (engine, copy):
            each.dispose()


def test_rows_that_are_copied_above_the_sequence(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are copied with numbers that the sequence will draw later: `check` names the repair, and a running
    relay ends with the same error, within a minute."""
    monkeypatch.setattr(memories, "BELIEVED", 0.5)
    engine = postgres.engine()
    publisher = Recorder({"a1": [Unavailable("away")] * 1_000})
    task = Task(Relay(engine, publisher, poll=0.02).run)
    publish(engine, "b1")
    wait_until(lambda: publisher.of("b"))
    with engine.begin() as connection:
        given = {"bucket": 0, "sequence": 7, "id": "copied", "topic": "orders"}
        connection.execute(insert(TABLES.message), given | {"payload": b"a1", "content_type": "x"})
    with pytest.raises(UnsafeSequence, match="is at 1, but there are rows up to 7") as raised:
        task.result()
    refused = {each.what: each.why for each in outbox.check(engine).findings if each.result == "refused"}
    assert refused == {"the sequence": str(raised.value)}


def do(engine: Engine, statement: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(statement))
