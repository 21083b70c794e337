"""New rows are appended, merged, or passed to SQL and functions, exactly once."""

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    func,
    insert,
    select,
    update,
)

from inbox.errors import TablesMissing
from inbox.schema import tables
from spark import Append, Statements, Upsert
from spark._options.settings import WriterSettings
from spark.errors import ColumnMismatch
from tests.spark.test_reconciling import reconcile
from tests.support import accounts
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.spark.writes import (
    RESULT,
    SCHEMA,
    attempt,
    batch,
    counts,
    execute,
    fetched,
    make_result,
    prepared,
    taken,
    write,
    written,
)

METADATA = MetaData()
PRICE = Table(
    "price",
    METADATA,
    Column("shop", String(20), primary_key=True),
    Column("item", Integer, primary_key=True, autoincrement=False),
    Column("version", BigInteger),
    Column("price", BigInteger, nullable=False),
)
TAKING_SUMS = Statements(
    "UPDATE account SET total = total + (SELECT coalesce(sum(amount), 0) FROM new_rows "
    "WHERE new_rows.name = account.name)"
)
NEWEST = Upsert(["shop", "item"], "version")


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with the result tables."""
    METADATA.create_all(migrated.engine())
    return make_result(migrated)


def rows(**columns: list[Any]) -> pa.RecordBatch:
    """Columns as Spark would send them."""
    return pa.record_batch({name: pa.array(values) for name, values in columns.items()})


def test_append_goes_by_the_names_of_columns(migrated: Database, engine: Engine) -> None:
    """Columns are matched by name, in any order. A nullable column can be left out. A key for which the table
    has no column is stored only in the inbox."""
    write(migrated, [rows(amount=[1], event=["e1"], id=["a"])], key="event", results=Append())
    write(migrated, [rows(note=["n"], id=["b"])], key="id")
    assert taken(engine) == ["b", "e1"]
    assert written(engine) == [("a", 1), ("b", None)]


def prices(*values: tuple[str, int | None, int]) -> pa.RecordBatch:
    """Prices of one item in one shop: each event's key, version and price."""
    return rows(
        event=[key for key, _, _ in values],
        shop=["s"] * len(values),
        item=pa.array([1] * len(values), pa.int32()),
        version=pa.array([version for _, version, _ in values], pa.int64()),
        price=[price for _, _, price in values],
    )


def price(engine: Engine) -> list[tuple[Any, ...]]:
    """The stored versions and prices."""
    return fetched(engine, select(PRICE.c.version, PRICE.c.price))


ORDERS: list[tuple[list[Any], tuple[int, int]]] = [
    ([[("a", 1, 10)], [("b", 2, 20)]], (2, 20)),
    ([[("b", 2, 20)], [("a", 1, 10)]], (2, 20)),
    ([[("a", 1, 10), ("b", 3, 30), ("c", 2, 20)]], (3, 30)),
    ([[("c", 3, 30), ("b", 2, 20), ("a", 1, 10)], [("d", 3, 99)]], (3, 30)),
    ([[("a", 1, 10)], [("b", 3, 30), ("c", 2, 20), ("d", 1, 15)], [("e", 2, 25)]], (3, 30)),
    ([[("a", -5, 10)], [("b", -4, 20)]], (-4, 20)),
    ([[("a", None, 10), ("b", 1, 20)]], (1, 20)),
    ([[("a", 1, 20)], [("b", None, 10)]], (1, 20)),
    ([[("a", None, 10)], [("b", 1, 20)]], (1, 20)),
]


def test_upsert_keeps_the_newest(migrated: Database, engine: Engine) -> None:
    """Of all rows of an item, the one with the highest version is in the table at the end, in whatever order
    and however many at a time they arrive. A NULL or equal version does not replace a row. The report counts
    the rows of the table that were updated."""
    for batches, newest in ORDERS:
        with case(batches):
            stored: list[float] = []
            for values in batches:
                report = write(migrated, [prices(*values)], table="price", key="event", results=NEWEST)
                assert counts(report) == {"new": len(values)}
                given = max(-math.inf if version is None else version for _, version, _ in values)
                assert report.updated == sum(given > each for each in stored)
                stored = [max([given, *stored])]
            assert price(engine) == [newest]
        execute(engine, delete(PRICE), delete(tables().message))


