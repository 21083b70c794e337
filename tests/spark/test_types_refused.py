"""A value that a column cannot hold is rejected, with the column's name, and never stored as something
else."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, text

from spark import PerRow
from spark._executor.failures import guarded
from spark._executor.task import run_task
from spark.errors import ColumnMismatch, InvalidRow
from tests.support.database import Database
from tests.support.spark.types import on_all
from tests.support.spark.writes import execute, fetched, prepared, taken, write

VARIANT = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
GRID, CUBE = pa.list_(pa.list_(pa.int32())), pa.list_(pa.list_(pa.list_(pa.int32())))
SEVEN = pa.list_(pa.list_(pa.list_(pa.list_(CUBE))))
CLOCK, INSTANT = pa.timestamp("us"), pa.timestamp("us", "America/New_York")


def on_mysql(column: str) -> dict[str, str]:
    """The same column type, on MySQL and MariaDB only."""
    return {"mysql": column, "mariadb": column}


REFUSED: dict[str, tuple[pa.DataType, Mapping[str, str]]] = {
    "double in an int": (pa.float64(), {"any": "integer"}),
    "double in a decimal": (pa.float64(), {"any": "decimal(30,10)"}),
    "double in a float": (pa.float64(), on_all("real", "float", "")),
    "long in a double": (pa.int64(), {"any": "double precision"}),
    "int in a float": (pa.int32(), on_all("real", "float", "")),
    "boolean in a long": (pa.bool_(), {"any": "bigint"}),
    "int in a boolean": (pa.int32(), {"postgresql": "boolean"}),
    "decimal in a shorter one": (pa.decimal128(10, 4), {"any": "decimal(10,2)"}),
    "decimal in one of no digits": (pa.decimal128(10, 2), {"any": "decimal(10)"}),
    "decimal in one of hundreds": (pa.decimal128(10, 0), {"postgresql": "numeric(5,-2)"}),
    "decimal in a double": (pa.decimal128(10, 2), {"any": "double precision"}),
    "decimal in a long": (pa.decimal128(10, 2), {"any": "bigint"}),
    "decimal of many digits": (pa.decimal128(38, 38), {"mysql": "decimal(40,30)"}),
    "int in a text": (pa.int32(), on_all("text", "text", "text")),
    "text in an int": (pa.string(), {"any": "integer"}),
    "text in a decimal": (pa.string(), {"any": "decimal(10,2)"}),
    "text in a double": (pa.string(), {"any": "double precision"}),
    "text in a boolean": (pa.string(), {"any": "boolean"}),
    "text in a date": (pa.string(), {"any": "date"}),
    "text in a clock": (pa.string(), on_all("timestamp", "datetime(6)", "datetime")),
    "text in an instant": (pa.string(), on_all("timestamptz", "timestamp NULL", "timestamp")),
    "text in a time": (pa.string(), {"any": "time"}),
    "text in a binary": (pa.string(), on_all("bytea", "longblob", "blob")),
    "text in an array": (pa.string(), {"postgresql": "integer[]"}),
    "text in a short name": (pa.string(), {"postgresql": "name"}),
    "text in a vector of words": (pa.string(), {"postgresql": "tsvector"}),
    "text in a range of times": (pa.string(), {"postgresql": "tsrange"}),
    "text in a point": (pa.string(), {"postgresql": "point"}),
    "text in the place of a log": (pa.string(), {"postgresql": "pg_lsn"}),
    "text in anything": (pa.string(), {"sqlite": "any"}),
    "int in one of hundreds": (pa.int32(), {"postgresql": "numeric(12,-2)"}),
    "text in a set": (pa.string(), on_mysql("set('a','b')")),
    "text in bits": (pa.string(), {"postgresql": "bit(8)", **on_mysql("bit(8)")}),
    "binary in a text": (pa.binary(), on_all("text", "longtext", "text")),
    "date in an instant": (pa.date32(), {"postgresql": "timestamptz", **on_mysql("timestamp NULL")}),
    "clock in a date": (CLOCK, {"any": "date"}),
    "clock in an instant": (CLOCK, {"postgresql": "timestamptz", **on_mysql("timestamp(6) NULL")}),
    "clock in a time": (CLOCK, {"any": "time"}),
    "instant in a date": (INSTANT, {"any": "date"}),
    "instant in a number": (INSTANT, {"any": "bigint"}),
    "time in a clock": (pa.time64("us"), on_all("timestamp", "datetime(6)", "datetime")),
    "interval in a number": (pa.duration("us"), {"any": "bigint"}),
    "interval in a time": (pa.duration("us"), {"any": "time"}),
    "interval in some fields of one": (pa.duration("us"), {"postgresql": "interval day to hour"}),
    "interval in a text": (pa.duration("us"), on_all("text", "text", "text")),
    "months": (pa.month_day_nano_interval(), {"any": "bigint"}),
    "array in a number": (pa.list_(pa.int32()), {"any": "integer"}),
    "array of doubles in one of numbers": (pa.list_(pa.float64()), {"postgresql": "integer[]"}),
    "array of decimals in one of shorter ones": (
        pa.list_(pa.decimal128(10, 4)),
        {"postgresql": "numeric(10,2)[]"},
    ),
    "array of months": (pa.list_(pa.month_day_nano_interval()), {"postgresql": "interval[]"}),
    "array of seven dimensions": (SEVEN, {"postgresql": "integer[]"}),
    "array in a vector": (pa.list_(pa.int16()), {"postgresql": "int2vector"}),
    "map in an array": (pa.map_(pa.string(), pa.string()), {"postgresql": "text[]"}),
    "variant": (VARIANT, on_all("jsonb", "json", "text")),
    "array of variants": (pa.list_(VARIANT), on_all("jsonb", "json", "text")),
    "int in a year": (pa.int32(), on_mysql("year")),
    "int in bits": (pa.int32(), on_mysql("bit(8)")),
    "float of few digits": (pa.float32(), on_mysql("float(7,2)")),
}
GENERATED: dict[str, dict[str, str]] = {
    "calculated": on_all(
        "bigint GENERATED ALWAYS AS (1 + 1) STORED",
        "bigint GENERATED ALWAYS AS (1 + 1) VIRTUAL",
        "bigint GENERATED ALWAYS AS (1 + 1)",
    ),
    "counted": {"postgresql": "bigint GENERATED ALWAYS AS IDENTITY"},
}


def make_target(database: Database, engine: Engine, columns: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Create the table with the columns that this database supports. Returns their names."""
    found = {name: by.get(database.name, by.get("any")) for name, by in columns.items()}
    quote = engine.dialect.identifier_preparer.quote_identifier
    declared = ", ".join(f"{quote(name)} {column}" for name, column in found.items() if column)
    execute(engine, f"CREATE TABLE target (id varchar(99) PRIMARY KEY, {declared})")
    return [name for name, column in found.items() if column]


