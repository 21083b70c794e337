"""inbox="table": the target's own unique key replaces the inbox rows."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, String, Table, delete, select

from inbox.errors import InvalidOption
from spark import Append, InboxWriter, Statements, Upsert
from spark._executor.task import Done, run_task
from spark.errors import ColumnMismatch
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.roles import Right, Role, rights, role
from tests.support.spark.writes import (
    attempt,
    counts,
    execute,
    fetched,
    losing_an_answer,
    prepared,
    taken,
    write,
)
from tests.support.together import Task, together, wait_until_blocked

METADATA = MetaData()
EVENT = Table(
    "event", METADATA, Column("id", String(200), primary_key=True), Column("amount", BigInteger, unique=True)
)
BALANCE = Table(
    "balance",
    METADATA,
    Column("account", String(20), primary_key=True),
    Column("version", BigInteger),
    Column("amount", BigInteger),
)
APPEND: dict[str, Any] = {"table": "event", "key": "id", "inbox": "table"}
UPSERT: dict[str, Any] = {
    "table": "balance",
    "key": ["account", "version"],
    "results": Upsert("account", "version"),
    "inbox": "table",
}


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with both tables."""
    METADATA.create_all(migrated.engine())
    return migrated.engine()


def events(*numbers: int) -> pa.RecordBatch:
    """An event for each number."""
    ids = pa.array([f"event {number}" for number in numbers], pa.string())
    return pa.record_batch({"id": ids, "amount": pa.array(numbers, pa.int64())})


def balances(*rows: tuple[str, int, int]) -> pa.RecordBatch:
    """Rows of account, version and amount."""
    names = ("account", "version", "amount")
    return pa.record_batch([pa.array(values) for values in zip(*rows, strict=True)], names=names)


def stored(engine: Engine, table: Table = EVENT) -> list[Any]:
    """The numbers of the stored events, or the rows of another table."""
    found = sorted(fetched(engine, select(table)))
    return sorted(row[1] for row in found) if table is EVENT else found


def test_each_key_is_appended_once(migrated: Database, engine: Engine) -> None:
    """Rows whose key is in the table are duplicates, repeated rows are counted, and the inbox stays empty."""
    assert counts(write(migrated, [events(1, 2, 3, 2)], [events(4)], **APPEND)) == {"new": 4, "repeated": 1}
    assert counts(write(migrated, [events(3, 4, 5, 9, 9)], **APPEND)) == {
        "new": 2,
        "duplicate": 2,
        "repeated": 1,
    }
    assert stored(engine) == [1, 2, 3, 4, 5, 9]
    assert taken(engine) == []


@on("sqlite")
def test_a_deleted_row_may_be_written_again(migrated: Database, engine: Engine) -> None:
    """Only rows that are in the table are duplicates for another run, so a deleted row is written again. A
    replay of the same run does not write it."""
    write(migrated, [events(1, 2)], run="r", **APPEND)
    execute(engine, delete(EVENT).where(EVENT.c.amount == 1))
    assert write(migrated, [events(1, 2)], run="r", **APPEND).replayed == 1
    assert stored(engine) == [2]
    assert counts(write(migrated, [events(1, 2)], **APPEND)) == {"new": 1, "duplicate": 1}


def test_the_newest_version_stays(migrated: Database, engine: Engine) -> None:
    """Older and equal versions change nothing, in whatever order and however often they arrive."""
    first = write(migrated, [balances(("a", 2, 20), ("a", 1, 10), ("b", 1, 1))], **UPSERT)
    assert counts(first) == {"new": 2, "duplicate": 1}
    later = [balances(("a", 1, 10), ("a", 2, 99), ("b", 2, 2), ("c", 1, 3))]
    assert counts(write(migrated, later, **UPSERT)) == {"new": 2, "duplicate": 2}
    assert stored(engine, BALANCE) == [("a", 2, 20), ("b", 2, 2), ("c", 1, 3)]