def test_upsert_of_equal_versions_keeps_one_whole_row(migrated: Database, engine: Engine) -> None:
    """Of two new rows with equal versions, one is kept as a whole."""
    write(migrated, [prices(("a", 1, 10), ("b", 1, 20))], table="price", key="event", results=NEWEST)
    assert price(engine) in ([(1, 10)], [(1, 20)])


@on("sqlite")
def test_upsert_sees_each_event_once(migrated: Database, engine: Engine) -> None:
    """An event that is repeated with a higher version is a duplicate, and changes nothing."""
    write(migrated, [prices(("a", 1, 10))], table="price", key="event", results=NEWEST)
    report = write(migrated, [prices(("a", 9, 90))], table="price", key="event", results=NEWEST)
    assert counts(report) == {"duplicate": 1}
    assert price(engine) == [(1, 10)]


@pytest.mark.parametrize(("inbox", "table"), [("rows", "nothing"), ("table", "Words 100% :a")])
def test_names_that_need_quotes(migrated: Database, engine: Engine, inbox: str, table: str) -> None:
    """Tables and columns may have any name, as may the key and the version of an upsert: `nothing` is a
    keyword of SQLite that SQLAlchemy does not know."""
    names = ("nothing", "order", "a:b (c)")
    quote = engine.dialect.identifier_preparer.quote_identifier
    key, version, other = (quote(name) for name in names)
    quoted = quote(table).replace("%%", "%")  # doubled for statements with parameters
    columns = f"{key} varchar(20) PRIMARY KEY, {version} bigint, {other} bigint"
    execute(engine, f"CREATE TABLE {quoted} ({columns})")
    options: dict[str, Any] = {"key": ["nothing", "order"], "results": Upsert("nothing", "order")}
    given = pa.record_batch([["a", "a", "b"], [1, 2, 1], [3, 4, 5]], names=list(names))
    write(migrated, [given], table=table, inbox=inbox, **options)
    assert fetched(engine, f"SELECT * FROM {quoted} ORDER BY 1") == [("a", 2, 4), ("b", 1, 5)]


def test_upsert_of_nothing_but_its_key(migrated: Database, engine: Engine) -> None:
    """Upsert works for a table that has only a key and a version."""
    METADATA.tables["price"].drop(engine)
    execute(engine, "CREATE TABLE price (item INTEGER PRIMARY KEY, version BIGINT)")
    for version in (1, 3, 2):
        batches = [rows(event=[f"e{version}"], item=pa.array([1], pa.int32()), version=[version])]
        write(migrated, batches, table="price", key="event", results=Upsert("item", "version"))
    assert fetched(engine, "SELECT item, version FROM price") == [(1, 3)]


def payments(first: int, last: int) -> pa.RecordBatch:
    """Payments, each of a different amount, to two accounts in turn."""
    numbers = range(first, last)
    return rows(
        event=[f"e{number}" for number in numbers],
        name=["cash" if number % 2 else "bank" for number in numbers],
        amount=list(numbers),
    )


def test_sums_of_statements_are_exact(migrated: Database, engine: Engine) -> None:
    """An UPDATE that adds up the new rows counts each event once, over partitions, repeated attempts, replays
    and overlapping jobs."""
    accounts.make(engine, ["cash", "bank"])
    options: dict[str, Any] = {"table": None, "key": "event", "results": TAKING_SUMS}
    parts = [[payments(0, 40), payments(30, 50)], [payments(45, 100)]]
    for _ in range(2):
        write(migrated, *parts, run="r", **options)
    task = prepared(migrated, schema=payments(0, 1).schema, **options)
    attempt(task, 0, payments(0, 100))
    attempt(task, 0, payments(90, 130))
    odd, even = sum(range(1, 130, 2)), sum(range(0, 130, 2))
    assert accounts.totals(engine) == {"cash": odd, "bank": even}