def _raised(work: Callable[..., object], *arguments: Any, **options: Any) -> Exception | None:
    try:
        work(*arguments, **options)
    except Exception as error:  # noqa: BLE001 - which one it may be is for the test to say
        return error
    return None


DOMAINS = (
    "CREATE DOMAIN short AS varchar(4)",
    "CREATE DOMAIN shorter AS short",
    "CREATE DOMAIN price AS numeric(8,2)",
    "CREATE DOMAIN fare AS price CHECK (VALUE > 0)",
    "CREATE DOMAIN shorts AS shorter[]",
    "CREATE DOMAIN second AS timestamp(0)",
    "CREATE DOMAIN moment AS second",
    "CREATE SCHEMA own",
    "CREATE TYPE own.text AS RANGE (subtype = float8)",
)
TEXT, TEXTS = pa.string(), pa.list_(pa.string())
BENEATH: dict[str, tuple[pa.DataType, Any, Any, str]] = {
    "shorter": (TEXT, "abcd", "abcde", "abcd"),
    "shorter[]": (TEXTS, ["abcd", None], ["abcde"], "{abcd,NULL}"),
    "shorts": (TEXTS, ["abcd"], ["ab", "abcd "], "{abcd}"),
    "fare": (pa.decimal128(10, 2), Decimal("9.99"), Decimal("-1.00"), "9.99"),
    "moment": (CLOCK, 0, 500_000, "1970-01-01 00:00:00"),
}
"""The type of the rows, a value that fits, one that does not, and the text of the stored one."""


def test_domains_over_domains(postgres: Database) -> None:
    """A domain has the limits of what is beneath it, however many domains are between: a value that exceeds
    them is an error, and others are stored as they are. A type is not taken for another one of the same
    name."""
    engine = postgres.engine()
    execute(engine, *DOMAINS)
    for number, (domain, (kind, fitting, wrong, shown)) in enumerate(BENEATH.items()):
        execute(engine, f"CREATE TABLE t{number} (id varchar(9) PRIMARY KEY, v {domain})")
        rows = [pa.record_batch({"id": ["a"], "v": pa.array([value], kind)}) for value in (fitting, wrong)]
        assert write(postgres, [rows[0]], table=f"t{number}", consumer=domain).new == 1
        assert _raised(write, postgres, [rows[1]], table=f"t{number}", consumer="other") is not None
        assert fetched(engine, f"SELECT v::text FROM t{number}") == [(shown,)]
    execute(engine, "CREATE TABLE t (id varchar(9) PRIMARY KEY, v fare, w own.text)")
    for name, kind in (("v", pa.decimal128(10, 3)), ("w", TEXT)):
        with pytest.raises(ColumnMismatch, match=f"column .{name}. of type"):
            prepared(postgres, schema=pa.schema([("id", TEXT), (name, kind)]), table="t")


