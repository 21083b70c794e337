"""Writes without Spark: the work of its driver and its tasks, called one after another."""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Executable,
    MetaData,
    String,
    Table,
    event,
    func,
    select,
)

from inbox.schema import tables
from spark import WriteReport
from spark._driver.job import Job
from spark._executor.task import Done, Task, recognise, run_task
from spark._options.settings import WriterSettings, checked
from tests.support.database import Database

CONSUMER = "billing"
SCHEMA = pa.schema([("id", pa.string()), ("amount", pa.int64())])
METADATA = MetaData()
# Nothing in it is unique: only the inbox keeps a row from standing here twice.
RESULT = Table(
    "result",
    METADATA,
    Column("id", String(200), nullable=False),
    Column("amount", BigInteger),
    Column("note", String(50)),
)
Row = tuple[str | None, int]
Partition = Sequence[pa.RecordBatch]


def make_result(database: Database) -> Engine:
    """An engine of a database with an empty table for results."""
    engine = database.engine()
    METADATA.create_all(engine)
    return engine


def batch(*rows: Row) -> pa.RecordBatch:
    """Rows in the form in which Spark sends them."""
    ids, amounts = [row[0] for row in rows], [row[1] for row in rows]
    return pa.record_batch([pa.array(ids, pa.string()), pa.array(amounts, pa.int64())], schema=SCHEMA)


def options_of(database: Database, **options: Any) -> WriterSettings:
    """A writer's options, with defaults where none are given."""
    usual = {"url": database.url, "table": "result", "key": "id", "consumer": CONSUMER}
    return checked(**{**usual, **options})


def prepared(database: Database, schema: pa.Schema = SCHEMA, **options: Any) -> Task:
    """What every task of a job receives, as it arrives on an executor."""
    settings = options_of(database, **options)
    packed = pickle.dumps(Job(settings, settings.run).prepare(schema))
    task: Task = pickle.loads(packed)  # noqa: S301 - the test's own
    return task


def with_results(task: Task, results: Any) -> Task:
    """The same task with another function, without pickling it."""
    return replace(task, settings=replace(task.settings, results=results))


def attempt(task: Task, part: int, *batches: pa.RecordBatch) -> Done | None:
    """One attempt at a partition."""
    return run_task(task, part, iter(batches))


def write(
    database: Database, *partitions: Partition, schema: pa.Schema | None = None, **options: Any
) -> WriteReport:
    """A job: prepare, every partition once, report."""
    settings = options_of(database, **options)
    job = Job(settings, settings.run)
    found = next((each.schema for partition in partitions for each in partition), SCHEMA)
    task = job.prepare(schema or found)
    finished = job.finished()
    if finished is not None and settings.ledger == "trust":
        return job.report_finished(finished, 0)
    if finished is not None:
        keys = [[each.select(list(settings.compared)) for each in batches] for batches in partitions]
        known = _run(recognise, task, keys)
        if all(each.replayed for each in known):
            return job.report(known, 0)
    job.begin()
    return job.report(_run(run_task, task, partitions), 0)


def _run(work: Any, task: Task, partitions: Sequence[Partition]) -> list[Done]:
    done = [work(task, part, iter(batches)) for part, batches in enumerate(partitions)]
    return [each for each in done if each is not None]


@contextmanager
def losing_an_answer() -> Iterator[None]:
    """The connection of the first COMMIT in the body breaks when the server has committed."""
    lost: list[Connection] = []

    def lose(connection: Connection) -> None:
        if not lost:
            lost.append(connection)
            driver: Any = connection.connection.driver_connection
            driver.commit()
            driver.close()

    event.listen(Engine, "commit", lose)
    try:
        yield
    finally:
        event.remove(Engine, "commit", lose)
    assert lost


def execute(engine: Engine, *statements: str | Executable) -> None:
    """Run statements in one transaction."""
    with engine.begin() as connection:
        for each in statements:
            _execute(connection, each)


def fetched(engine: Engine, query: str | Executable) -> list[tuple[Any, ...]]:
    """The rows that a query finds."""
    with engine.connect() as connection:
        return [tuple(row) for row in _execute(connection, query)]


def _execute(connection: Connection, statement: str | Executable) -> Any:
    if isinstance(statement, str):
        return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    return connection.execute(statement)


def rows_in(engine: Engine, table: Table) -> int:
    """How many rows a table has."""
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def written(engine: Engine) -> list[tuple[str, int]]:
    """The rows of the table, sorted."""
    return sorted(fetched(engine, select(RESULT.c.id, RESULT.c.amount)))


def taken(engine: Engine, consumer: str = CONSUMER) -> list[str]:
    """The keys in the inbox, sorted."""
    message = tables().message
    with engine.connect() as connection:
        keys = connection.scalars(select(message.c.key).where(message.c.consumer == consumer))
        return sorted(str(key) for key in keys)


def counts(report: WriteReport) -> dict[str, int]:
    """The counts of a report that are not zero; checks their sum, too."""
    parts = {name: getattr(report, name) for name in ("new", "duplicate", "repeated", "dropped", "rejected")}
    assert report.rows == sum(parts.values()), report
    return {name: count for name, count in parts.items() if count}
