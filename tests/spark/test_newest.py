"""An Upsert whose key and version are the writer's key: each version is taken once, and is written if it is
newer."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import NotSupportedError

from inbox.errors import InvalidOption
from inbox_outbox_base.databases.results import Append, Upsert
from spark._driver.comparison import check, summary
from spark._executor.compare_partition import compared
from spark._executor.task import run_task
from spark._options.settings import checked
from spark.errors import InvalidRow
from tests.support.database import Database
from tests.support.on_servers import each_on, on
from tests.support.spark.writes import counts, execute, fetched, options_of, prepared, taken, write
from tests.support.together import together

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
ZONE = "America/New_York"
OPTIONS: dict[str, Any] = {
    "table": "account_state",
    "key": "account",
    "results": Upsert("account", "changed_at"),
}
MADE = {
    "blind": "CREATE COLLATION blind (provider=icu, locale='und-u-ks-level2', deterministic=false)",
    "numeric": "CREATE COLLATION numeric (provider=icu, locale='und-u-kn-true')",
    "50 %s": 'CREATE COLLATION "50 %s" (locale="C")',
    "citext": "CREATE EXTENSION citext",
    "hidden": "CREATE SCHEMA hidden; CREATE EXTENSION citext SCHEMA hidden",
}
INBOXES = pytest.mark.parametrize("inbox", ["rows", "table"])
COLUMN = {"postgresql": "timestamptz", "mysql": "datetime(6)", "mariadb": "datetime(6)", "sqlite": "datetime"}


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with the table."""
    engine = migrated.engine()
    columns = f"account varchar(20) PRIMARY KEY, changed_at {COLUMN[migrated.name]}, amount bigint"
    execute(engine, f"CREATE TABLE account_state ({columns})")
    return engine


def states(*rows: tuple[str, int | None], zone: str = "UTC") -> pa.RecordBatch:
    """A state of each account; the number is its amount, and the microseconds after the first moment at which
    it changed."""
    at = [None if number is None else FIRST + timedelta(microseconds=number) for _, number in rows]
    return pa.record_batch(
        {
            "account": [account for account, _ in rows],
            "changed_at": pa.array(at, pa.timestamp("us", zone)),
            "amount": pa.array([number for _, number in rows], pa.int64()),
        }
    )


def stored(engine: Engine) -> dict[str, int]:
    """The amount of each account."""
    return dict(fetched(engine, "SELECT account, amount FROM account_state"))


@INBOXES
def test_the_newest_state_stands(migrated: Database, engine: Engine, inbox: str) -> None:
    """The newest state of each account is stored, in whatever order states arrive: in one partition, in
    several, and in later jobs. A repeated state changes nothing, whatever the session's time zone."""
    options = OPTIONS | {"inbox": inbox}
    first = write(migrated, [states(("a", 2), ("a", 9), ("b", 1))], [states(("a", 5))], **options)
    assert stored(engine) == {"a": 9, "b": 1}
    assert counts(first) == ({"new": 4} if inbox == "rows" else {"new": 2, "duplicate": 2})
    again = write(migrated, [states(("a", 9), ("b", 1), zone=ZONE)], **options)
    assert counts(again) == {"duplicate": 2}
    write(migrated, [states(("a", 7), ("b", 3), ("c", 4))], **options)
    assert stored(engine) == {"a": 9, "b": 3, "c": 4}
    keys = ['["a","2026-01-01 00:00:00.000002Z"]', '["c","2026-01-01 00:00:00.000004Z"]']
    there = taken(engine)
    assert (there[0], there[-1]) == tuple(keys) if inbox == "rows" else there == []


@each_on("postgresql", "inbox", ["rows", "table"])
def test_jobs_with_other_states_at_the_same_time(migrated: Database, engine: Engine, inbox: str) -> None:
    """Four jobs write different states of the same accounts at the same time: the newest of each is stored,
    without an error."""
    options = OPTIONS | {"inbox": inbox}

    def job(number: int) -> None:
        task = prepared(migrated, schema=states(("a", 1)).schema, **options)
        rows = [(f"a{account}", version) for account in range(20) for version in range(number, 40, 4)]
        random.Random(number).shuffle(rows)
        for part in range(2):
            run_task(task, part, iter([states(*rows[part::2])]))

    together([lambda number=number: job(number) for number in range(4)])  # type: ignore[misc]
    assert stored(engine) == {f"a{account}": 39 for account in range(20)}


