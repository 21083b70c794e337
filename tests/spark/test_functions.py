"""Functions as results: what they may do in a partition's transaction, and how forbidden actions are
detected."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, insert
from sqlalchemy.exc import DBAPIError

from inbox.errors import InvalidOption, TransactionAborted, TransactionEnded
from inbox.schema import tables
from tests.support.database import Database
from tests.support.on_servers import each_on, on
from tests.support.spark.writes import (
    CONSUMER,
    RESULT,
    attempt,
    batch,
    counts,
    make_result,
    prepared,
    rows_in,
    taken,
    with_results,
    write,
    written,
)
from tests.support.together import Task as Thread

TEN = [(f"k{number}", number) for number in range(10)]
MANY = [batch(*((f"{at:02d}-{number}", number) for number in range(3_000))) for at in range(20)]
LEDGERS = ["verify", "trust", "off"]


class Later:
    """What an asynchronous function returns, but nobody is warned if it is not awaited."""

    def __init__(self, connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        pass

    def __await__(self) -> Iterator[None]:
        raise AssertionError("it runs")


@each_on("postgresql", "ledger", LEDGERS)
def test_a_swallowed_error(migrated: Database, engine: Engine, ledger: str) -> None:
    """A function ignores a database error. On PostgreSQL the error has aborted the transaction, and the task
    raises TransactionAborted. Elsewhere it has undone only one statement, and the rest commits."""

    def careless(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        for each in rows:
            connection.execute(insert(RESULT), each.to_pylist())
        with suppress(Exception):
            connection.exec_driver_sql("SELECT no_such_column FROM result")

    options = {"run": "r", "ledger": ledger, "results": careless}
    if migrated.name == "postgresql":
        with pytest.raises(TransactionAborted):
            write(migrated, [batch(*TEN)], **options)
        assert (written(engine), taken(engine), rows_in(engine, tables().ledger)) == ([], [], 0)
    else:
        assert counts(write(migrated, [batch(*TEN)], **options)) == {"new": 10}
        assert written(engine) == TEN


ENDINGS: dict[str, Callable[[Any], object]] = {
    "commit": Connection.commit,
    "rollback": Connection.rollback,
    "close": Connection.close,
    "COMMIT": lambda connection: connection.exec_driver_sql("COMMIT"),
    "ROLLBACK": lambda connection: connection.exec_driver_sql("ROLLBACK"),
    "driver's commit": lambda connection: connection.connection.driver_connection.commit(),
    "commit and begin": lambda connection: (connection.commit(), connection.exec_driver_sql("SELECT 1")),
}


# Every driver ends a transaction in its own way, so the first half, with a ledger, runs on every server.
@each_on("sqlite", "ledger, end", product(["verify", "off"], ENDINGS), others=len(ENDINGS))
def test_a_function_that_ends_the_transaction(
    migrated: Database, engine: Engine, ledger: str, end: str
) -> None:
    """A function that ends the transaction, in any way, raises TransactionEnded. The next attempt does not
    mistake what was committed for a whole partition: it raises, too; or, if nothing was committed or no
    ledger is kept, it starts over."""

    def ending(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        connection.execute(insert(RESULT), next(rows).to_pylist())
        ENDINGS[end](connection)

    for _ in range(2):
        task = prepared(migrated, run="r", ledger=ledger)
        with pytest.raises(TransactionEnded):
            attempt(with_results(task, ending), 0, batch(*TEN))
        if taken(engine):
            break
    kept = bool(taken(engine))
    assert written(engine) == (TEN if kept else [])
    if kept and ledger == "verify":
        for options in ({}, {"ledger": "trust"}):
            with pytest.raises(TransactionEnded):
                write(migrated, [batch(*TEN)], run="r", **options)
    else:
        assert counts(write(migrated, [batch(*TEN)], run="r", ledger=ledger)) == {"new": 10}
    assert written(engine) == TEN


@pytest.mark.quick("postgresql")
@each_on("sqlite", "ledger", LEDGERS)
def test_a_function_that_reads_only_some_rows(migrated: Database, engine: Engine, ledger: str) -> None:
    """Rows that the function does not read count as taken nevertheless, over all batches of a large
    partition."""
    read = []

    def one(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        read.append(next(rows).num_rows)

    options = {"ledger": ledger, "table": None, "results": one, "batch_size": 7, "memory": 2**20}
    assert counts(write(migrated, MANY, **options)) == {"new": 60_000}
    assert read == [7]
    assert rows_in(engine, tables().message) == 60_000
    assert counts(write(migrated, MANY, **options)) == {"duplicate": 60_000}
    assert read == [7]


def test_a_large_partition_in_which_an_error_is_swallowed(postgres: Database) -> None:
    """TransactionAborted is raised even if more keys had to be taken after the error; nothing is written."""
    engine = make_result(postgres)

    def careless(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        connection.execute(insert(RESULT), next(rows).to_pylist())
        with suppress(DBAPIError):
            connection.exec_driver_sql("SELECT no_such_column FROM result")

    with pytest.raises(TransactionAborted):
        write(postgres, MANY, results=careless, memory=2**20)
    assert (rows_in(engine, RESULT), rows_in(engine, tables().message)) == (0, 0)


@pytest.mark.quick("postgresql")
def test_a_large_partition_in_which_a_function_commits(migrated: Database, engine: Engine) -> None:
    """TransactionEnded is raised, and nothing that came after the function's COMMIT is kept."""

    def hasty(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        connection.execute(insert(RESULT), next(rows).to_pylist())
        connection.exec_driver_sql("COMMIT")
        for each in rows:
            connection.execute(insert(RESULT), each.to_pylist())

    with pytest.raises(TransactionEnded):
        write(migrated, MANY, results=hasty, memory=2**20, batch_size=100)
    assert rows_in(engine, RESULT) == 100
    assert rows_in(engine, tables().message) < 60_000


def test_a_function_that_makes_a_table(migrated: Database, engine: Engine) -> None:
    """On MySQL and MariaDB, CREATE TABLE commits implicitly: TransactionEnded is raised. Elsewhere the table
    is part of the transaction."""

    def make(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        connection.execute(insert(RESULT), next(rows).to_pylist())
        connection.exec_driver_sql("CREATE TABLE made (number INTEGER)")

    if migrated.name in ("mysql", "mariadb"):
        with pytest.raises(TransactionEnded):
            write(migrated, [batch(*TEN)], results=make)
    else:
        assert counts(write(migrated, [batch(*TEN)], results=make)) == {"new": 10}
        with pytest.raises(DBAPIError):
            write(migrated, [batch(("other", 1))], results=make)
    assert written(engine) == TEN


def test_a_savepoint_of_a_function(migrated: Database, engine: Engine) -> None:
    """A function that expects an error uses a savepoint; everything else commits on every database."""

    def careful(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        for each in rows:
            connection.execute(insert(RESULT), each.to_pylist())
        with suppress(DBAPIError), connection.begin_nested():
            connection.exec_driver_sql("INSERT INTO result (id, amount) VALUES ('undone', 1)")
            connection.exec_driver_sql("SELECT no_such_column FROM result")

    assert counts(write(migrated, [batch(("a", 1), ("b", 2))], results=careful)) == {"new": 2}
    assert written(engine) == [("a", 1), ("b", 2)]


def test_a_transient_error_of_a_function_is_tried_again(migrated: Database, engine: Engine) -> None:
    """When a lock timeout expires, the whole transaction runs again, and its rows are written once. A
    database error of the function that is not transient is raised immediately."""
    calls = []

    def locked(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        calls.append(connection)
        for each in rows:
            connection.execute(insert(RESULT), each.to_pylist())

    task = with_results(prepared(migrated, lock_timeout=1), locked)
    with engine.connect() as blocker:
        blocker.execute(insert(tables().message), {"consumer": CONSUMER, "key": "b", "claim": bytes(16)})
        writing = Thread(lambda: attempt(task, 0, batch(("a", 1), ("b", 2))))
        time.sleep(2)
        blocker.rollback()
    done = writing.result()
    assert done is not None
    assert done.counts.new == 2
    assert len(calls) == 1
    assert written(engine) == [("a", 1), ("b", 2)]

    def broken(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        calls.append(connection)
        connection.exec_driver_sql("SELECT no_such_column FROM result")

    with pytest.raises(DBAPIError):
        attempt(with_results(task, broken), 0, batch(("c", 1)))
    assert len(calls) == 2


def generating(connection: Connection, rows: Iterator[pa.RecordBatch]) -> Iterator[None]:
    """A function whose call does nothing."""
    yield


@on("sqlite")
@pytest.mark.parametrize(("results", "why"), [(generating, "it is a generator"), (Later, "it is asyn")])
def test_a_function_that_has_done_nothing_yet(
    migrated: Database, engine: Engine, results: Any, why: str
) -> None:
    """What returns a generator or something to await has written nothing: no key is taken."""
    with pytest.raises(InvalidOption, match=f"^results: {why}"):
        attempt(with_results(prepared(migrated), results), 0, batch(*TEN))
    assert taken(engine) == []
