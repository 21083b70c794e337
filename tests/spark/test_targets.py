"""Several targets: headers and lines, written in one partition's transaction."""

import os
import signal
import sys
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    select,
)
from sqlalchemy.exc import DBAPIError

from inbox.errors import InvalidOption
from inbox_outbox_base.databases.mysql.loading import MySQLLoading
from spark import Append, InboxWriter, PerRow, Statements, Upsert
from spark._executor.destinations import Destination
from spark._options.settings import checked
from spark.errors import ColumnMismatch
from tests.spark.test_outbox import relayed
from tests.support.cases import case
from tests.support.crash_worker import kill_at
from tests.support.database import Database
from tests.support.forked import run_forked
from tests.support.on_servers import each_on, on
from tests.support.processes import wait_until
from tests.support.spark.writes import (
    attempt,
    batch,
    counts,
    execute,
    fetched,
    options_of,
    prepared,
    taken,
    write,
)
from tests.support.together import Task

METADATA = MetaData()
ORDER = Table(
    "purchase",
    METADATA,
    Column("purchase_id", String(20), primary_key=True),
    Column("version", BigInteger),
    Column("buyer", String(20)),
)
LINE = Table(
    "line",
    METADATA,
    Column("purchase_id", String(20), ForeignKey("purchase.purchase_id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("sku", String(20)),
)
TAG = Table("tag", METADATA, Column("purchase_id", String(20)), Column("tags", String(20)))
ITEM = pa.struct([("number", pa.int32()), ("sku", pa.string())])
SCHEMA = pa.schema(
    [
        ("purchase_id", pa.string()),
        ("version", pa.int64()),
        ("buyer", pa.string()),
        ("items", pa.list_(ITEM)),
        ("tags", pa.list_(pa.string())),
    ]
)
TARGETS = [Append("purchase"), Append("line", explode="items"), Append("tag", explode="tags")]
TOLD = PerRow("bought", payload="buyer")
USUAL: dict[str, Any] = {"table": None, "key": "purchase_id", "results": TARGETS}


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with the tables."""
    METADATA.create_all(migrated.engine())
    return migrated.engine()


def purchases(*numbers: int, version: int = 1) -> pa.RecordBatch:
    """A purchase for each number: its last digit is the number of its lines, and its array of tags is NULL,
    empty, or has two elements."""
    rows = [
        {
            "purchase_id": f"p{number}",
            "version": version,
            "buyer": f"b{number}",
            "items": [{"number": line, "sku": f"s{number}-{line}"} for line in range(number % 10)],
            "tags": [None, [], ["a", f"t{number}"]][number % 3],
        }
        for number in numbers
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def stored(engine: Engine) -> tuple[list[str], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows of the three tables, sorted."""
    orders, lines, tags = (sorted(fetched(engine, select(each))) for each in (ORDER.c.purchase_id, LINE, TAG))
    return [number for (number,) in orders], lines, tags


def expected(*numbers: int) -> tuple[list[str], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The content of the tables when these purchases are applied once."""
    lines = [(f"p{each}", line, f"s{each}-{line}") for each in numbers for line in range(each % 10)]
    tags = [(f"p{each}", tag) for each in numbers if each % 3 == 2 for tag in ("a", f"t{each}")]
    return sorted(f"p{each}" for each in numbers), sorted(lines), sorted(tags)


@each_on("sqlite", "ledger", ["verify", "off"])
def test_headers_and_lines_are_applied_once(migrated: Database, engine: Engine, ledger: str) -> None:
    """Each new purchase is written with its lines and tags once, however often it is repeated. The report
    counts purchases, not lines."""
    options = USUAL | {"ledger": ledger}
    first = write(migrated, [purchases(1, 2, 3, 2)], [purchases(4)], **options)
    assert counts(first) == {"new": 4, "repeated": 1}
    assert counts(write(migrated, [purchases(3, 15, 4, 20)], **options)) == {"new": 2, "duplicate": 2}
    assert stored(engine) == expected(1, 2, 3, 4, 15, 20)
    assert taken(engine) == ["p1", "p15", "p2", "p20", "p3", "p4"]


def test_more_than_memory_holds(migrated: Database, engine: Engine) -> None:
    """A partition larger than memory goes to all targets, headers before their lines."""
    numbers = [*range(1, 6_000)]
    write(
        migrated,
        [purchases(*numbers[at : at + 1_000]) for at in range(0, 6_000, 1_000)],
        memory=2**20,
        **USUAL,
    )
    assert stored(engine) == expected(*numbers)


def test_headers_that_need_a_cast_come_first_all_the_same(migrated: Database, engine: Engine) -> None:
    """Headers that need a cast are still inserted before the lines that refer to them: the lines wait in a
    temporary table, too."""
    narrow = purchases(*range(1, 10)).cast(SCHEMA.set(1, pa.field("version", pa.int32())))
    write(migrated, [narrow], **USUAL)
    assert stored(engine) == expected(*range(1, 10))


def test_a_header_that_is_updated(migrated: Database, engine: Engine) -> None:
    """Each version is taken once. The newest header is stored, and existing lines are updated."""
    results = [
        Upsert("purchase_id", "version", "purchase", columns=["purchase_id", "version", "buyer"]),
        Upsert(["purchase_id", "number"], "sku", "line", columns="purchase_id", explode="items"),
    ]
    options = {"table": None, "key": ["purchase_id", "version"], "results": results}
    for version in (1, 3, 2, 3):
        write(migrated, [purchases(2, 5, version=version).select(SCHEMA.names[:4])], **options)
    assert stored(engine)[:2] == expected(2, 5)[:2]
    assert set(fetched(engine, select(ORDER.c.version))) == {(3,)}


def test_a_target_that_refuses_a_row(migrated: Database, engine: Engine) -> None:
    """If one target fails, nothing is written to any target, and no key is taken."""
    rows = purchases(7, 8).to_pylist()
    rows[1]["items"][3]["number"] = 2
    with pytest.raises(Exception, match=r"(?i)1062|unique"):
        write(migrated, [pa.RecordBatch.from_pylist(rows, schema=SCHEMA)], **USUAL)
    assert (stored(engine), taken(engine)) == (expected(), [])


@pytest.mark.quick("postgresql")
@each_on("postgresql", "point", ["between targets", "before commit", "after commit"])
def test_a_killed_task_leaves_all_or_nothing(migrated: Database, engine: Engine, point: str) -> None:
    """A task is killed with kill -9 between two targets, and just before or after the COMMIT: there are all
    rows and messages, or none. Another attempt at the partition completes it, and each purchase has its lines
    and its message once."""
    url = migrated.url.render_as_string(hide_password=False)
    code, _, errors = run_forked(die_writing, ["die_writing", url, point])
    assert code == -signal.SIGKILL, errors
    there = range(1, 40) if point == "after commit" else ()
    assert stored(engine) == expected(*there)
    sent = relayed(migrated)
    assert len(sent) == len(there)
    report = write(migrated, [purchases(*range(1, 40))], run="r", **USUAL, outbox=TOLD)
    assert counts(report) == {"new": 39}
    assert stored(engine) == expected(*range(1, 40))
    assert len(sent + relayed(migrated)) == 39


def die_writing() -> None:
    """Runs a task in a separate process that is killed at a point."""
    url, point = sys.argv[1:]
    database: Any = create_engine(url)
    task = prepared(database, schema=SCHEMA, run="r", **USUAL, outbox=TOLD)
    if point == "between targets":
        _kill_before_the_second_target()
    else:
        kill_at(Engine, point)  # type: ignore[arg-type]
    attempt(task, 0, purchases(*range(1, 40)))


def _kill_before_the_second_target() -> None:
    original = Destination.rows

    def rows(self: Destination, given: pa.Table) -> pa.Table:
        if self.explode is not None and given.num_rows:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, given)

    Destination.rows = rows  # type: ignore[method-assign, assignment]


FITTING: list[tuple[list[Append | Upsert], str]] = [
    ([Append("nowhere")], "table='nowhere'"),
    (
        [Append("purchase", columns=["purchase_id", "sku"])],
        "table purchase: the DataFrame has no column 'sku'",
    ),
    ([Append("purchase", columns=["tags"])], "table purchase has no such column"),
    ([Append("line", explode="lines")], "explode='lines': the DataFrame has no such column"),
    ([Append("line", explode="buyer")], "explode='buyer': the column has the type string, expected an array"),
    ([Append("line", explode="tags")], "column 'tags': table line has no such column"),
    ([Append("tag", columns=["purchase_id", "tags"], explode="tags")], "two columns named 'tags'"),
    ([Append("tag", columns=["purchase_id"])], ""),
    ([Append("line", columns=["buyer"], explode="items")], "column 'buyer': table line"),
]


CHANGES = {
    "a type": ("rows", ["ALTER TABLE item ALTER amount TYPE real"], "'amount' of type int64 does not fit"),
    "the key": ("table", ["ALTER TABLE item DROP CONSTRAINT item_pkey"], "no unique key on exactly 'id'"),
}


@on("postgresql")
@pytest.mark.parametrize(("inbox", "changes", "said"), CHANGES.values(), ids=CHANGES)
def test_a_target_that_is_being_changed(
    migrated: Database, engine: Engine, inbox: str, changes: list[str], said: str
) -> None:
    """A task waits for the change, and then looks at the columns: binary values are not taken for those of
    another type, and a key that is gone rejects nothing."""
    execute(engine, "CREATE TABLE item (id text PRIMARY KEY, amount bigint)")
    task = prepared(migrated, table="item", key="id", inbox=inbox)
    with engine.connect() as connection:
        for change in changes:
            connection.exec_driver_sql(change)
        writing = Task(lambda: attempt(task, 0, batch(("a", 5))))
        wait_until(lambda: fetched(engine, "SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])
        connection.commit()
    with pytest.raises(ColumnMismatch, match=said):
        writing.result()
    assert fetched(engine, "SELECT count(*) FROM item") == [(0,)]


@on("postgresql")
def test_what_is_not_changed(migrated: Database, engine: Engine) -> None:
    """A task waits neither for another partition of its target, nor needs rights to what a view reads."""
    execute(
        engine,
        "CREATE TABLE item (id text, amount bigint) PARTITION BY LIST (id)",
        "CREATE TABLE item_a PARTITION OF item FOR VALUES IN ('a')",
        "CREATE TABLE item_b PARTITION OF item FOR VALUES IN ('b')",
        "CREATE VIEW sold AS SELECT id, amount FROM item WHERE id <> (SELECT min(rolname) FROM pg_roles)",
    )
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE INDEX ON item_b (amount)")
        assert write(migrated, [batch(("a", 5))], table="item", key="id", lock_timeout=1).new == 1
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE vendor_of_items")
        connection.exec_driver_sql("GRANT INSERT, SELECT ON item TO vendor_of_items")
        connection.exec_driver_sql("ALTER VIEW sold OWNER TO vendor_of_items")
    try:
        assert write(migrated, [batch(("b", 6))], table="sold", key="id").new == 1
    finally:
        execute(engine, "DROP OWNED BY vendor_of_items", "DROP ROLE vendor_of_items")


@on("mariadb", "mysql")
def test_a_target_keeps_its_columns(migrated: Database, engine: Engine) -> None:
    """The same on MySQL, where a statement waits for a transaction that has used the table."""
    execute(engine, "CREATE TABLE item (id varchar(9) PRIMARY KEY, amount bigint)")
    settings, database = options_of(migrated, table="item", key="id"), MySQLLoading()
    with engine.connect() as connection, engine.connect() as other:
        database.lock_types(connection, settings)
        other.exec_driver_sql("SET SESSION lock_wait_timeout = 1")
        with pytest.raises(DBAPIError, match="Lock wait timeout"):
            other.exec_driver_sql("ALTER TABLE item MODIFY amount int")


@on("sqlite")
def test_targets_that_do_not_fit(migrated: Database, engine: Engine) -> None:
    """A target that does not fit is rejected on the driver, by an error that names the table and the
    column."""
    for results, said in FITTING:
        with case(results):
            if not said:
                prepared(migrated, schema=SCHEMA, **USUAL | {"results": results})
                continue
            with pytest.raises(ColumnMismatch) as caught:
                prepared(migrated, schema=SCHEMA, **USUAL | {"results": results})
            assert said in str(caught.value)


def test_wrong_targets() -> None:
    """A wrong target is rejected by an error that names the option."""
    usual: dict[str, Any] = {"url": "postgresql://h/d", "key": "k", "consumer": "c"}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"results": []}, "results="),
        ({"results": [Append(), Statements("x")]}, "in a list"),
        ({"results": [Append(), Append()], "table": "t"}, "one table for each target"),
        ({"results": [Append("a.b.c")]}, "table='a.b.c'"),
        ({"results": [Append("a"), Append("b")], "inbox": "table"}, "inbox='table'"),
        ({"results": Append("a", explode="x"), "inbox": "table"}, "inbox='table'"),
        ({"results": [Append("a"), Upsert("k", "v", "b")]}, "each key is taken once"),
    ]
    for options, said in wrong:
        with case(options), pytest.raises(InvalidOption) as caught:
            InboxWriter(**usual, **options)
        assert said in str(caught.value)
    for make in (
        lambda: Append(""),
        lambda: Append(columns=[]),
        lambda: Append(columns=["a", "a"]),
        lambda: Upsert("a", "b", explode=""),
    ):
        with pytest.raises(InvalidOption, match="expected"):
            make()
    with pytest.raises(InvalidOption, match="table=None"):
        checked(**usual, table=None, results=[Append("a"), Append()])
    InboxWriter(**usual, table="t", results=[Append(), Append("b", explode="x")])
    assert checked(**usual, table="t", results=Append("a")).target == "a"
    InboxWriter(**usual, table="t", results=[Append()], inbox="table")
