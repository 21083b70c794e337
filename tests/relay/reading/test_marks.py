"""PostgreSQL: relays store their marks with their buckets. The next relay starts there, and overlooks
nothing."""

import logging
import os
import signal
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, NullPool, Pool, QueuePool, create_engine, event, insert, update

from examples.embedded_postgres import EmbeddedPostgres
from inbox.schema import metadata
from inbox_outbox_base.databases.registry import relaying
from outbox import Outbox, Outcome, Refused, Relay, Unavailable, Unknown, pause, resume, retry_all
from outbox._relaying.members import Members
from outbox._relaying.reading import marks as stored
from outbox._relaying.reading.recheck import Recheck
from outbox._relaying.reading.scanning import Scanner
from outbox._relaying.report import Report
from outbox._relaying.rounds import Rounds
from outbox._relaying.sending.lanes import TopicLanes
from outbox._relaying.settings import RelaySettings
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    let_backoffs_end,
    marks,
    messages,
    publish,
    relay,
    waiting,
)
from tests.support.processes import wait_until
from tests.support.relay import crashes

MANY = 5 * BUCKETS


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays of this process store every mark that has moved, and tend their buckets all the time."""
    monkeypatch.setattr(stored, "FAR", 1)
    monkeypatch.setattr(RelaySettings, "tend_every", 0)


@pytest.fixture
def unaided(near: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `near`; moreover, nothing searches for overlooked messages."""
    monkeypatch.setattr(Recheck, "is_due", False)
    monkeypatch.setattr(Recheck, "sample", lambda *_: Counter())


def running(engine: Engine, publisher: Recorder, **options: Any) -> AbstractContextManager[None]:
    return crashes.running(Relay(engine, publisher, poll=0.02, **options))


def let_many_leave(database: Database) -> int:
    """Have messages of every bucket sent; return the highest mark afterwards."""
    engine = database.engine()
    publish(engine, *(f"-{number}" for number in range(MANY)))
    relay(database.engine(), Recorder())
    return max(marks(engine).values(), default=0)


def starts_of(engine: Engine) -> list[int]:
    """Where the scans on this engine start, from now on."""
    starts: list[int] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if "LATERAL" in statement and "lows" in parameters:
            starts.extend(map(int, parameters["lows"].strip("{}").split(",")))

    return starts


@pytest.mark.usefixtures("unaided")
@pytest.mark.parametrize("pool", [QueuePool, NullPool])
def test_the_next_relay_starts_there(postgres: Database, pool: type[Pool]) -> None:
    """The next relay reads nothing that was sent before, even if each transaction has a new connection."""
    engine = postgres.engine()
    assert let_many_leave(postgres) == MANY
    assert set(marks(engine).values()) == {MANY}
    assert len(marks(engine)) == BUCKETS
    other = postgres.engine(poolclass=pool)
    starts = starts_of(other)
    publish(engine, "a1", "a2")
    assert relay(other, Recorder()) == 2
    assert min(starts) >= MANY


@pytest.mark.usefixtures("unaided")
@pytest.mark.parametrize("fate", ["unavailable", "unknown", "held", "paused", "resumed"])
def test_unsent_messages_are_above_the_marks(postgres: Database, fate: str) -> None:
    """Whatever a message waits for, the marks stay below it, and the next relay finds it and those
    behind it."""
    engine = postgres.engine()
    outcome: dict[str, Outcome] = {"unknown": Unknown("no answer"), "held": Refused("no")}
    first = Recorder(lambda each: outcome.get(fate, Unavailable("away")) if each.key == "a" else ACCEPTED)
    options: dict[str, Any] = {"after_dead": "hold" if fate == "held" else "continue"}
    if fate == "paused":
        pause(engine, "slow")
    publish(engine, "a1", "a2", topic="slow")
    with running(engine, first, **options):
        if fate == "resumed":
            pause(engine, "slow")
        for _ in range(3):
            expected = len(first.accepted) + MANY
            publish(engine, *(f"-{number}" for number in range(MANY)))
            wait_until(lambda: len(first.accepted) == expected)  # noqa: B023 - it is called at once
        if fate == "resumed":
            resume(engine, "slow")
        wait_until(lambda: fate == "paused" or are_far(engine))
    assert list(waiting(engine)) == ["a1", "a2"]
    resume(engine, "slow")
    retry_all(engine, "held")
    let_backoffs_end(engine)
    last = Recorder()
    assert relay(postgres.engine(), last) == 2
    assert last.names == ["a1", "a2"]