def test_types_that_do_not_fit(migrated: Database, engine: Engine) -> None:
    """A type is rejected before any row is read if the column cannot hold each of its values exactly."""
    unexpected = {}
    for name in make_target(migrated, engine, {name: columns for name, (_, columns) in REFUSED.items()}):
        schema = pa.schema([("id", pa.string()), (name, REFUSED[name][0])])
        said = _raised(prepared, migrated, schema=schema, table="target")
        if not isinstance(said, ColumnMismatch) or f"column {name!r}" not in str(said):
            unexpected[name] = said
    assert unexpected == {}


def test_generated_columns(migrated: Database, engine: Engine) -> None:
    """A column whose values the database generates is rejected before any row is read."""
    for name in make_target(migrated, engine, GENERATED):
        schema = pa.schema([("id", pa.string()), (name, pa.int64())])
        with pytest.raises(ColumnMismatch, match=f"column '{name}' .*generates its values"):
            prepared(migrated, schema=schema, table="target")


@dataclass(frozen=True, slots=True)
class Wrong:
    """Values of a type, the last of which does not fit the column. `said` is the text of the writer's own
    error, if the writer detects it."""

    kind: pa.DataType
    values: Sequence[Any]
    columns: Mapping[str, str]
    said: str | None = None


WRONG: dict[str, Wrong] = {
    "a long in a short": Wrong(pa.int64(), [1, 40_000], on_all("smallint", "smallint", "")),
    "a long in an int": Wrong(pa.int64(), [1, -(2**31) - 1], on_all("integer", "integer", "")),
    "a long in a decimal": Wrong(pa.int64(), [1, 10_000], on_all("numeric(6,2)", "decimal(6,2)", "")),
    "a negative": Wrong(pa.int32(), [1, -1], on_mysql("int unsigned")),
    "a decimal": Wrong(
        pa.decimal128(12, 2), [Decimal(1), Decimal(10_000)], on_all("numeric(6,2)", "decimal(6,2)", "")
    ),
    "a decimal in an int": Wrong(
        pa.decimal128(18, 0), [Decimal(1), Decimal(2**31)], on_all("integer", "integer", "")
    ),
    "a long text": Wrong(pa.string(), ["abc", "abcd"], on_all("varchar(3)", "varchar(3)", ""), " 3 "),
    "a text of spaces": Wrong(pa.string(), ["é b", "a   "], on_all("varchar(3)", "varchar(3)", ""), " 3 "),
    "a text of spaces for a char": Wrong(
        pa.string(), ["ab", "a   "], on_all("char(3)", "char(3)", ""), " 3 "
    ),
    "a long text of spaces": Wrong(pa.string(), ["a", " " * 256], on_mysql("tinytext"), " 255 "),
    "a text that Latin 1 lacks": Wrong(pa.string(), ["é", "漢"], on_mysql("varchar(9) CHARACTER SET latin1")),
    "a text of four bytes": Wrong(pa.string(), ["漢", "🙂"], on_mysql("varchar(9) CHARACTER SET utf8mb3")),
    "a text with NUL": Wrong(pa.string(), ["a", "a\0"], {"postgresql": "text"}),
    "no label": Wrong(pa.string(), ["a", "c"], on_mysql("enum('a','b')"), "'a', 'b'"),
    "a label's number": Wrong(pa.string(), ["a", "2"], on_mysql("enum('a','b')"), "'a', 'b'"),
    "a label in another case": Wrong(pa.string(), ["a", "B"], on_mysql("enum('a','b')"), "'a', 'b'"),
    "no JSON": Wrong(pa.string(), ["{}", "{"], on_all("jsonb", "json", "")),
    "a number as JSON": Wrong(pa.string(), ["[1]", " 1.10"], {"sqlite": "json"}, "number"),
    "a number of many digits as JSON": Wrong(
        pa.string(), ['{"a": 0.1}', '{"a": 0.12345678901234567890}'], {"mysql": "json"}, "more digits"
    ),
    "a long number as JSON": Wrong(
        pa.string(), ["[18446744073709551615]", "[18446744073709551617]"], {"mysql": "json"}, "more digits"
    ),
    "a day that is none": Wrong(
        pa.date32(), [0, -(2**31) + 10_957], {"postgresql": "date"}, "store -infinity"
    ),
    "a time that is none": Wrong(
        CLOCK, [0, -(2**63) + 946_684_800_000_000], {"postgresql": "timestamp"}, "store -infinity"
    ),
    "a day before those": Wrong(pa.date32(), [0, -(2**31)], {"postgresql": "date"}, "store -infinity"),
    "a time before those": Wrong(CLOCK, [0, -(2**63)], {"postgresql": "timestamp"}, "store -infinity"),
    "an instant that has no text": Wrong(
        pa.list_(INSTANT), [[0], [2_069_978_000_000_000_000]], {"postgresql": "timestamptz[]"}, "-32767 to"
    ),
    "a late day in JSON": Wrong(
        pa.list_(pa.date32()), [[0], [3_000_000]], on_all("jsonb", "json", "json"), "1 to 9999"
    ),
    "no uuid": Wrong(pa.string(), [None, "1234"], {"postgresql": "uuid", "mariadb": "uuid"}),
    "an array of long texts": Wrong(
        pa.list_(pa.string()), [["abc"], [None, "a   "]], {"postgresql": "varchar(3)[]"}, " 3 "
    ),
    "an array of rows of different lengths": Wrong(
        GRID, [[[1, 2], [3, 4]], [[1], [2, 3]]], {"postgresql": "integer[]"}, "different lengths"
    ),
    "an array with NULL for a row": Wrong(GRID, [[], [[1], None]], {"postgresql": "integer[]"}, "NULL"),
    "an array of no more than a row": Wrong(GRID, [None, [[]]], {"postgresql": "integer[]"}, "empty"),
    "an array of grids of different widths": Wrong(
        CUBE,
        [[[[1], [2]], [[3], [4]]], [[[1], [2]], [[3, 4], [5, 6]]]],
        {"postgresql": "integer[]"},
        "different lengths",
    ),
    "a long binary": Wrong(pa.binary(), [b"abc", b"abcd"], on_mysql("varbinary(3)")),
    "a short binary": Wrong(pa.binary(), [b"abc", b"ab"], on_mysql("binary(3)"), " 3 "),
    "no number": Wrong(pa.float64(), [1.5, float("nan")], {**on_mysql("double"), "sqlite": "double"}, "NaN"),
    "an infinity": Wrong(pa.float32(), [1.5, float("-inf")], on_mysql("float"), "infinity"),
    "a part of a second": Wrong(
        CLOCK,
        [*map(datetime.fromisoformat, ("2024-01-01 01:01:01", "2024-01-01 01:01:01.5"))],
        on_all("timestamp(0)", "datetime", ""),
        " 0 digits",
    ),
    "a part of a millisecond": Wrong(
        INSTANT,
        [datetime(2024, 1, 1, 1, 1, 1, 1000, UTC), datetime(2024, 1, 1, 1, 1, 1, 1001, UTC)],
        on_all("timestamptz(3)", "timestamp(3) NULL", ""),
        " 3 digits",
    ),
    "a part of a second in a time": Wrong(
        pa.time64("us"), [time(1, 2, 3), time(1, 2, 3, 1)], on_all("time(0)", "time", ""), " 0 digits"
    ),
    "an early instant": Wrong(
        INSTANT, [None, datetime(1969, 1, 1, tzinfo=UTC)], on_mysql("timestamp(6) NULL")
    ),
    "a late instant": Wrong(INSTANT, [None, datetime(2200, 1, 1, tzinfo=UTC)], on_mysql("timestamp(6) NULL")),
    "a year before 1": Wrong(
        pa.date32(), [0, -800_000], {**on_mysql("date"), "sqlite": "date"}, "year outside 1 to 9999"
    ),
    "a year of five digits": Wrong(
        pa.date32(), [0, 2_932_897], {**on_mysql("datetime(6)"), "sqlite": "date"}, "year outside 1"
    ),
    "NULL": Wrong(pa.int32(), [1, None], {"any": "integer NOT NULL DEFAULT 1"}),
    "NULL for a counter": Wrong(pa.int32(), [1, None], on_mysql("integer UNIQUE AUTO_INCREMENT"), "NULL"),
    "NULL for the present": Wrong(
        INSTANT,
        [datetime(2024, 1, 1, tzinfo=UTC), None],
        on_mysql("timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP"),
        "NULL",
    ),
}