def test_statements_run_in_order_and_as_they_are(migrated: Database, engine: Engine) -> None:
    """All statements see the same new rows, also in a large partition. Colons and percent signs are taken
    literally. Without new rows no statement runs."""
    results = Statements(
        "INSERT INTO result (id, amount, note) "
        "SELECT id, amount, '100 % :x %s' FROM new_rows WHERE id LIKE 'a%'",
        "UPDATE result SET amount = amount + 1",
        "INSERT INTO result (id, amount) SELECT 'all', count(*) FROM new_rows",
    )
    for _ in range(2):
        write(migrated, [batch(("a1", 1), ("a2", 2), ("b", 3))], results=results)
    assert written(engine) == [("a1", 2), ("a2", 3), ("all", 3)]
    assert fetched(engine, select(func.count()).where(RESULT.c.note == "100 % :x %s")) == [(2,)]
    many = [batch(*((f"{at} {number}", 1) for number in range(2_000))) for at in range(10)]
    write(migrated, many, results=Statements(results.texts[2]), memory=2**20)
    assert ("all", 20_000) in written(engine)


@on("sqlite")
def test_a_function_sees_all_new_rows_once(migrated: Database, engine: Engine) -> None:
    """The function is called once in each partition's transaction, with the new rows, and not at all if there
    are none."""
    accounts.make(engine)
    calls = []

    def add(connection: Connection, new: Iterator[pa.RecordBatch]) -> None:
        calls.append([sorted(each.column("id").to_pylist()) for each in new])
        connection.execute(update(accounts.Account).values(total=accounts.Account.total + len(calls[-1])))

    options = {"results": add, "table": None, "batch_size": 2}
    write(migrated, [batch(("a", 1), ("b", 2), ("a", 3), ("c", 4))], [batch(("d", 1))], [], **options)
    write(migrated, [batch(("a", 1), ("e", 2))], [batch(("d", 1))], **options)
    assert calls == [[["a", "b"], ["c"]], [["d"]], [["e"]]]
    assert accounts.total(engine) == 4


TEXT, NUMBER = pa.string(), pa.int64()
MISFITS: dict[str, tuple[dict[str, Any], list[tuple[str, pa.DataType]], str]] = {
    "no key": ({"key": "event"}, [("id", TEXT)], "key='event'.*'id'"),
    "no second key": ({"key": ["id", "day"]}, [("id", TEXT)], "key='day'"),
    "a key in another case": ({}, [("ID", TEXT)], "key='id'"),
    "a key of a wrong type": ({}, [("id", pa.float64())], "key column 'id'.*double"),
    "two of a name": ({}, [("id", TEXT), ("amount", NUMBER), ("amount", NUMBER)], "two columns.*'amount'"),
    "no table": ({"table": "nowhere"}, [("id", TEXT)], "table='nowhere'"),
    "an unknown column": ({}, [("id", TEXT), ("extra", TEXT)], "column 'extra'.*result"),
    "a missing column": ({}, [("event", TEXT), ("amount", NUMBER)], "column 'id'.*NOT NULL"),
    "text for a number": ({}, [("id", TEXT), ("amount", pa.bool_())], "column 'amount'.*bool"),
    "no type at all": (
        {},
        [("id", TEXT), ("note", pa.struct([("value", pa.binary()), ("metadata", pa.binary())]))],
        "column 'note'",
    ),
    "a reserved name": ({}, [("id", TEXT), ("inbox_key", TEXT)], "'inbox_key'"),
    "a reserved name for a function": (
        {"results": print},
        [("id", TEXT), ("inbox_key", TEXT)],
        "'inbox_key'",
    ),
    "upsert without its key": (
        {"table": "price", "results": NEWEST, "key": "price"},
        [("shop", TEXT), ("version", NUMBER), ("price", NUMBER)],
        "'item'",
    ),
    "upsert without its version": (
        {"table": "price", "results": NEWEST, "key": "price"},
        [("shop", TEXT), ("item", pa.int32()), ("price", NUMBER)],
        "'version'",
    ),
}


@pytest.mark.usefixtures("engine")
def test_what_does_not_fit_is_found_before_a_row_is_read(migrated: Database) -> None:
    """A column that does not fit the target raises `ColumnMismatch`, which names it, on the driver before a
    task starts."""
    for name, (given, columns, said) in MISFITS.items():
        options = {**given, "key": "event"} if "event" in dict(columns) else given
        with case(name), pytest.raises(ColumnMismatch, match=said):
            prepared(migrated, schema=pa.schema(columns), **options)