@on("sqlite")
def test_a_late_attempt_changes_nothing(migrated: Database, engine: Engine) -> None:
    """A second attempt at a partition reports the ledger's counts. An attempt with other rows writes only the
    new ones."""
    task = prepared(migrated, schema=events().schema, **APPEND)
    first, again = (attempt(task, 0, events(1, 2)) for _ in range(2))
    assert first is not None
    assert again is not None
    assert first.counts == again.counts
    other = attempt(task, 0, events(2, 3))
    assert other is not None
    assert (other.counts.new, other.counts.duplicate) == (1, 1)
    assert stored(engine) == [1, 2, 3]


@on("sqlite")
def test_another_plan_of_the_same_run_counts_its_rows_once(migrated: Database, engine: Engine) -> None:
    """Rows that an attempt with other partitions has written count as new in the batch, not as duplicates."""
    write(migrated, [events(7)], **APPEND)
    task = prepared(migrated, schema=events().schema, run="r", **APPEND)
    attempt(task, 0, events(1, 2, 7))
    report = write(migrated, [events(1)], [events(2, 7), events(3, 3)], run="r", **APPEND)
    assert counts(report) == {"new": 3, "duplicate": 1, "repeated": 1}
    assert stored(engine) == [1, 2, 3, 7]


def test_a_lost_answer_to_a_commit_is_looked_up(migrated: Database, engine: Engine) -> None:
    """When the answer to a COMMIT is lost, another attempt finds in the ledger that the transaction has
    committed."""
    task = prepared(migrated, schema=events().schema, **APPEND)
    with losing_an_answer():
        done = [attempt(task, 0, events(*range(100))) for _ in range(2)]
    assert [each.counts.new for each in done if each is not None] == [100, 100]
    assert stored(engine) == [*range(100)]


@pytest.mark.parametrize("options", [APPEND, UPSERT], ids=["append", "upsert"])
def test_jobs_that_run_at_the_same_time(migrated: Database, engine: Engine, options: dict[str, Any]) -> None:
    """Four jobs write the same keys at the same time, each in different partitions. There is no error, and
    each key is new to exactly one of them."""
    total = 200
    schema = events().schema if options is APPEND else balances(("a", 1, 1)).schema

    def job(number: int) -> list[Done | None]:
        task = prepared(migrated, schema=schema, **options)
        chosen = random.Random(number).sample(range(total), total)
        return [run_task(task, part, iter([_rows(options, chosen[part::3])])) for part in range(3)]

    done = together([lambda number=number: job(number) for number in range(4)])  # type: ignore[misc]
    counted = [part.counts for parts in done for part in parts if part is not None]
    assert sum(each.new for each in counted) == total
    assert sum(each.new + each.duplicate for each in counted) == 4 * total
    assert len(stored(engine, EVENT if options is APPEND else BALANCE)) == total


def _rows(options: dict[str, Any], numbers: list[int]) -> pa.RecordBatch:
    return events(*numbers) if options is APPEND else balances(*((f"{each}", 1, each) for each in numbers))


def test_another_unique_key_is_an_error(migrated: Database, engine: Engine) -> None:
    """A row that violates another unique key of the table raises an error; it does not count as a
    duplicate."""
    write(migrated, [events(1)], **APPEND)
    same_amount = pa.record_batch({"id": ["other"], "amount": pa.array([1], pa.int64())})
    for rows in ([same_amount], [events(1), same_amount]):
        with pytest.raises(Exception, match=r"(?i)1062|unique"):
            write(migrated, rows, **APPEND)
    assert stored(engine) == [1]


WAIT = (
    "$$ BEGIN PERFORM pg_advisory_lock_shared(7); PERFORM pg_advisory_unlock_shared(7); RETURN amount; END $$"
)


