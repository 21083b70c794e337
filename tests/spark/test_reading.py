"""Reading keys and the ledger back: each row once, in partitions, with its job, and filtered by time."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType
from sqlalchemy import Engine, delete, event, select, update

from inbox import Inbox
from inbox.errors import InvalidOption, TablesMissing
from inbox.schema import tables
from spark import InboxDataSource
from spark.errors import InvalidRow
from tests.spark.test_reconciling import reconcile
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.spark.writes import batch, execute, fetched, write

LEDGER, MESSAGE = tables().ledger, tables().message
OLD = datetime(2026, 1, 1, 12, tzinfo=UTC)


def source(database: Database, **options: Any) -> InboxDataSource:
    """The data source, created as Spark creates it."""
    url = database.url.render_as_string(hide_password=False)
    return InboxDataSource({"url": url, **{name: str(value) for name, value in options.items()}})


def partitions(database: Database, **options: Any) -> list[list[dict[str, Any]]]:
    """The rows of each partition, read as Spark reads them."""
    read = source(database, **options)
    reader = read.reader(read.schema())
    return [[row for part in reader.read(each) for row in _rows(part)] for each in reader.partitions()]


def _rows(part: Any) -> list[dict[str, Any]]:
    assert isinstance(part, pa.RecordBatch)
    rows: list[dict[str, Any]] = part.to_pylist()
    return rows


def keys(database: Database, **options: Any) -> list[str]:
    """The keys of all partitions."""
    return [row["key"] for rows in partitions(database, **options) for row in rows]


def test_each_key_comes_once_with_its_job(migrated: Database, engine: Engine) -> None:
    """Keys are read in ranges, page by page. Keys of a job come with its run, batch and partition, and single
    messages with their own time. With `consumer`, only that consumer's keys are read."""
    names = [f"k{number:03}" for number in range(100)]
    write(migrated, [batch(*((name, 1) for name in names[:60]))], run="a", batch=3)
    write(migrated, [], [batch(*((name, 1) for name in names[50:99]))], run="b")
    write(migrated, [batch(("other", 1))], consumer="elsewhere")
    with engine.begin() as connection:
        Inbox("billing").accept(connection, "k099")
    read = partitions(migrated, consumer="billing", rowsPerPartition=30, fetchsize=7)
    assert [len(rows) for rows in read] == [30, 30, 30, 10]
    rows = [row for part in read for row in part]
    assert [row["key"] for row in rows] == names
    jobs = [("a", 3, 0)] * 60 + [("b", 0, 1)] * 39 + [(None, None, None)]
    assert [(row["run"], row["batch"], row["part"]) for row in rows] == jobs
    assert all(row["consumer"] == "billing" and row["accepted_at"] is not None for row in rows)
    everything = partitions(migrated, rowsPerPartition=30)
    assert [len(part) for part in everything] == [30, 30, 30, 10, 1, 0]
    assert everything[-2][0]["consumer"] == "elsewhere"


@on("sqlite")
def test_keys_that_come_later_have_their_partition(migrated: Database, engine: Engine) -> None:
    """Keys before the first and after the last planned range are read, too."""
    write(migrated, [batch(*((f"k{number}", 1) for number in range(10, 30)))])
    read = source(migrated, consumer="billing", rowsPerPartition=10)
    reader = read.reader(read.schema())
    planned = reader.partitions()
    write(migrated, [batch(("a", 1), ("k205", 1), ("z", 1))], run="late")
    found = [[row["key"] for part in reader.read(each) for row in _rows(part)] for each in planned]
    assert [len(part) for part in found] == [11, 12]
    assert (found[0][0], found[1][-1]) == ("a", "z")