def are_far(engine: Engine) -> bool:
    """Whether all buckets but one have marks, and the highest is above the first messages."""
    found = marks(engine)
    return len(found) >= BUCKETS - 1 and max(found.values()) >= MANY


@pytest.mark.usefixtures("unaided")
def test_a_transaction_that_is_at_work(postgres: Database) -> None:
    """A running transaction has drawn its sequences and commits after later messages were sent: the marks
    stay below them."""
    engine = postgres.engine()
    publisher = Recorder()
    with engine.connect() as slow:
        Outbox().publish_many(slow, messages(["a1", "a2"]))
        for _ in range(2):
            let_many_leave(postgres)
        slow.commit()
    marks(engine)
    assert relay(postgres.engine(), publisher) == 2
    assert publisher.names == ["a1", "a2"]


@pytest.mark.usefixtures("unaided")
def test_prepared_transactions_and_crashes() -> None:
    """The same holds for a prepared transaction that no connection belongs to any more. After a crash of the
    server, which may draw the lost sequences again, all new messages are sent."""
    with EmbeddedPostgres({"max_prepared_transactions": "4"}) as server:
        engine, quiet = create_engine(server.url), Outbox(wake=False)
        metadata.create_all(engine)
        others = messages(f"-{number}" for number in range(MANY))
        with engine.connect() as slow:
            quiet.publish_many(slow, messages(["a1", "a2"]))
            slow.exec_driver_sql("PREPARE TRANSACTION 'slow'")
            slow.invalidate()
        for _ in range(2):
            with engine.begin() as connection:
                quiet.publish_many(connection, others)
            relay(engine, Recorder())
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.exec_driver_sql("COMMIT PREPARED 'slow'")
        marks(engine)
        publisher = Recorder()
        assert relay(engine, publisher) == 2
        assert publisher.names == ["a1", "a2"]
        with engine.connect() as connection:  # no rows have these sequences any more
            quiet.publish_many(connection, others)
        relay(engine, Recorder())
        assert min(marks(engine).values()) == 3 * MANY + 2
        engine.dispose()
        kill_a_session(server)
        with engine.begin() as connection:
            quiet.publish_many(connection, others)
        marks(engine)
        assert relay(engine, Recorder()) == MANY
        engine.dispose()


def kill_a_session(server: EmbeddedPostgres) -> None:
    """Kill one session's process: the server ends all sessions and recovers without being restarted."""
    with server._connect() as killed, server._connect() as other:
        os.kill(killed.info.backend_pid, signal.SIGKILL)
        wait_until(lambda: _is_broken(other))
    wait_until(server._answers)