@on("postgresql")
@pytest.mark.parametrize("results", [Append(), Upsert("id", "amount")], ids=["append", "upsert"])
def test_another_writer_is_faster_in_both_of_two_keys(
    migrated: Database, engine: Engine, results: Append | Upsert
) -> None:
    """Another transaction commits the same row after ON CONFLICT has checked its key and before it inserts.
    The violation of the table's other unique key does not become an error."""
    execute(
        engine,
        "CREATE TABLE target (id text, amount bigint)",
        f"CREATE FUNCTION wait(amount bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS {WAIT}",
        # The server fills the indexes in the order in which they were created.
        "CREATE INDEX ON target (wait(amount))",
        "ALTER TABLE target ADD PRIMARY KEY (id)",
        "ALTER TABLE target ADD UNIQUE (amount)",
    )
    # As an int, the amount needs a cast, so that no COPY comes first.
    rows = pa.record_batch({"id": ["a"], "amount": pa.array([1], pa.int32())})
    key = ["id"] if isinstance(results, Append) else ["id", "amount"]
    options = {**APPEND, "table": "target", "key": key, "results": results}
    with engine.connect() as other:
        other.exec_driver_sql("SELECT pg_advisory_lock(7)")
        writing = Task(lambda: write(migrated, [rows], **options))
        wait_until_blocked(engine)
        other.exec_driver_sql("INSERT INTO target VALUES ('a', 1)")
        other.commit()
        other.exec_driver_sql("SELECT pg_advisory_unlock(7)")
    assert counts(writing.result()) == {"duplicate": 1}


KEYS: dict[str, tuple[dict[str, str], str]] = {
    "none": ({"any": "id varchar(20) NOT NULL"}, "no unique key on exactly 'id'"),
    "of more columns": (
        {"any": "id varchar(20) NOT NULL, amount bigint NOT NULL, PRIMARY KEY (id, amount)"},
        "no unique key on exactly 'id'",
    ),
    "of another column": ({"any": "id varchar(20) NOT NULL, amount bigint PRIMARY KEY"}, "exactly 'id'"),
    "of a part": (
        {
            "postgresql": "id text NOT NULL; CREATE UNIQUE INDEX ON target (left(id, 3))",
            "sqlite": "id text NOT NULL; CREATE UNIQUE INDEX part ON target (substr(id, 1, 3))",
            "any": "id varchar(20) NOT NULL, UNIQUE KEY part (id(3))",
        },
        "exactly 'id'",
    ),
    "with NULL": ({"any": "id varchar(20), CONSTRAINT own UNIQUE (id)"}, "allows NULL"),
    "deferrable": ({"postgresql": "id text PRIMARY KEY DEFERRABLE"}, "is deferrable"),
    "partial": (
        {
            "postgresql": "id text NOT NULL; CREATE UNIQUE INDEX own ON target (id) WHERE id > 'a'",
            "sqlite": "id text NOT NULL; CREATE UNIQUE INDEX own ON target (id) WHERE id > 'a'",
        },
        "'own' of table target is partial",
    ),
}
GOOD = {
    "an index": "id text NOT NULL; CREATE UNIQUE INDEX ON target (id) INCLUDE (amount)",
    "NULLs alike": "id text UNIQUE NULLS NOT DISTINCT",
}


def _make(engine: Engine, columns: str) -> None:
    table, *others = columns.split(";")
    more = "" if "amount" in table else ", amount bigint"
    name, _, keys = table.partition(", CONSTRAINT") if "CONSTRAINT" in table else (table, "", "")
    declared = f"{name}{more}" + (f", CONSTRAINT{keys}" if keys else "")
    execute(engine, "DROP TABLE IF EXISTS target", f"CREATE TABLE target ({declared})", *others)


def test_a_key_that_cannot_be_the_inbox(migrated: Database, engine: Engine) -> None:
    """A key that cannot be the inbox is rejected with the reason, before any row is read."""
    for name, (columns, said) in KEYS.items():
        declared = columns.get(migrated.name, columns.get("any"))
        if declared is not None:
            _make(engine, declared)
            with case(name), pytest.raises(ColumnMismatch, match=said):
                prepared(migrated, schema=events().schema, **{**APPEND, "table": "target"})


