"""What the driver reads before a job is read again after a transient error, like the work of a task."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from inbox.schema import tables
from inbox_outbox_base.transactions.declaring import Declaration
from inbox_outbox_base.transactions.policy import look
from spark._driver import comparison
from spark._driver.job import Job
from spark._executor import connect
from tests.spark.test_reading import source
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, each_on
from tests.support.spark.writes import (
    CONSUMER,
    SCHEMA,
    batch,
    make_result,
    options_of,
    prepared,
    write,
    written,
)

LOCKS = {
    "postgresql": "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE",
    "mariadb": "LOCK TABLES {} WRITE",
    "mysql": "LOCK TABLES {} WRITE",
    "sqlite": "BEGIN IMMEDIATE",
}
UNLOCK = {"mariadb": "UNLOCK TABLES", "mysql": "UNLOCK TABLES"}
KILLS = {
    "postgresql": ("pg_class", "SELECT pg_terminate_backend({})"),
    "mariadb": ("DESCRIBE", "KILL {}"),
    "mysql": ("DESCRIBE", "KILL {}"),
}
"""A part of the first statement about our tables, and what ends a session."""


@contextmanager
def watched(name: str, act: Callable[..., object]) -> Iterator[None]:
    """Call a function at each event of any engine."""
    event.listen(Engine, name, act)
    try:
        yield
    finally:
        event.remove(Engine, name, act)


@contextmanager
def locked(database: Database, engine: Engine, lock: str, table: str) -> Iterator[list[str]]:
    """Hold a lock until a statement about a table has met it; the statements that have failed."""
    failed: list[str] = []
    with engine.connect() as holder:
        holder.exec_driver_sql(lock)

        def let_go(context: Any) -> None:
            if table in context.statement and not failed:
                if database.name in UNLOCK:
                    holder.exec_driver_sql(UNLOCK[database.name])
                holder.rollback()
                failed.append(context.statement)

        with watched("handle_error", let_go):
            yield failed


def test_a_lock_that_outlasts_a_try(migrated: Database, engine: Engine) -> None:
    """The ledger is locked for longer than `lock_timeout`: the job waits for it and writes its rows."""
    lock = "BEGIN EXCLUSIVE" if migrated.name == "sqlite" else LOCKS[migrated.name].format("inbox_ledger")
    word = "" if migrated.name == "sqlite" else "inbox_ledger"
    with locked(migrated, engine, lock, word) as failed:
        assert write(migrated, [batch(("a", 1))], run="r", lock_timeout=1).new == 1
    assert len(failed) == 1
    assert written(engine) == [("a", 1)]


def policies(engine: Engine) -> list[timedelta]:
    """The stored retentions."""
    with engine.connect() as connection:
        found = look(connection, tables(), CONSUMER)
    return [each.kept.duration for each in found.values()]


def test_a_retention_is_stored_although_its_table_is_locked(migrated: Database, engine: Engine) -> None:
    """A job has no later message that could store it: it waits until its retention is stored."""
    lock = LOCKS[migrated.name].format("inbox_consumer")
    with locked(migrated, engine, lock, "inbox_consumer") as failed:
        prepared(migrated, retention=timedelta(days=90), lock_timeout=1)
    assert len(failed) == 1
    assert policies(engine) == [timedelta(days=90)]


def test_a_retention_is_stored_beside_another_one(postgres: Database) -> None:
    """A job waits while another one of its process is storing the retention of their consumer."""
    engine, asked = make_result(postgres), timedelta(days=90)
    settings, tries = options_of(postgres, retention=asked), list[object]()
    other = Declaration(tables(), CONSUMER, "exactly-once", timedelta(days=30))
    with connect.engine_of(settings).connect() as connection:
        other.agree(connection, is_new=True)

        def commit_before_the_second_try(looked: Connection, cursor: object, asked: str, *_: object) -> None:
            if "inbox_consumer" in asked and looked is not connection:
                tries.append(asked)
                if len(tries) == 2:
                    connection.commit()

        with watched("before_cursor_execute", commit_before_the_second_try):
            Job(settings, None).prepare(SCHEMA)
    assert policies(engine) == [asked]


def job(database: Database) -> Job:
    """A job with a name."""
    return Job(options_of(database, run="r"), "r")


LOOKS: dict[str, Callable[[Database], object]] = {
    "prepare": lambda database: job(database).prepare(SCHEMA),
    "check": lambda database: job(database).check(SCHEMA),
    "check keys": lambda database: job(database).check_keys(SCHEMA),
    "reconcile": lambda database: comparison.check(options_of(database), SCHEMA),
    "read": lambda database: source(database).reader(source(database).schema()).partitions(),
}


@each_on("postgresql", "look", LOOKS, among=WITH_WRITERS)
def test_a_session_that_is_ended(
    migrated: Database, engine: Engine, look: Callable[[Database], object]
) -> None:
    """The server ends the driver's session: it looks again in another one."""
    part, statement = KILLS[migrated.name]
    killed: list[int] = []

    def kill(connection: Connection, cursor: object, asked: str, *_: object) -> None:
        if not killed and part in asked and connection.engine is not engine:
            driver: Any = connection.connection.driver_connection
            own = driver.info.backend_pid if migrated.name == "postgresql" else driver.thread_id()
            killed.append(own)
            with engine.connect() as other:
                other.exec_driver_sql(statement.format(own))

    with watched("before_cursor_execute", kill):
        look(migrated)
    assert len(killed) == 1


def test_a_server_that_was_never_reached(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that may be wrong is tried for a quarter of a minute only, as long as it has never led to a
    server."""
    monkeypatch.setattr(connect, "FIRST_PATIENCE", 0.0)
    monkeypatch.setattr(connect, "TRIES", 5)
    tries: list[object] = []
    with watched("do_connect", lambda *given: tries.append(given)), pytest.raises(DBAPIError):
        Job(options_of(postgres, url="postgresql://user@127.0.0.1:1/app"), None).prepare(SCHEMA)
    assert 1 <= len(tries) <= 2
