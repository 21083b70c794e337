"""The types as Spark itself sends them, through both entry points."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine

from spark import InboxDataSource, InboxWriter
from spark.errors import ColumnMismatch
from tests.support.database import Database
from tests.support.spark.arrays import gridded, listed
from tests.support.spark.types import CASES, NEW_YORK, Case, on_all, stored
from tests.support.spark.writes import execute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest_plugins = ["tests.support.spark.session"]

TEXT = "tab\t line\n \\N 'quotes' \U0001f642"
# 1:30 in New York, before and after the clocks go back.
FIRST, SECOND = (datetime(2021, 11, 7, hour, 30, tzinfo=UTC) for hour in (5, 6))
CLOCK = datetime.fromisoformat("2021-03-14 02:30:00.000001")

COLUMNS: dict[str, tuple[str, Any, Case]] = {
    "flag": ("true", True, CASES["boolean"]),
    "byte": ("-128Y", -128, CASES["byte"]),
    "short": ("32767S", 32767, CASES["short"]),
    "int": ("CAST(-2147483648 AS int)", -(2**31), CASES["int"]),
    "long": ("9223372036854775807L", 2**63 - 1, CASES["long"]),
    "single": ("CAST(0.1 AS float)", 0.10000000149011612, CASES["float"]),
    "double": ("1.7976931348623157e308D", 1.7976931348623157e308, CASES["double"]),
    "amount": (
        "CAST('12345678901234567890.123456789012345678' AS decimal(38,18))",
        Decimal("12345678901234567890.123456789012345678"),
        CASES["decimal(38,18)"],
    ),
    "whole": (f"CAST('-{'9' * 38}' AS decimal(38,0))", Decimal("-" + "9" * 38), CASES["decimal(38,0)"]),
    "text": (f"CAST(unhex('{TEXT.encode().hex()}') AS string)", TEXT, CASES["text"]),
    "word": ("CAST('abc' AS varchar(5))", "abc", CASES["text in a varchar"]),
    "bytes": ("X'00FF0A5C'", b"\0\xff\n\\", CASES["binary"]),
    "day": ("DATE'0001-01-01'", date.min, CASES["date"]),
    "instant": ("TIMESTAMP'2021-11-07 05:30:00Z'", FIRST, CASES["instant"]),
    "later": ("TIMESTAMP'2021-11-07 06:30:00Z'", SECOND, CASES["instant"]),
    "shown": ("TIMESTAMP'2021-11-07 06:30:00Z'", SECOND, CASES["instant on a clock"]),
    "clock": ("TIMESTAMP_NTZ'2021-03-14 02:30:00.000001'", CLOCK, CASES["clock"]),
    "span": (
        "INTERVAL '-1 00:00:00.000001' DAY TO SECOND",
        -timedelta(days=1, microseconds=1),
        CASES["interval"],
    ),
    "list": ("array(1, NULL, 3)", [1, None, 3], CASES["array"]),
    "numbers": ("array(1, NULL, 3)", [1, None, 3], listed(CASES["int"])),
    "words": ("""array('a"b', NULL, '', 'NULL')""", ['a"b', None, "", "NULL"], listed(CASES["text"])),
    "instants": ("array(TIMESTAMP'2021-11-07 06:30:00Z')", [SECOND], listed(CASES["instant"])),
    "grid": ("array(array(1, 2), array(NULL, 4))", [[1, 2], [None, 4]], gridded(CASES["int"])),
    "pair": (
        "named_struct('name', 'x', 'amount', CAST(1.5 AS decimal(10,2)), 'tags', array('y'))",
        {"name": "x", "amount": Decimal("1.50"), "tags": ["y"]},
        CASES["struct"],
    ),
    "map": ("map('k', 0.5D)", [("k", 0.5)], CASES["map"]),
    "nothing": ("NULL", None, CASES["text"]),
}
"""By column: what Spark is asked for, what that is, and where it goes."""
NEWER = {"hour": ("TIME'12:34:56.789012'", time(12, 34, 56, 789012), CASES["time"])}
"""Types that Spark has since 4.1."""

REFUSED = {
    "parse_json('[1]')": on_all("jsonb", "json", "json"),
    "1.5D": {"any": "integer"},
    "CAST(1 AS decimal(10,4))": {"any": "decimal(10,2)"},
    "TIMESTAMP_NTZ'2024-01-01 00:00:00'": {"any": "date"},
    "INTERVAL '1' YEAR": {"any": "integer"},
    "make_interval(1)": {"any": "integer"},
}


@pytest.fixture
def session(spark_session: "SparkSession") -> Iterator["SparkSession"]:
    """A Spark session in New York's time zone."""
    before = str(spark_session.conf.get("spark.sql.session.timeZone"))
    spark_session.conf.set("spark.sql.session.timeZone", NEW_YORK)
    spark_session.dataSource.register(InboxDataSource)
    yield spark_session
    spark_session.conf.set("spark.sql.session.timeZone", before)


def by_writer(df: "DataFrame", url: str) -> None:
    """Write with `InboxWriter.write`."""
    report = InboxWriter(url, "target", key="id", consumer="types").write(df)
    assert (report.rows, report.new) == (3, 3)


def by_format(df: "DataFrame", url: str) -> None:
    """Write with `format("inbox")`."""
    options = {"url": url, "dbtable": "target", "key": "id", "consumer": "types"}
    df.write.format("inbox").mode("append").options(**options).save()


@pytest.mark.quick("postgresql")
@pytest.mark.parametrize("door", [by_writer, by_format])
def test_what_spark_sends(migrated: Database, engine: Engine, session: "SparkSession", door: Any) -> None:
    """Values of every Spark type that a database can hold are stored unchanged, and NULL as NULL. Times are
    in the session's time zone."""
    given = COLUMNS | (NEWER if session.version >= "4.1" else {})
    columns = {name: each for name, each in given.items() if each[2].column(migrated.name)}
    quote = engine.dialect.identifier_preparer.quote_identifier
    declared = ", ".join(
        f"{quote(name)} {case.column(migrated.name)}" for name, (_, _, case) in columns.items()
    )
    execute(engine, f"CREATE TABLE target (id varchar(20) PRIMARY KEY, {declared})")

    values = ", ".join(f"{value} AS `{name}`" for name, (value, _, _) in columns.items())
    full = session.sql(f"SELECT 'full' AS id, {values}")
    empty = session.sql("SELECT 'empty' AS id").union(session.sql("SELECT 'other' AS id"))
    url = migrated.url.render_as_string(hide_password=False)
    door(full.unionByName(empty, allowMissingColumns=True), url)

    found = {name: stored(engine, migrated, name, case) for name, (_, _, case) in columns.items()}
    assert found == {name: [None, value, None] for name, (_, value, _) in columns.items()}


@pytest.mark.quick("postgresql")
def test_what_spark_has_and_a_column_does_not(
    migrated: Database, engine: Engine, session: "SparkSession"
) -> None:
    """A Spark type that the column cannot hold is rejected by the column's name, before any row is read."""
    for value, columns in REFUSED.items():
        column = columns.get(migrated.name, columns.get("any"))
        execute(engine, f"CREATE TABLE target (id varchar(20) PRIMARY KEY, here {column})")
        df = session.sql(f"SELECT raise_error('was read') AS id, {value} AS here")
        writer = InboxWriter(migrated.url, "target", key="id", consumer="types")
        with pytest.raises(ColumnMismatch, match="'here'"):
            writer.write(df.selectExpr("CAST(id AS string) AS id", "here"))
        execute(engine, "DROP TABLE target")
