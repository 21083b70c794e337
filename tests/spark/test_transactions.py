"""A partition's transaction: its isolation level, its limits, its statements, its schema."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from inbox import Inbox, Verdict, migration
from inbox.schema import tables
from spark._executor.task import Done
from tests.support.database import Database
from tests.support.on_servers import each_on, on
from tests.support.spark.writes import (
    CONSUMER,
    attempt,
    batch,
    counts,
    execute,
    fetched,
    make_result,
    prepared,
    rows_in,
    taken,
    write,
    written,
)
from tests.support.together import together

LEVELS = ["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_isolation_level_is_the_one_asked_for(migrated: Database, engine: Engine, level: str) -> None:
    """A partition's transaction runs at the requested isolation level (on SQLite always SERIALIZABLE)."""
    seen = []

    def look(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        seen.append(connection.get_isolation_level())

    assert write(migrated, [batch(("a", 1))], isolation_level=level, results=look).new == 1
    assert seen == ["SERIALIZABLE" if migrated.name == "sqlite" else level.replace("_", " ")]


@each_on(
    "postgresql", "ledger, level", product(["verify", "off"], LEVELS), others=4, among=["mysql", "mariadb"]
)
def test_copies_at_every_isolation_level(migrated: Database, engine: Engine, ledger: str, level: str) -> None:
    """Three copies of each of two tasks with overlapping keys run at the same time, at every isolation level.
    There is no error, all copies of a task report the same counts, and nothing is applied twice."""
    rows = [batch(*((f"k{number}", number) for number in range(start, start + 60))) for start in (0, 30)]
    task = prepared(migrated, run="r", ledger=ledger, isolation_level=level, lock_timeout=5)

    def copy(part: int) -> Done | None:
        return attempt(task, part, rows[part])

    done = together([lambda part=part: copy(part) for part in (0, 1) * 3])  # type: ignore[misc]
    assert (
        len({each.counts for each in done[0::2] if each})
        == len({each.counts for each in done[1::2] if each})
        == 1
    )
    assert done[0] is not None
    assert done[1] is not None
    total = done[0].counts + done[1].counts
    assert (total.rows, total.new, total.repeated) == (120, 90, 30)
    assert len(written(engine)) == len(taken(engine)) == 90


@on("postgresql", "mariadb", "mysql")
def test_a_statement_that_takes_too_long(migrated: Database, engine: Engine) -> None:
    """With `query_timeout` the server cancels a slow statement. The task fails immediately, and writes
    nothing."""
    slow = {"postgresql": "SELECT pg_sleep(20)"}.get(
        migrated.name,
        "SELECT count(*) FROM information_schema.columns a, information_schema.columns b WHERE SLEEP(20) = 0",
    )

    def sleep(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        connection.exec_driver_sql(slow)

    began = time.monotonic()
    with pytest.raises(DBAPIError):
        write(migrated, [batch(("a", 1))], results=sleep, query_timeout=1)
    assert time.monotonic() - began < 15
    assert taken(engine) == []


def test_without_a_timeout_the_session_keeps_its_own(postgres: Database) -> None:
    """With `query_timeout` 0, a timeout set by `session_init_statement` stays in effect."""
    make_result(postgres)
    seen = []

    def look(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        seen.append(connection.exec_driver_sql("SHOW statement_timeout").scalar_one())

    options = {"session_init_statement": "SET statement_timeout = '7s'", "results": look}
    write(postgres, [batch(("a", 1))], **options)
    write(postgres, [batch(("b", 1))], **options, query_timeout=3)
    assert seen == ["7s", "3s"]


def test_a_statement_at_the_beginning_of_each_session(migrated: Database, engine: Engine) -> None:
    """`session_init_statement` runs before anything else on every connection. Colons and percent signs in it
    are taken literally."""
    statement, question = {
        "postgresql": (
            "SELECT set_config('app.who', 'a :b %s'::text, false)",
            "SELECT current_setting('app.who')",
        ),
        "sqlite": ("CREATE TEMP TABLE who AS SELECT 'a :b %s' AS name", "SELECT name FROM who"),
    }.get(migrated.name, ("SET @who = 'a :b %s'", "SELECT @who"))
    seen = []

    def look(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        seen.append(connection.exec_driver_sql(question).scalar())

    options = {"session_init_statement": statement, "results": look}
    write(migrated, [batch(("a", 1))], [batch(("b", 1))], **options)
    assert seen == ["a :b %s"] * 2
    with pytest.raises(DBAPIError):
        prepared(migrated, session_init_statement="SELECT nonsense")


def test_tables_in_schemas(postgres: Database) -> None:
    """`inbox_schema` is the schema of the inbox and the ledger, and `table` may name the schema of the
    results. Tables with the same names in other schemas are not touched."""
    engine = make_result(postgres)
    migration.migrate(engine, schema="box")
    execute(
        engine,
        'CREATE SCHEMA "Shop"',
        'CREATE TABLE "Shop"."My result" (id text, amount bigint, "Key ""1""" text)',
    )
    rows = pa.record_batch({"id": ["a", "b"], "amount": [1, 2], 'Key "1"': ["x", "y"]})
    options = {"inbox_schema": "box", "table": "Shop.My result", "key": ['Key "1"', "id"], "run": "r"}
    for replayed in (0, 1):
        report = write(postgres, [rows], **options)
        assert (counts(report), report.replayed) == ({"new": 2}, replayed)
    found = fetched(engine, 'SELECT * FROM "Shop"."My result" ORDER BY id')
    assert found == [("a", 1, "x"), ("b", 2, "y")]
    with engine.begin() as connection:
        assert Inbox(CONSUMER, schema="box").accept(connection, ("x", "a")) is Verdict.DUPLICATE
        assert Inbox(CONSUMER).accept(connection, ("x", "a")) is Verdict.NEW
    assert rows_in(engine, tables("box").ledger) == 2
    assert rows_in(engine, tables().ledger) == 0


@each_on("sqlite", "batch_size", [7, 1, 100_000])
def test_rows_are_sent_in_pieces(migrated: Database, engine: Engine, batch_size: int) -> None:
    """All rows arrive, whatever the batch size is."""
    rows = [(f"k{number:03d}", number) for number in range(100)]
    assert write(migrated, [batch(*rows)], batch_size=batch_size).new == 100
    assert written(engine) == rows


@on("postgresql", "mariadb", "mysql")
def test_a_login_that_is_refused(migrated: Database) -> None:
    """The first rejected login ends a task, and the start of a job: later ones would be rejected, too."""
    make_result(migrated)
    url = migrated.url.set(username="unknown_role")
    task = prepared(migrated)
    task = replace(task, settings=replace(task.settings, url=url))
    tries = []

    @event.listens_for(Engine, "do_connect")
    def count(*_: object) -> None:
        tries.append("connect")
        assert len(tries) < 4

    try:
        for work in (lambda: attempt(task, 0, batch(("a", 1))), lambda: prepared(migrated, url=url)):
            with pytest.raises(DBAPIError, match="unknown_role"):
                work()
    finally:
        event.remove(Engine, "do_connect", count)
    assert len(tries) == 2