def test_values_that_do_not_fit(migrated: Database, engine: Engine) -> None:
    """A value that the column cannot hold exactly is an error, and nothing of its partition is written. Where
    the database would change the value silently, the error is `InvalidRow` and names the column."""
    unexpected = {}
    names = make_target(migrated, engine, {name: wrong.columns for name, wrong in WRONG.items()})
    for name in names:
        wrong = WRONG[name]
        rows = pa.record_batch({"id": [f"{name} a", f"{name} b"], name: pa.array(wrong.values, wrong.kind)})
        said = _raised(write, migrated, [rows], table="target")
        is_named = isinstance(said, InvalidRow) and f"column {name!r}" in str(said)
        if said is None or (wrong.said is not None and not (is_named and wrong.said in str(said))):
            unexpected[name] = said
    assert unexpected == {}
    assert taken(engine) == []
    fitting = {name: pa.array(WRONG[name].values[:1], WRONG[name].kind) for name in names}
    write(migrated, [pa.record_batch({"id": ["a"], **fitting})], table="target")


SECRET = "Jane Doe"  # noqa: S105
MARKED = {"postgresql": "uuid", "mariadb": "uuid", "mysql": "json", "sqlite": "varchar(20)"}


def raised_by(database: Database, rows: pa.RecordBatch, **options: Any) -> str:
    """The text of the error with which this partition fails, as Spark shows it."""
    task = prepared(database, rows.schema, **options)
    error = _raised(lambda: [*guarded(lambda: iter([run_task(task, 0, iter([rows]))]))])
    assert error is not None
    return "".join(traceback.format_exception(error))


