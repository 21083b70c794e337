"""For every type that a database can hold, the stored values equal the written ones."""

from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Engine

from inbox_outbox_base.databases.mysql.loading import MySQLLoading
from inbox_outbox_base.databases.postgresql import loading
from spark import Append, Statements, Upsert
from spark.errors import ColumnMismatch
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.spark.arrays import gridded, listed
from tests.support.spark.types import CASES, Case, stored
from tests.support.spark.writes import counts, execute, fetched, write

pytestmark = pytest.mark.mysql

ALIKE = {
    "boolean",
    "short",
    "int",
    "long",
    "float",
    "double",
    "decimal without a limit",
    "text",
    "binary",
    "date",
    "clock",
    "instant",
    "time",
    "interval",
}
"""Cases whose type on PostgreSQL is the one in which they travel."""
TRANSPORTS = {
    "postgresql": ("pgpq", "copy"),
    "mysql": ("load data", "insert"),
    "mariadb": ("load data", "insert"),
    "sqlite": ("insert", "insert"),
}


@pytest.fixture(params=["as it is", "without extras"])
def transport(request: pytest.FixtureRequest, migrated: Database, monkeypatch: pytest.MonkeyPatch) -> str:
    """How rows are sent: with pgpq or LOAD DATA LOCAL where the database has them, and without."""
    if request.param == "without extras":
        monkeypatch.setattr(loading, "pgpq", None)
        monkeypatch.setattr(
            MySQLLoading, "connect_args", {**MySQLLoading.connect_args, "local_infile": False}
        )
    return TRANSPORTS[migrated.name][request.param == "without extras"]


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database; on PostgreSQL it has a user-defined type."""
    engine = migrated.engine()
    if migrated.name == "postgresql":
        execute(engine, """CREATE TYPE "mood 100%" AS ENUM ('happy', 'it''s')""")
    return engine


@pytest.mark.parametrize("results", [Append(), Upsert("id", "version")], ids=["append", "upsert"])
def test_all_types_together(
    migrated: Database, engine: Engine, transport: str, results: Append | Upsert
) -> None:
    """In a table with columns of all types, every value is stored unchanged, whatever the columns are
    called."""
    assert _changed(migrated, engine, transport, "varchar(20)", _cases(migrated), results=results) == {}


@pytest.mark.long(but_on="as it is")
@on("postgresql")
@pytest.mark.parametrize("key", ["text", "varchar(20)"])
def test_each_type_by_itself(migrated: Database, engine: Engine, transport: str, key: str) -> None:
    """Every value is stored unchanged, both if rows go straight into the table, because no column needs a
    cast, and if they go through a cast."""
    changed: dict[str, list[Any]] = {}
    for name, case in _cases(migrated).items():
        changed.update(_changed(migrated, engine, transport, key, {name: case}))
        execute(engine, "DROP TABLE target")
    assert changed == {}


@on("postgresql")
@pytest.mark.parametrize("shaped", [listed, gridded])
@pytest.mark.parametrize("names", [ALIKE, CASES], ids=["alike", "all"])
def test_arrays(
    migrated: Database,
    engine: Engine,
    transport: str,
    shaped: Callable[[Case], Case],
    names: Collection[str],
) -> None:
    """Arrays of every type are stored unchanged, also with NULL elements, as NULL or empty, and if rows go
    straight into the table."""
    # Lists of lists are two-dimensional arrays, not arrays of JSON.
    scalars = {name: case for name, case in _cases(migrated).items() if name in names and name != "array"}
    cases = {name: shaped(case) for name, case in scalars.items()}
    assert _changed(migrated, engine, None, "text", cases) == {}


@on("postgresql")
def test_arrays_of_declared_types(migrated: Database, engine: Engine) -> None:
    """Arrays can be written to a domain, to an array of a domain, and to an array of a type with a length."""
    execute(engine, "CREATE DOMAIN price AS numeric(6,2); CREATE DOMAIN words AS text[]")
    text, amount = pa.list_(pa.string()), pa.list_(pa.decimal128(5, 1))
    shown = {"postgresql": "{}::numeric[]"}
    cases = {
        "domain": Case(text, [["a", None], []], {"postgresql": "words"}),
        "of a domain": Case(
            amount, [[Decimal("1.5"), None], []], {"postgresql": "price[]"}, expression=shown
        ),
        "of a length": Case(text, [["abc", None], []], {"postgresql": "char(3)[]"}),
        "two dimensions": Case(pa.list_(text), [[["a"], ["b"]], []], {"postgresql": "varchar(3)[][]"}),
    }
    assert _changed(migrated, engine, None, "text", cases) == {}


@on("postgresql")
def test_a_domain_that_is_not_null(migrated: Database, engine: Engine) -> None:
    """A column that needs a value because of its domain is one that the DataFrame must have: COPY would put
    NULL into it."""
    domain = "CREATE DOMAIN given AS integer NOT NULL; CREATE DOMAIN told AS given"
    execute(engine, domain, "CREATE TABLE target (id text, n told)")
    with pytest.raises(ColumnMismatch, match="column 'n' of table target is NOT NULL without a default"):
        write(migrated, [pa.record_batch({"id": ["a"]})], table="target", key="id")


@on("postgresql")
def test_a_default_of_a_domain(migrated: Database, engine: Engine) -> None:
    """A NOT NULL column may be left out if its type has a default."""
    execute(
        engine, "CREATE DOMAIN five AS integer DEFAULT 5", "CREATE TABLE target (id text, n five NOT NULL)"
    )
    write(migrated, [pa.record_batch({"id": ["a"]})], table="target")
    assert fetched(engine, "SELECT id, n FROM target") == [("a", 5)]


@on("postgresql")
def test_statements_see_arrays(migrated: Database, engine: Engine, transport: str) -> None:
    """In `new_rows` a list is an array of its element type."""
    execute(engine, "CREATE TABLE target (id text, number bigint)")
    taking = Statements(
        "INSERT INTO target SELECT id, unnest(amounts) + 1 FROM new_rows",
        "INSERT INTO target SELECT id, grid[2][1] FROM new_rows WHERE grid[2][1] IS NOT NULL",
    )
    grids = pa.array([[[1, 2], [3, 4]], None], pa.list_(pa.list_(pa.int32())))
    rows = pa.record_batch({"id": ["a", "b"], "amounts": [[1, None, 2], []], "grid": grids})
    write(migrated, [rows], table=None, results=taking)
    found = fetched(engine, "SELECT id, number FROM target ORDER BY number")
    assert found == [("a", 2), ("a", 3), ("a", 3), ("a", None)]


def _cases(database: Database) -> Mapping[str, Case]:
    return {name: case for name, case in CASES.items() if case.column(database.name) is not None}


def _changed(
    database: Database,
    engine: Engine,
    transport: str | None,
    key: str,
    cases: Mapping[str, Case],
    **options: Any,
) -> dict[str, list[Any]]:
    """By name of the case: the written values, and the different ones that were read back."""
    quote = engine.dialect.identifier_preparer.quote_identifier
    columns = ", ".join(f"{quote(name)} {case.column(database.name)}" for name, case in cases.items())
    execute(engine, f"CREATE TABLE target (id {key} PRIMARY KEY, version integer, {columns})")
    rows = max(len(case.values) for case in cases.values())
    options = {
        "table": "target",
        "key": ["id", "version"],
        "consumer": ", ".join(cases)[:99],
        "batch_size": 3,
        **options,
    }
    report = write(database, _batches(cases, rows), **options)
    assert counts(report) == {"new": rows}
    assert transport in (None, report.transport)
    changed: dict[str, list[Any]] = {}
    for name, case in cases.items():
        pairs = zip(case.values, stored(engine, database, name, case), strict=False)
        changed[name] = [pair for pair in pairs if pair[0] != pair[1]]
    return {name: pairs for name, pairs in changed.items() if pairs}


def _batches(cases: Mapping[str, Case], rows: int) -> list[pa.RecordBatch]:
    """Each case as a column, in slices of longer arrays, as Spark may send them."""
    ids = [f"{number:04}" for number in range(rows)]
    table = pa.table({"id": ids, "version": pa.array([1] * rows, pa.int32())})
    for name, case in cases.items():
        values = [*case.values, *([None] * (rows - len(case.values)))]
        table = table.append_column(name, pa.array(values, case.kind))
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=7)
    return batches