def test_times(migrated: Database, engine: Engine) -> None:
    """`since` and `before` compare a single message's own time, and for all other keys the time of their
    load."""
    write(migrated, [batch(("old", 1))], run="old")
    write(migrated, [batch(("new", 1))], run="new")
    with engine.begin() as connection:
        for key in ("old single", "new single"):
            Inbox("billing").accept(connection, key)
        is_old = MESSAGE.c.key.like("old%") & MESSAGE.c.accepted_at.is_not(None)
        connection.execute(update(MESSAGE).where(is_old).values(accepted_at=OLD))
        connection.execute(update(LEDGER).where(LEDGER.c.run == "old").values(committed_at=OLD))
    later = (OLD + timedelta(microseconds=1)).isoformat()
    olds, news = ["old", "old single"], ["new", "new single"]
    assert keys(migrated, consumer="billing", since=OLD.isoformat()) == news + olds
    assert keys(migrated, consumer="billing", before=OLD.isoformat()) == []
    assert keys(migrated, consumer="billing", since=later) == news
    assert keys(migrated, consumer="billing", since=OLD.isoformat(), before=later) == olds
    assert [row["accepted_at"] for row in partitions(migrated, before=later)[0]] == [OLD, OLD]
    assert {row["run"] for row in partitions(migrated, read="ledger", before=later)[0]} == {"old"}


@on("sqlite")
def test_a_load_that_the_ledger_has_lost(migrated: Database, engine: Engine) -> None:
    """If a load's ledger row is lost, its keys are read without their job."""
    write(migrated, [batch(("k", 1))])
    execute(engine, delete(LEDGER))
    [[row]] = partitions(migrated, consumer="billing")
    assert (row["key"], row["run"], row["part"]) == ("k", None, None)


@on("sqlite")
def test_the_parts_of_a_key(migrated: Database, engine: Engine) -> None:
    """With the option `key`, the parts of each key are read as separate columns, for joins. A key with a
    different number of parts raises an error."""
    rows = pa.record_batch({"id": ["a", 'ä,"', "c"], "amount": pa.array([1, -2, 3], pa.int64())})
    write(migrated, [rows], key=["amount", "id"])
    [read] = partitions(migrated, consumer="billing", key="number, id")
    assert {(row["number"], row["id"]) for row in read} == {("1", "a"), ("-2", 'ä,"'), ("3", "c")}
    with engine.begin() as connection:
        Inbox("billing").accept(connection, "d")
    with pytest.raises(InvalidRow, match="a stored key has not 2 parts"):
        partitions(migrated, consumer="billing", key="number,id")
    assert len(partitions(migrated, consumer="billing", key="id")[0]) == 4


def test_the_ledger(migrated: Database, engine: Engine) -> None:
    """Each ledger row is read once, with its counts."""
    for number in range(3):
        write(migrated, [batch(("a", 1), (f"k{number}", 1))], run="r", batch=number)
    write(migrated, [batch(("a", 1))], consumer="other")
    read = partitions(migrated, read="ledger", consumer="billing", rowsPerPartition=2)
    rows = [row for part in read for row in part]
    assert len(read) == 4
    assert [(row["batch"], row["rows_new"], row["rows_duplicate"]) for row in rows if row["part"] == 0] == [
        (0, 2, 0),
        (1, 1, 1),
        (2, 1, 1),
    ]
    there = set(fetched(engine, select(LEDGER.c.id)))
    everything = [(row["id"],) for part in partitions(migrated, read="ledger") for row in part]
    assert set(everything) == there
    assert len(everything) == len(there)


def test_a_page_whose_connection_breaks_is_read_again(migrated: Database, engine: Engine) -> None:
    """If the connection breaks, that page is read again, and the other pages only once."""
    write(migrated, [batch(*((f"k{number}", 1) for number in range(10, 40)))])
    read = source(migrated, consumer="billing", fetchsize=10)
    reader = read.reader(read.schema())
    [part] = reader.partitions()
    broken: list[str] = []

    def cut(connection: Any, cursor: Any, statement: str, *others: Any) -> None:
        if "inbox_message" in statement and len(broken) < 3:
            broken.append(statement)
            if len(broken) == 2:
                connection.connection.driver_connection.close()

    event.listen(Engine, "before_cursor_execute", cut)
    try:
        found = [row["key"] for each in reader.read(part) for row in _rows(each)]
    finally:
        event.remove(Engine, "before_cursor_execute", cut)
    assert len(broken) == 3
    assert found == [f"k{number}" for number in range(10, 40)]