def test_a_state_that_is_lost_is_named(migrated: Database, engine: Engine) -> None:
    """`reconcile` reports a state that was taken but is not in the table any more, and one that was never
    written."""
    write(migrated, [states(("a", 1), ("a", 2), ("b", 1))], **OPTIONS)
    execute(engine, "DELETE FROM account_state WHERE account = 'b'")
    settings = options_of(migrated, **OPTIONS)
    rows = [states(("a", 1), ("a", 2), ("a", 3), ("b", 1))]
    compares_table = check(settings, rows[0].schema)
    part = compared(settings, 0, iter(rows))
    assert part is not None
    found = summary(settings, compares_table, [part])
    assert (found.present, found.unapplied, found.missing) == (2, 1, 1)


@on("sqlite")
def test_a_state_without_a_version(migrated: Database, engine: Engine) -> None:
    """A row without a version has no key: it raises an error, or is dropped and counted."""
    with pytest.raises(InvalidRow, match=r"changed_at.*1 rows have no key"):
        write(migrated, [states(("a", 1), ("b", None))], **OPTIONS)
    report = write(migrated, [states(("a", 1), ("b", None))], null_keys="drop", **OPTIONS)
    assert counts(report) == {"new": 1, "dropped": 1}


def test_what_remains_refused() -> None:
    """An upsert is rejected if the writer's key is only a part of its key, and, where both keys are equal, if
    there is another target or an exploded array."""
    usual: dict[str, Any] = {"url": "postgresql://h/d", "table": "t", "consumer": "c"}
    for key, results in (
        ("shop", Upsert(["shop", "item"], "v")),
        ("k", [Append("a"), Upsert("k", "v", "b")]),
        ("k", Upsert(["k"], "v", explode="lines")),
    ):
        with pytest.raises(InvalidOption, match="each key is taken once"):
            checked(**usual, key=key, results=results)
    same = checked(**usual, key=["item", "shop"], results=Upsert(["shop", "item"], "v"))
    assert same.key == ("item", "shop", "v")


@INBOXES
@pytest.mark.parametrize("parts", [1, 2])
def test_a_type_outside_the_search_path(postgres: Database, inbox: str, parts: int) -> None:
    """The same version stays, whether rows of a key are in one partition or in two, if the operators of its
    type are not found."""
    engine = postgres.engine()
    create(engine, "hidden")
    execute(engine, "CREATE TABLE rated (account text PRIMARY KEY, version hidden.citext)")
    rows = pa.record_batch({"account": ["a", "a"], "version": ["B", "a"]})
    given = [[rows]] if parts == 1 else [[rows.slice(0, 1)], [rows.slice(1)]]
    options: dict[str, Any] = {"key": ["account", "version"], "results": Upsert("account", "version")}
    write(postgres, *given, table="rated", inbox=inbox, **options)
    assert fetched(engine, "SELECT version::text FROM rated") == [("a",)]


def create(engine: Engine, name: str) -> None:
    """Create a collation or an extension, if this server can."""
    try:
        execute(engine, MADE[name])
    except NotSupportedError:
        pytest.skip("this build of PostgreSQL has neither ICU nor the extensions that come with it")


@INBOXES
@pytest.mark.parametrize(
    ("key", "version", "older", "newer"),
    [
        ("text", "mood", ("a", "medium"), ("a", "high")),
        ("text", "jsonb", ("a", "9"), ("a", "10")),
        ("text", "inet", ("a", "10.0.0.9"), ("a", "10.0.0.10")),
        ("uuid", "text", ("A" * 32, "1"), ("a" * 32, "2")),
        ("char(3)", "text", ("a", "1"), ("a ", "2")),
        ("text COLLATE blind", "text", ("A", "1"), ("a", "2")),
        ("text", "text COLLATE numeric", ("a", "v9"), ("a", "v10")),
        ("text", 'text COLLATE "50 %s"', ("a", "v1"), ("a", "v2")),
        ("citext", "text", ("A", "1"), ("a", "2")),
        ("text", "citext", ("a", "a"), ("a", "B")),
    ],
)
def test_the_target_decides_what_is_newer(
    postgres: Database, inbox: str, key: str, version: str, older: Any, newer: Any
) -> None:
    """Of rows in one partition, too, the newest is the one that the types and collations of the target's
    columns say, and they say which keys are equal."""
    engine = postgres.engine()
    for name in MADE:
        if name in f"{key} {version}":
            create(engine, name)
    execute(
        engine,
        "CREATE TYPE mood AS ENUM ('low', 'medium', 'high')",
        f"CREATE TABLE rated (account {key} PRIMARY KEY, version {version}, amount bigint)",
    )
    (accounts, versions), amounts = zip(newer, older, strict=True), pa.array([2, 1], pa.int64())
    rows = pa.record_batch({"account": accounts, "version": versions, "amount": amounts})
    write(
        postgres,
        [rows],
        table="rated",
        key=["account", "version"],
        results=Upsert("account", "version"),
        inbox=inbox,
    )
    assert fetched(engine, "SELECT amount FROM rated") == [(2,)]
