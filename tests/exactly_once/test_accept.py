"""The verdicts of `accept` and `accept_many` inside the caller's own transaction, on every database."""

import time
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, event, insert, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from inbox import Inbox, Retention, SqlStore, Verdict, migration
from inbox.errors import TransactionAborted, UnusableConnection
from inbox.schema import tables
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import BOTH_MYSQL, SYNC, on
from tests.support.status_mode.stores import status_inbox

pytestmark = pytest.mark.mysql

NEW, DUPLICATE, MISMATCH = Verdict.NEW, Verdict.DUPLICATE, Verdict.MISMATCH
MESSAGE = tables().message


def backdate(connection: Connection, consumer: str, key: str, age: timedelta) -> None:
    """Insert a row that was accepted `age` ago."""
    row = {"consumer": consumer, "key": key, "claim": bytes(16), "accepted_at": datetime.now(UTC) - age}
    connection.execute(insert(MESSAGE), row)


@on(*SYNC)
def test_a_message_is_new_once(migrated: Database) -> None:
    """The first delivery is NEW and all later ones are DUPLICATE, in the same transaction and in later
    ones."""
    inbox, engine = Inbox("billing"), migrated.engine()
    with engine.begin() as connection:
        assert [inbox.accept(connection, "a") for _ in range(2)] == [NEW, DUPLICATE]
    with engine.begin() as connection:
        assert inbox.accept(connection, "a") is DUPLICATE


def test_only_a_new_message_is_true(sqlite: Database) -> None:
    """An `if` that forgets to name the verdict runs no duplicate, whatever the message was taken with."""
    inbox, status, engine = Inbox("billing"), status_inbox(SqlStore(sqlite.engine())), sqlite.engine()
    effects = []
    for _ in range(2):
        with engine.begin() as connection:
            if inbox.accept(connection, "a"):
                effects.append("accept")
            if inbox.take(connection, "b"):
                effects.append("take")
        with Inbox("billing", on_refusal="return").transaction(engine, "c") as work:
            if work:
                effects.append("transaction")
        with status.claim("d") as claim:
            if claim:
                effects.append("claim")
    assert effects == ["accept", "take", "transaction", "claim"]
    assert not any(verdict for verdict in Verdict if verdict is not NEW)


@on(*SYNC)
def test_a_savepoint_takes_its_rows_with_it(migrated: Database) -> None:
    """Rolling back a savepoint forgets the messages accepted inside it; the transaction goes on."""
    inbox, engine = Inbox("billing"), migrated.engine()
    with engine.begin() as connection:
        inbox.accept(connection, "kept")
        savepoint = connection.begin_nested()
        inbox.accept(connection, "dropped")
        savepoint.rollback()
    with engine.begin() as connection:
        assert inbox.accept_many(connection, ["kept", "dropped"]) == [DUPLICATE, NEW]


@on(*SYNC)
def test_many_keys_get_a_verdict_each(migrated: Database) -> None:
    """Verdict i belongs to key i; a key that repeats in the batch is NEW only the first time."""
    inbox, engine = Inbox("billing"), migrated.engine()
    with engine.begin() as connection:
        inbox.accept(connection, "known")
    with engine.begin() as connection:
        verdicts = inbox.accept_many(connection, ["z", "known", "a", "z", ("t", 1), "a"])
        assert verdicts == [NEW, DUPLICATE, NEW, DUPLICATE, NEW, DUPLICATE]
        assert inbox.accept_many(connection, []) == []


@on(*SYNC)
def test_a_batch_may_be_large(migrated: Database) -> None:
    """One call takes 12,000 keys, although a single statement cannot hold that many."""
    inbox, engine = Inbox("billing"), migrated.engine()
    keys = [f"key-{number}" for number in range(12_000)]
    with engine.begin() as connection:
        assert set(inbox.accept_many(connection, keys[:7_000])) == {NEW}
        verdicts = inbox.accept_many(connection, keys)
    assert verdicts == [DUPLICATE] * 7_000 + [NEW] * 5_000


PAYLOADS: list[tuple[object, object, Verdict]] = [
    (b"abc", b"abc", DUPLICATE),
    (b"abc", b"abd", MISMATCH),
    ("abc", b"abc", DUPLICATE),
    ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, DUPLICATE),
    ({"a": 1}, {"a": 2}, MISMATCH),
    (None, b"abc", DUPLICATE),
    (b"abc", None, DUPLICATE),
]


