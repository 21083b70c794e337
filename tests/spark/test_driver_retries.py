"""What the driver reads before a job is read again after a transient error, like the work of a task."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from spark._driver import comparison
from spark._driver.job import Job
from spark._executor import connect
from tests.spark.test_reading import source
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, each_on
from tests.support.spark.writes import SCHEMA, batch, options_of, write, written

LOCKS = {
    "postgresql": "LOCK TABLE inbox_ledger IN ACCESS EXCLUSIVE MODE",
    "mariadb": "LOCK TABLES inbox_ledger WRITE",
    "mysql": "LOCK TABLES inbox_ledger WRITE",
    "sqlite": "BEGIN EXCLUSIVE",
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


def test_a_lock_that_outlasts_a_try(migrated: Database, engine: Engine) -> None:
    """The ledger is locked for longer than `lock_timeout`: the job waits for it and writes its rows."""
    errors: list[BaseException] = []
    with engine.connect() as holder:
        holder.exec_driver_sql(LOCKS[migrated.name])

        def let_go(context: Any) -> None:
            if not errors:
                if migrated.name in UNLOCK:
                    holder.exec_driver_sql(UNLOCK[migrated.name])
                holder.rollback()
            errors.append(context.original_exception)

        with watched("handle_error", let_go):
            assert write(migrated, [batch(("a", 1))], run="r", lock_timeout=1).new == 1
    assert len(errors) >= 1
    assert written(engine) == [("a", 1)]


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