@on("postgresql")
def test_keys_that_can_be_the_inbox(migrated: Database, engine: Engine) -> None:
    """A unique index can be the inbox, and so can a nullable column whose NULLs are not distinct."""
    for name, columns in GOOD.items():
        _make(engine, columns)
        with case(name):
            for new in (1, 0):
                assert write(migrated, [events(1)], **{**APPEND, "table": "target"}).new == new


@contextmanager
def writing_role(database: Database) -> Iterator[Role]:
    """A role with the rights of the writer on the inbox's tables, and none on a target."""
    with role(database) as app:
        for each in rights("postgresql", "Spark"):
            if each.thing != "result":
                app.grant(each)
        yield app


@on("postgresql")
def test_rights_that_only_a_duplicate_needs(migrated: Database, engine: Engine) -> None:
    """A role without the rights that the writer needs on the target is rejected before any row is read, also
    if COPY would need fewer."""
    with writing_role(migrated) as app:
        for options, needed in ((APPEND, ["INSERT", "SELECT"]), (UPSERT, ["INSERT", "SELECT", "UPDATE"])):
            schema = (events(1) if options is APPEND else balances(("a", 1, 1))).schema
            for right in needed:
                with pytest.raises(ColumnMismatch, match=f"table='{options['table']}'.*permission denied"):
                    prepared(app.database, schema=schema, **options)
                app.grant(Right(right, options["table"]))
            prepared(app.database, schema=schema, **options)
        execute(engine, f'REVOKE TEMPORARY ON DATABASE "{migrated.url.database}" FROM PUBLIC')
        with pytest.raises(ColumnMismatch, match="permission denied to create temporary tables"):
            prepared(app.database, schema=balances(("a", 1, 1)).schema, **UPSERT)


@on("postgresql")
def test_a_finished_run_needs_no_rights_any_more(migrated: Database, engine: Engine) -> None:
    """A run that is finished is recognised even if the role may no longer write to the target."""
    with writing_role(migrated) as app:
        for right in ("INSERT", "SELECT"):
            app.grant(Right(right, "event"))
        assert write(app.database, [events(1)], run="r", **APPEND).new == 1
        app.revoke(Right("INSERT", "event"))
        assert write(app.database, [events(1)], run="r", **APPEND).replayed == 1
    assert stored(engine) == [1]


@on("postgresql")
def test_a_lock_is_left_to_the_tasks(migrated: Database, engine: Engine) -> None:
    """A lock on the target, such as that of CREATE INDEX, does not fail the job before it begins: its tasks
    wait for it, and try again."""
    with engine.connect() as other:
        other.exec_driver_sql("LOCK TABLE event IN SHARE MODE")
        task = prepared(migrated, schema=events().schema, lock_timeout=0.2, **APPEND)
        writing = Task(lambda: run_task(task, 0, [events(1)]))
        wait_until_blocked(engine)
        other.rollback()
    done = writing.result()
    assert done is not None
    assert done.counts.new == 1
    assert stored(engine) == [1]


@on("postgresql")
def test_a_rule_beside_the_key(migrated: Database, engine: Engine) -> None:
    """A table with a rule for INSERT cannot be the inbox: it is rejected before any row is read."""
    execute(engine, "CREATE RULE twice AS ON INSERT TO event DO ALSO SELECT 1")
    with pytest.raises(ColumnMismatch, match=r"table='event': .* rules"):
        prepared(migrated, schema=events().schema, **APPEND)


def test_what_needs_rows_in_the_inbox() -> None:
    """Statements, functions, and a writer without a ledger are rejected with inbox="table"."""
    usual: dict[str, Any] = {"url": "postgresql://h/d", "table": "t", "key": "k", "consumer": "c"}
    wrong: list[dict[str, Any]] = [{"results": Statements("x")}, {"results": print}, {"ledger": "off"}]
    for options in wrong:
        with pytest.raises(InvalidOption, match=r"^inbox='table'"):
            InboxWriter(**usual, inbox="table", **options)
    InboxWriter(**usual, inbox="table", results=Append())