@pytest.mark.usefixtures("engine")
def test_an_upsert_without_a_unique_key(migrated: Database) -> None:
    """An upsert by columns that no unique key of the table is on is rejected before a row is read."""
    schema = pa.schema({"event": TEXT, "shop": TEXT, "item": pa.int32(), "version": NUMBER, "price": NUMBER})
    options: dict[str, Any] = {"table": "price", "key": "event", "results": Upsert("price", "version")}
    with pytest.raises(ColumnMismatch, match=r"Upsert\(key=\('price',\)\): .*(unique|UNIQUE)"):
        prepared(migrated, schema=schema, **options)


def test_missing_tables_are_found_before_a_row_is_read(database: Database) -> None:
    """A database without the inbox tables raises `TablesMissing`, with the command that creates them."""
    make_result(database)
    with pytest.raises(TablesMissing, match=r"inbox_message.*inbox-outbox migrate"):
        prepared(database, schema=SCHEMA)


def test_a_value_that_the_table_refuses_leaves_nothing(migrated: Database, engine: Engine) -> None:
    """A row that violates a constraint rolls back its whole partition, keys included."""
    METADATA.create_all(engine)
    execute(engine, insert(PRICE).values(shop="s", item=1, version=1, price=1))
    with pytest.raises(Exception, match=r"(?i)1062|unique"):
        write(migrated, [prices(("a", 1, 1))], table="price", key="event", run="r")
    assert taken(engine) == []
    assert price(engine) == [(1, 1)]


@on("postgresql")
def test_everything_a_task_is_told_can_be_sent(migrated: Database) -> None:
    """A task's settings survive pickling: results and password arrive on an executor unchanged."""
    make_result(migrated)
    METADATA.create_all(migrated.engine())
    for results in (Append(), TAKING_SUMS):
        settings: WriterSettings = prepared(migrated, results=results).settings
        assert settings.results == results
        assert settings.url.password == migrated.url.password


def test_a_rule_with_a_function_that_takes_no_null(postgres: Database) -> None:
    """A view whose rule calls a function that raises an error for NULL can be written: the check before a row
    is read has no values, and so decides nothing about such a function."""
    engine = make_result(postgres)
    body = "BEGIN IF given IS NULL THEN RAISE 'none'; END IF; RETURN given; END"
    done = "INSERT INTO result (id, amount) VALUES (present(NEW.id), NEW.amount)"
    execute(
        engine,
        f"CREATE FUNCTION present(given text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $${body}$$",
        "CREATE VIEW seen AS SELECT id, amount FROM result",
        f"CREATE RULE written AS ON INSERT TO seen DO INSTEAD {done}",
    )
    assert write(postgres, [batch(("a", 1))], table="seen").new == 1
    assert written(engine) == [("a", 1)]


def test_a_rule_of_the_target_fires(postgres: Database) -> None:
    """A rule of PostgreSQL sees each row, whatever the types of the columns."""
    engine = make_result(postgres)
    rule = "CREATE RULE seen AS ON INSERT TO result DO ALSO INSERT INTO seen VALUES (NEW.id)"
    execute(engine, "CREATE TABLE seen (id text)", rule)
    assert write(postgres, [batch(("a", 1), ("b", 2))]).new == 2
    assert set(fetched(engine, "SELECT id FROM seen")) == {("a",), ("b",)}


def accounts_of(*values: tuple[str, str | None, int | None]) -> pa.RecordBatch:
    """Events: a key, an account, and a version."""
    kinds = {"event": pa.string(), "account": pa.string(), "v": pa.int64()}
    columns = zip(*values, strict=True)
    return pa.record_batch(
        [pa.array(column, kind) for column, kind in zip(columns, kinds.values(), strict=True)],
        names=[*kinds],
    )


NULL_KEYS: dict[str, Any] = {"key": "event", "table": "holding", "results": Upsert("account", "v")}
HOLDING = "CREATE TABLE holding (account varchar(20), v bigint, UNIQUE {} (account))"
EVENTS = [("a", None, 1), ("b", None, 2), ("c", None, None), ("d", "x", 1), ("e", "x", 2)]