def test_no_error_shows_a_value(migrated: Database, engine: Engine) -> None:
    """An error that a task raises has the names of constraint, table and column, as far as the database gives
    them, but no value of a row, wherever it comes from: from the database, its driver, or the writer
    itself."""
    kind, limits = MARKED[migrated.name], "CONSTRAINT one_name UNIQUE (name), CHECK (kept < 9)"
    columns = f"id varchar(99) PRIMARY KEY, v {kind}, name varchar(20), kept integer NOT NULL, {limits}"
    execute(engine, f"CREATE TABLE t ({columns})")
    write(migrated, [named(kept=1)], table="t")
    said = {
        "null": raised_by(migrated, named(kept=None, name="x"), table="t", consumer="null"),
        "unique": raised_by(migrated, named(id="b"), table="t"),
        "check": raised_by(migrated, named(id="c", name=SECRET + "!", kept=9), table="t"),
        "key": raised_by(migrated, named(id=SECRET * 100), table="t"),
        "nul": raised_by(migrated, named(id=SECRET + "\0"), table="t"),
        "own": raised_by(migrated, named(id="e"), table=None, results=_insert_by_hand),
    }
    if migrated.name != "sqlite":  # it has no such limits and types
        said["long"] = raised_by(migrated, named(id="d", name=SECRET * 9), table="t", consumer="long")
        assert "column 'name': text longer than" in said["long"]
        rows = named(id="f", name="y").set_column(1, "v", pa.array([SECRET]))
        said["text"] = raised_by(migrated, rows, table="t")
    message = {"outbox": PerRow("t", key="name")}
    long = named(id="g", name=SECRET * 99).append_column("wide", pa.array([1]))
    said["message"] = raised_by(migrated, long, table=None, results=_ignore, **message)
    assert [name for name, text in said.items() if SECRET in text] == []
    assert "kept" in said["null"]
    assert "name" in said["unique"]
    assert "the database refused a row: " in said["unique"]


def named(**values: Any) -> pa.RecordBatch:
    """A row of a person."""
    row = {"id": "a", "v": None, "name": SECRET, "kept": 1, **values}
    kinds = {"id": pa.string(), "v": pa.null(), "name": pa.string(), "kept": pa.int32()}
    return pa.record_batch({name: pa.array([row[name]], kind) for name, kind in kinds.items()})


def _insert_by_hand(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
    for each in rows:
        names = [column for column in each.schema.names if column != "v"]
        places = ", ".join(f":{name}" for name in names)
        insert = text(f"INSERT INTO t ({', '.join(names)}) VALUES ({places})")
        connection.execute(insert, each.select(names).to_pylist())


def _ignore(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None: ...


def test_what_a_trigger_says_is_left_out(postgres: Database) -> None:
    """The text of an error that a trigger raises may be anything: only its code is shown."""
    engine = postgres.engine()
    execute(
        engine,
        "CREATE TABLE t (id varchar(99) PRIMARY KEY)",
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'no %', NEW.id USING ERRCODE = '42501'; END$$",
        "CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
    )
    said = raised_by(postgres, pa.record_batch({"id": [SECRET]}), table="t")
    assert "the database: InsufficientPrivilege (42501)" in said
    assert SECRET not in said
