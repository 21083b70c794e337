"""`INSERT INTO` a view in Spark SQL, with names and times as a data engineer has them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PythonException
from sqlalchemy import Engine

from spark import InboxDataSource
from tests.support.database import Database
from tests.support.spark.writes import execute, fetched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.support.spark.session"]

COLUMNS = "`select` string, `Group by` bigint, instant timestamp, clock timestamp, plain timestamp_ntz"
TABLE = """CREATE TABLE "order" (
    "select" text, "Group by" bigint, instant timestamptz, clock timestamp, plain timestamp
)"""
NOON = "TIMESTAMP'2026-07-01 12:00:00Z'"
PLAIN = "TIMESTAMP_NTZ'2026-07-01 12:00:00'"


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """A database with a table whose names are reserved words, have capitals and a space."""
    engine = postgres.engine()
    execute(engine, TABLE)
    return engine


@pytest.fixture
def session(spark_session: "SparkSession") -> Iterator["SparkSession"]:
    """A session that knows the format, in another time zone than its server."""
    before = str(spark_session.conf.get("spark.sql.session.timeZone"))
    spark_session.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark_session.dataSource.register(InboxDataSource)
    yield spark_session
    spark_session.conf.set("spark.sql.session.timeZone", before)
    for view in ("orders", "others"):
        spark_session.catalog.dropTempView(view)
    spark_session.sql("DROP TABLE IF EXISTS kept")


def options(database: Database, table: str = "order") -> str:
    """The options as SQL has them."""
    url = database.url.render_as_string(hide_password=False)
    return f"OPTIONS (url '{url}', dbtable '{table}', key 'select', consumer 'orders')"


def test_insert_into_a_view(postgres: Database, engine: Engine, session: "SparkSession") -> None:
    """A view that lists its columns takes rows by position, by name and from `insertInto`, each key once.
    Names are quoted as they are written. An instant in a column without a zone is the session's wall clock,
    and a TIMESTAMP_NTZ is stored as it is."""
    session.sql(f"CREATE TEMPORARY VIEW orders ({COLUMNS}) USING inbox {options(postgres)}")
    rows = f"SELECT concat('k', id) AS `select`, id, {NOON}, {NOON}, {PLAIN} FROM range"
    session.sql(f"INSERT INTO orders {rows}(4)")
    times = f"{NOON} AS clock, {NOON} AS instant, {PLAIN} AS plain"
    named = f"{times}, id AS `Group by`, concat('k', id) AS `select`"
    session.sql(f"INSERT INTO orders BY NAME SELECT {named} FROM range(5)")
    session.sql(f"{rows}(6)").write.insertInto("orders")
    stored = fetched(
        engine,
        """SELECT "select", "Group by", instant AT TIME ZONE 'UTC', clock, plain FROM "order" ORDER BY 1""",
    )
    assert [tuple(map(str, row)) for row in stored] == [
        (f"k{number}", f"{number}", "2026-07-01 12:00:00", "2026-07-01 08:00:00", "2026-07-01 12:00:00")
        for number in range(6)
    ]


@pytest.mark.long
def test_what_a_view_refuses(postgres: Database, engine: Engine, session: "SparkSession") -> None:
    """A view without columns, reading the target, overwriting it, and a value that must be cast are refused
    by name. A plan hides the password. A table of Spark's catalog loses its options, and writes nothing."""
    with pytest.raises(AnalysisException, match=r"dbtable='order'.*a view to insert into lists its columns"):
        session.sql(f"CREATE TEMPORARY VIEW orders USING inbox {options(postgres)}")
    session.sql(f"CREATE TEMPORARY VIEW orders (`select` string) USING inbox {options(postgres)}")
    with pytest.raises(AnalysisException, match="dbtable='order': no such option for reading"):
        session.table("orders").collect()
    with pytest.raises(AnalysisException, match="existing rows are never deleted"):
        session.sql("INSERT OVERWRITE orders VALUES ('k')")
    given = options(postgres)[:-1] + ", password 'never-shown')"
    session.sql(f"CREATE TEMPORARY VIEW others (`select` string, `Group by` bigint) USING inbox {given}")
    (plan,) = session.sql("EXPLAIN EXTENDED INSERT INTO others VALUES ('k', 1)").collect()
    assert "AppendData inbox" in plan[0]
    assert "never-shown" not in plan[0]
    with pytest.raises(AnalysisException, match="CANNOT_SAFELY_CAST"):
        session.sql("INSERT INTO others VALUES ('k', 'many')")
    session.sql(f"CREATE TABLE kept (`select` string) USING inbox {options(postgres)}")
    with pytest.raises(PythonException, match="InvalidOption: url: missing"):
        session.sql("INSERT INTO kept VALUES ('k')")
    assert fetched(engine, 'SELECT FROM "order"') == []