def _is_broken(connection: psycopg.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


STARTS_OVER = {
    "forgotten by hand": "UPDATE outbox_bucket SET mark = NULL; "
    "SELECT setval('outbox_message_sequence_seq', 1)",
    "truncated": "TRUNCATE outbox_message RESTART IDENTITY",
    "restarted": "ALTER SEQUENCE outbox_message_sequence_seq RESTART",
    "another server": "UPDATE outbox_bucket SET mark_origin = 'another server'; "
    "SELECT setval('outbox_message_sequence_seq', 1)",
    "set back": "SELECT setval('outbox_message_sequence_seq', 1)",
}


@pytest.mark.usefixtures("unaided")
@pytest.mark.parametrize("how", STARTS_OVER)
@pytest.mark.parametrize("runs", [False, True], ids=["no relay runs", "a relay runs"])
def test_numbers_that_start_over(postgres: Database, how: str, *, runs: bool) -> None:
    """After the sequence starts over, the earlier marks do not hold for the new values and are forgotten,
    even when the new values have grown beyond them. (If the sequence is set back, this is noticed only while
    they have not.)"""
    engine = postgres.engine()
    before = let_many_leave(postgres)
    first = Recorder()
    number = MANY // 2 if how == "set back" else 2 * MANY
    with running(engine, first) if runs else engine.connect():
        with engine.begin() as connection:
            connection.exec_driver_sql(STARTS_OVER[how])
        if runs and how == "set back":
            wait_until(lambda: max(marks(engine).values(), default=0) < before)
        publish(engine, *(f"-{each}" for each in range(number)))
        if runs:
            wait_until(lambda: len(first.accepted) == number)
    assert runs or relay(postgres.engine(), Recorder()) == number
    marks(engine)
    publish(engine, *(f"-{each}" for each in range(MANY)))
    assert relay(postgres.engine(), Recorder()) == MANY


@pytest.mark.usefixtures("near")
def test_a_relay_that_has_lost_a_bucket(postgres: Database) -> None:
    """A relay stores no mark in a bucket that it has lost."""
    engine = postgres.engine()
    settings = _settings()
    database = relaying("postgresql", TABLES)
    for epoch, expected in [(8, {}), (None, {}), (7, {0: 500})]:
        scanner = Scanner(settings, database, TopicLanes(100, 1))
        scanner.frontier.begin({0: 500})
        with engine.begin() as connection:
            connection.execute(update(TABLES.bucket).values(epoch=epoch))
            stored.Marks(database, scanner).tend(connection, 7, [])
        assert marks(engine) == expected


def test_numbers_that_have_grown_again(postgres: Database) -> None:
    """If the sequence was set back and has grown beyond the stored marks, but not beyond what a relay has
    seen, the relay forgets the marks."""
    engine = postgres.engine()
    database = relaying("postgresql", TABLES)
    scanner = Scanner(_settings(), database, TopicLanes(100, 1))
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT setval('outbox_message_sequence_seq', 400)")
        now = database.writers(connection)
        assert now is not None
        connection.execute(update(TABLES.bucket).values(epoch=7, mark=300, mark_origin=now.origin))
        scanner.frontier.record_writers(replace(now, highest=5_000))
        stored.Marks(database, scanner).tend(connection, 7, Members(TABLES).owned(connection, 7))
    assert marks(engine) == scanner.frontier.starts() == {}


@pytest.mark.usefixtures("near")
def test_the_last_transaction_on_a_new_connection(postgres: Database) -> None:
    """A relay does not store what it learned on another connection: it may no longer be true."""
    engine = postgres.engine()
    publish(engine, "a1")
    for is_new in (True, False):
        rounds = Rounds(_settings(), "postgresql", TopicLanes(100, 1))
        with engine.connect() as connection, engine.connect() as other:
            for step in (rounds.join, _round_of(rounds)):
                step(connection)
                connection.commit()
            last = other if is_new else connection
            rounds.end(last, Report())
            last.commit()
        assert bool(marks(engine)) is not is_new


def _round_of(rounds: Rounds) -> Any:
    return lambda connection: rounds.round(connection, Report())


def _settings() -> RelaySettings:
    return Relay(create_engine("postgresql+psycopg://nowhere/"), Recorder())._settings


def test_few_messages(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that sends few messages, or none, writes no marks."""
    monkeypatch.setattr(RelaySettings, "tend_every", 0)
    engine = postgres.engine()
    written: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("UPDATE outbox_bucket SET mark"):
            written.append(statement)

    publisher = Recorder()
    with running(engine, publisher):
        publish(engine, *(f"-{number}" for number in range(MANY)))
        wait_until(lambda: len(publisher.accepted) == MANY)
    assert not written
    monkeypatch.setattr(stored, "FAR", MANY)
    let_many_leave(postgres)
    assert marks(engine)


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("pool", [QueuePool, NullPool])
def test_a_message_below_them(
    postgres: Database, caplog: pytest.LogCaptureFixture, pool: type[Pool], *, once: bool
) -> None:
    """A row that was copied together with its sequence is found by every relay soon after it starts, and
    reported, even if each transaction has a new connection. Until it is sent, the mark stays below it."""
    engine = postgres.engine()
    let_many_leave(postgres)
    low = {"bucket": 0, "sequence": 7, "id": "copy", "payload": b"a1", "topic": "orders", "content_type": "x"}
    with engine.begin() as connection:
        connection.execute(insert(TABLES.message), low | {"key": "a"})
    publisher = Recorder(lambda _: Unavailable("away", 3_600))
    with caplog.at_level(logging.WARNING, "outbox.relay"):
        if once:
            relay(postgres.engine(poolclass=pool), publisher)
        else:
            with running(postgres.engine(poolclass=pool), publisher):
                wait_until(lambda: publisher.sent, timeout=20)
    assert publisher.names == ["a1"]
    assert "1 messages had been overlooked" in caplog.text
    assert marks(engine).get(0, 0) < 7