def held(engine: Engine) -> list[tuple[Any, ...]]:
    """The rows of the table."""
    return sorted(fetched(engine, "SELECT account, v FROM holding"), key=str)


def test_an_upsert_whose_key_is_null(migrated: Database, engine: Engine) -> None:
    """NULLs are different values in a unique key, so each row with NULL is inserted, also those of one
    partition. `reconcile` finds them in the table, and misses one that was deleted."""
    execute(engine, HOLDING.format(""))
    assert counts(write(migrated, [accounts_of(*EVENTS)], **NULL_KEYS)) == {"new": 5}
    assert held(engine) == [("x", 2), (None, 1), (None, 2), (None, None)]
    found = reconcile(migrated, [accounts_of(*EVENTS, ("f", None, 1))], **NULL_KEYS)
    assert (found.present, found.untaken) == (5, 1)
    execute(engine, "DELETE FROM holding WHERE account IS NULL AND v IS NULL")
    found = reconcile(migrated, [accounts_of(*EVENTS, ("g", None, 9))], **NULL_KEYS)
    assert (found.present, found.unapplied, found.missing) == (4, 1, 1)


def test_a_key_in_which_nulls_are_equal(postgres: Database) -> None:
    """With NULLS NOT DISTINCT, rows with NULL are one row, and the newest stands."""
    engine = postgres.engine()
    execute(engine, HOLDING.format("NULLS NOT DISTINCT"))
    write(postgres, [accounts_of(*EVENTS)], **NULL_KEYS)
    assert held(engine) == [("x", 2), (None, 2)]
    assert write(postgres, [accounts_of(("h", None, 3), ("i", "y", 1))], **NULL_KEYS).updated == 1
    found = reconcile(postgres, [accounts_of(*EVENTS)], **NULL_KEYS)
    assert (found.present, found.keys) == (5, 5)


def test_a_target_outside_of_the_transaction(postgres: Database) -> None:
    """A foreign table is refused, also as a partition or behind a view: its server commits on its own."""
    execute(
        postgres.engine(),
        "CREATE FOREIGN DATA WRAPPER elsewhere",
        "CREATE SERVER other FOREIGN DATA WRAPPER elsewhere",
        "CREATE FOREIGN TABLE away (id varchar(20), amount bigint) SERVER other",
        "CREATE TABLE whole (id varchar(20), amount bigint) PARTITION BY RANGE (amount)",
        "CREATE TABLE near PARTITION OF whole FOR VALUES FROM (0) TO (9)",
        "CREATE FOREIGN TABLE far PARTITION OF whole FOR VALUES FROM (9) TO (99) SERVER other",
        "CREATE VIEW seen AS SELECT * FROM whole",
        "CREATE VIEW seen_again AS SELECT * FROM seen",
    )
    for name, foreign in (("away", "away"), ("whole", "far"), ("seen", "far"), ("seen_again", "far")):
        with pytest.raises(ColumnMismatch, match=f"table public.{name}: {foreign} is a foreign table"):
            write(postgres, [batch(("a", 1))], table=name)
    assert counts(write(postgres, [batch(("a", 1))], table="near")) == {"new": 1}


def test_a_target_that_a_crash_empties(postgres: Database) -> None:
    """An unlogged table is refused, also as a partition: its keys would stay taken."""
    execute(
        postgres.engine(),
        "CREATE UNLOGGED TABLE fast (id varchar(20), amount bigint)",
        "CREATE TABLE whole (id varchar(20), amount bigint) PARTITION BY RANGE (amount)",
        "CREATE UNLOGGED TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (9)",
    )
    for name, unlogged in (("fast", "fast"), ("whole", "part")):
        with pytest.raises(ColumnMismatch, match=f"table public.{name}: {unlogged} is unlogged"):
            write(postgres, [batch(("a", 1))], table=name)


@on("mysql", "mariadb")
def test_an_engine_without_transactions(migrated: Database, engine: Engine) -> None:
    """A table whose engine cannot roll back is refused."""
    execute(engine, "CREATE TABLE flat (id varchar(20), amount bigint) ENGINE = MyISAM")
    with pytest.raises(ColumnMismatch, match=r"\.flat: its engine is MyISAM, not InnoDB"):
        write(migrated, [batch(("a", 1))], table="flat")