@on(*SYNC)
def test_the_same_key_with_another_payload(migrated: Database) -> None:
    """The same key with another payload is MISMATCH, never run and never silently dropped."""
    inbox, engine = Inbox("billing"), migrated.engine()
    for number, (first, second, verdict) in enumerate(PAYLOADS):
        with engine.begin() as connection:
            assert inbox.accept(connection, number, first) is NEW
        with engine.begin() as connection, case((first, second)):
            assert inbox.accept(connection, number, second) is verdict


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("takes_more", [False, True])
def test_an_error_that_the_caller_swallows(postgres: Database, many: bool, takes_more: bool) -> None:
    """It has aborted the transaction: the COMMIT raises, where PostgreSQL would only roll back."""
    inbox, engine = Inbox("billing"), postgres.engine()

    def deliver() -> None:
        with Session(engine) as session, session.begin():
            assert (inbox.accept_many(session, ["a"]) if many else [inbox.accept(session, "a")]) == [NEW]
            with suppress(DBAPIError), session.begin_nested() if takes_more else nullcontext():
                session.execute(text("SELECT 1 / 0"))
            if takes_more:  # the savepoint has kept the transaction
                inbox.accept(session, "b")
                with suppress(DBAPIError):
                    session.execute(text("SELECT 1 / 0"))

    for _ in range(2):
        with pytest.raises(TransactionAborted):
            deliver()
    with engine.begin() as connection:
        assert inbox.accept_many(connection, ["a", "b"]) == [NEW, NEW]
        with suppress(DBAPIError), connection.begin_nested():
            connection.execute(text("SELECT 1 / 0"))
    with engine.begin() as connection:
        assert inbox.accept(connection, "a") is DUPLICATE


@pytest.mark.parametrize(
    "sql", ["CREATE TEMP TABLE step (a INT) ON COMMIT DROP", "DO $$ BEGIN PERFORM 1; END $$"]
)
def test_an_error_after_a_text(postgres: Database, sql: str) -> None:
    """A text whose words may begin another transaction takes nothing from that."""
    connection = postgres.engine().connect()
    assert Inbox("billing").accept(connection, "a") is NEW
    connection.execute(text(sql))
    with suppress(DBAPIError):
        connection.execute(text("SELECT 1 / 0"))
    with pytest.raises(TransactionAborted):
        connection.commit()


def test_an_error_before_a_commit_in_one_phase(postgres: Database) -> None:
    """The same of a transaction that was to have two phases; the connection is free for the next one."""
    with postgres.engine().connect() as connection:
        transaction = connection.begin_twophase()
        assert Inbox("billing").accept(connection, "a") is NEW
        with suppress(DBAPIError):
            connection.execute(text("SELECT 1 / 0"))
        with pytest.raises(TransactionAborted):
            transaction.commit()
        connection.rollback()
        assert Inbox("billing").accept(connection, "a") is NEW


def test_an_error_that_undoes_everything(sqlite: Database) -> None:
    """SQLite rolls back when a disk is full, and where it is told to. What is taken again is there, also one
    by one; if anything is not, the COMMIT raises."""
    inbox, engine = Inbox("billing"), sqlite.engine()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE once (a INTEGER PRIMARY KEY)"))
        connection.execute(text("INSERT INTO once VALUES (1)"))
    for again in (["b"], ["a"], ["a", "b"]):
        connection = engine.connect()
        assert inbox.accept_many(connection, ["a", "b"]) == [NEW, NEW]
        with suppress(DBAPIError):
            connection.execute(text("INSERT OR ROLLBACK INTO once VALUES (1)"))
        assert [inbox.accept(connection, key) for key in again] == [NEW for _ in again]
        with nullcontext() if len(again) == 2 else pytest.raises(TransactionAborted):
            connection.commit()
    with engine.begin() as connection:
        assert inbox.accept_many(connection, ["a", "b"]) == [DUPLICATE, DUPLICATE]


def test_with_a_session(sqlite: Database) -> None:
    """`accept` joins a Session's transaction without flushing its pending objects; both commit together."""
    inbox = Inbox("billing")
    with Session(sqlite.engine()) as session:
        assert inbox.accept(session, "a") is NEW
        assert inbox.accept_many(session, ["a", "b"]) == [DUPLICATE, NEW]
        session.rollback()
        assert inbox.accept(session, "a") is NEW
        session.commit()
        assert inbox.accept(session, "a") is DUPLICATE