@on("sqlite")
def test_nothing_to_read(migrated: Database) -> None:
    """A consumer without keys has no rows, and empty tables have none either."""
    for options in ({"consumer": "nobody"}, {}, {"read": "ledger"}):
        with case(options):
            assert [row for part in partitions(migrated, **options) for row in part] == []


@on("sqlite")
def test_a_database_without_the_tables(database: Database) -> None:
    """A database without the tables is rejected on the driver."""
    with pytest.raises(TablesMissing):
        partitions(database, consumer="billing")


@on("postgresql")
def test_a_page_walks_through_the_primary_key(migrated: Database, engine: Engine) -> None:
    """A page reads only its own rows, however many keys the consumer has."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO inbox_message (consumer, key, claim) "
            "SELECT 'billing', 'k' || n, decode(md5(n::text), 'hex') FROM generate_series(1, 20000) AS n"
        )
        connection.exec_driver_sql("ANALYZE inbox_message")
    plans: list[str] = []

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *others: Any) -> None:
        if statement.startswith("SELECT inbox_message"):
            found = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars()
            plans.append("\n".join(found))

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        options = {"consumer": "billing", "rowsPerPartition": 5_000, "fetchsize": 1_000}
        assert len(keys(migrated, **options)) == 20_000
    finally:
        event.remove(Engine, "before_cursor_execute", explain)
    assert len(plans) >= 24
    for plan in plans:
        assert "inbox_message_pkey" in plan, plan
        assert "Sort" not in plan, plan


USUAL = {"url": "postgresql://h/d", "consumer": "c"}
WRONG = [
    ({"read": "everything"}, "read='everything': expected one of keys, ledger"),
    ({"dbtable": "t"}, "dbtable='t': no such option for reading"),
    ({"path": "keys"}, "path='keys'"),
    ({"consumer": ""}, "consumer"),
    ({"read": "ledger", "key": "a"}, "key='a': only with read='keys'"),
    ({"key": "a,Run"}, "key='a,Run': a read has a column 'Run'"),
    ({"key": "a,A"}, "key='a,A'"),
    ({"since": "yesterday"}, "since='yesterday'"),
    ({"before": "2026-11-01"}, "before='2026-11-01': expected a time with its offset"),
    ({"rowsPerPartition": "0"}, "rowsPerPartition=0"),
    ({"fetchsize": "many"}, "many"),
    ({"pushdown": "true"}, "pushdown='true': no such option for reading"),
]


def test_wrong_options() -> None:
    """Each wrong option is rejected by name and value, before a connection is made."""
    for options, said in WRONG:
        with case(options), pytest.raises(InvalidOption) as caught:
            InboxDataSource({**USUAL, **options}).schema()
        assert said in str(caught.value)
    with pytest.raises(InvalidOption, match="url: missing"):
        InboxDataSource({"consumer": "c"}).schema()
    with pytest.raises(InvalidOption, match="schema: a read has its own columns"):
        InboxDataSource(USUAL).reader(StructType().add("key", StringType()))


@pytest.mark.quick("postgresql")
@on("postgresql", "mariadb")
def test_reconciling_some_keys(migrated: Database, engine: Engine) -> None:
    """It reads of the ledger only the rows that the keys name, however many others there are."""
    for part in range(30):
        write(migrated, [batch((f"k{part}", part))], run=f"r{part}")
    execute(engine, "DELETE FROM result WHERE id = 'k9'")
    with fetching() as fetched_rows:
        found = reconcile(migrated, [batch(*((f"k{part}", part) for part in (8, 9)))])
    assert [each.run for each in found.differences] == ["r9"]
    assert max(fetched_rows) <= 2


@contextmanager
def fetching() -> Iterator[list[int]]:
    """How many rows of the ledger each statement in the body returned."""
    counted: list[int] = []

    def count(*given: Any) -> None:
        _, cursor, statement, *_ = given
        if "FROM inbox_ledger" in statement:
            counted.append(cursor.rowcount)

    event.listen(Engine, "after_cursor_execute", count)
    try:
        yield counted
    finally:
        event.remove(Engine, "after_cursor_execute", count)
    assert counted