@on(*SYNC)
def test_an_old_message_is_too_old(migrated: Database) -> None:
    """A message older than the retention is TOO_OLD and is not stored, unless its row still exists."""
    inbox, engine = Inbox("billing", retention=timedelta(hours=1)), migrated.engine()
    now = datetime.now(UTC)
    with engine.begin() as connection:
        backdate(connection, "billing", "still there", timedelta(hours=2))
        for age, key, verdict in (
            (timedelta(hours=2), "a", Verdict.TOO_OLD),
            (timedelta(hours=2), "still there", DUPLICATE),
            (timedelta(minutes=59), "a", NEW),
            (timedelta(minutes=-5), "b", NEW),
        ):
            assert inbox.accept(connection, key, message_time=now - age) is verdict


def test_old_is_by_the_databases_clock(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's clock decides what is too old: a worker whose clock is slow by a third of the retention
    gives the same verdict as the others."""

    class Behind(datetime):
        @classmethod
        def now(cls, tz: object = None) -> "Behind":
            return super().now(UTC) - timedelta(hours=1)

    message_time = datetime.now(UTC) - timedelta(hours=3, minutes=1)
    inbox = Inbox("billing", retention=Retention(broker=timedelta(hours=2), network=timedelta(hours=1)))
    monkeypatch.setattr("inbox_outbox_base.checks.retention.datetime", Behind)
    with migrated.engine().begin() as connection:
        assert inbox.accept(connection, "a", message_time=message_time) is Verdict.TOO_OLD


def test_at_most_one_statement_for_a_new_message(migrated: Database) -> None:
    """A new message costs one statement and no savepoint (on MySQL and SQLite, one more sets the wait)."""
    engine, seen = migrated.engine(), list[str]()
    with engine.connect() as connection:
        Inbox("billing").accept(connection, "warm")
        event.listen(engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
        assert Inbox("billing").accept(connection, "a") is NEW
    working = [sql for sql in seen if not sql.startswith(("PRAGMA busy_timeout", "SET "))]
    working += [sql for sql in seen if sql.startswith("SET STATEMENT")]
    assert len(working) == 1, seen
    assert "INSERT" in working[0]


@on(*BOTH_MYSQL)
def test_read_uncommitted_is_refused(migrated: Database) -> None:
    """READ UNCOMMITTED is rejected where it reads uncommitted rows: a row that is rolled back later must not
    make the message a duplicate."""
    dirty = migrated.engine(isolation_level="READ UNCOMMITTED")
    inbox = Inbox("billing", wait=0)
    with migrated.engine().connect() as other, dirty.connect() as connection:
        inbox.accept(other, "a")
        with pytest.raises(UnusableConnection, match="READ UNCOMMITTED"):
            inbox.accept(connection, "a")
        with pytest.raises(UnusableConnection, match="READ UNCOMMITTED"):
            inbox.accept_many(connection, ["a", "b"])


def test_the_outermost_savepoint_of_sqlite(tmp_path: Path) -> None:
    """Python's SQLite driver commits when an outermost savepoint is released, so `accept` refuses to run
    first inside one, unless the application's own listener sends BEGIN."""
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    tables().metadata.create_all(engine)
    with (
        engine.begin() as connection,
        connection.begin_nested(),
        pytest.raises(UnusableConnection, match="savepoint"),
    ):
        Inbox("billing").accept(connection, "a")
    engine.dispose()
    event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with engine.connect() as connection:
        with connection.begin_nested():
            assert Inbox("billing").accept(connection, "a") is NEW
        connection.rollback()
        assert Inbox("billing").accept(connection, "a") is NEW
    engine.dispose()


def test_schemas_leave_each_other_alone(postgres: Database) -> None:
    """The same consumer and key in two schemas of one database are two messages, even while both are in
    flight."""
    engine = postgres.engine()
    for schema in ("one", "two"):
        migration.migrate(engine, schema=schema)
    with engine.connect() as first, engine.connect() as second:
        assert Inbox("billing", wait=0, schema="one").accept(first, "a") is NEW
        assert Inbox("billing", wait=0, schema="two").accept(second, "a") is NEW


def test_a_row_is_as_old_as_its_insert(migrated: Database) -> None:
    """The retention of a key counts from its insert, not from the start of the transaction."""
    with migrated.engine().begin() as connection:
        connection.execute(select(MESSAGE))
        time.sleep(0.2)
        later = datetime.now(UTC) - timedelta(milliseconds=100)
        Inbox("billing").accept(connection, "a")
        assert connection.execute(select(MESSAGE.c.accepted_at)).scalar_one() > later
