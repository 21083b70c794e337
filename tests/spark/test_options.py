"""Every option of the Spark writer: a wrong value is rejected before anything is read, by an error that names
the option and never contains a password."""

import os
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from sqlalchemy import URL, make_url
from sqlalchemy.exc import DBAPIError

from inbox.errors import InvalidOption, UnsupportedDatabase
from spark import Append, InboxDataSource, InboxWriter, Statements, Upsert
from spark._driver.job import Job
from spark._options import passwords
from spark._options.names import from_strings, with_defaults
from spark._options.settings import WriterSettings, checked
from spark.errors import SparkWriterError
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.roles import PASSWORD, rights, role
from tests.support.spark.writes import attempt, batch, make_result, prepared, write, written

SECRET = "hunter2"  # noqa: S105 - it opens nothing
GOOD: dict[str, Any] = {
    "url": f"postgresql://user:{SECRET}@127.0.0.1:1/app",
    "table": "t",
    "key": "k",
    "consumer": "c",
}
ROWS = StructType([StructField("k", StringType(), nullable=False), StructField("amount", LongType())])

BAD: dict[str, list[Any]] = {
    "table": ["", ".", "a.", ".a", "a.b.c", 5, "new_rows", "shop.New_Rows_2", "inbox_keys"],
    "key": ["", [], ["a", ""], ["a", "a"], [1], 5, b"id", {"a": 1}],
    "consumer": ["", "x" * 129, "a\0", "\ud800", 5],
    "results": ["append", 5, Append, Upsert],
    "inbox": ["", "target", True, 5],
    "run": ["", "x" * 129, "a\0", "\ud800", 5],
    "batch": [-1, 1.5, "1", True, 2**63],
    "ledger": ["", "on", 5, ["verify"]],
    "atomicity": ["", "all", 5],
    "null_keys": ["", "ignore", 5],
    "digest": ["", [], ["a", ""], ["a", "a"], [1], 5],
    "mismatches": ["", "ignore", 5],
    "bad_rows": ["", "drop", True, 5],
    "batch_size": [0, -1, 1.5, "10", True],
    "num_partitions": [0, -1, 1.5, "10", True],
    "max_connections": [0, -1, 1.5, "10", True],
    "isolation_level": ["", "NONE", "none", "READ_UNCOMMITTED", "read uncommitted", "SNAPSHOT", 5],
    "session_init_statement": ["", "  ", 5],
    "query_timeout": [-1, float("nan"), float("inf"), "5", True, 10**400, timedelta(days=2), timedelta(-1)],
    "lock_timeout": [-1, float("nan"), float("inf"), "5", True, 10**400, timedelta(days=2), timedelta(-1)],
    "memory": [0, -1, 2**20 - 1, "64MB", True],
    "inbox_schema": ["", "  ", 5],
    "retention": [-1, float("nan"), float("inf"), "7d", True, timedelta(-1)],
    "key_time": ["", "uuid4", True, 5],
    "before": ["SELECT 1", 5, [""], ["SELECT 1", 5]],
    "after": ["SELECT 1", 5, [""], ["SELECT 1", 5]],
}


@pytest.mark.parametrize("option", BAD)
def test_a_bad_value_is_refused_at_once(option: str) -> None:
    """The constructor raises an `InvalidOption` that begins with the option and its value."""
    for value in BAD[option]:
        with case(value), pytest.raises(InvalidOption) as caught:
            InboxWriter(**{**GOOD, option: value})
        shown = value.total_seconds() if isinstance(value, timedelta) else value
        assert str(caught.value).startswith(f"{option}={shown!r:.80}"), str(caught.value)
        assert SECRET not in str(caught.value)


def test_too_weak_an_isolation_level_says_why() -> None:
    """An isolation level that Spark's JDBC source accepts but that is too weak here is rejected with the
    reason, not as an unknown word."""
    for level in ("NONE", "READ_UNCOMMITTED", "Read Uncommitted"):
        with case(level), pytest.raises(InvalidOption, match="guarantee"):
            InboxWriter(**{**GOOD, "isolation_level": level})


BAD_URLS = [
    5,
    "shop",
    f"postgres:{SECRET}",
    f"postgresql://user:{SECRET}@x@127.0.0.1/app",
    f"postgresql://user:{SECRET}@127.0.0.1:port/app",
    f"postgresql+psycopg2://user:{SECRET}@127.0.0.1/app",
    f"postgresql+asyncpg://user:{SECRET}@127.0.0.1/app",
    f"mysql+asyncmy://user:{SECRET}@127.0.0.1/app",
    f"sqlite+aiosqlite:///{SECRET}",
    f"oracle://user:{SECRET}@127.0.0.1/app",
    "jdbc:",
    "jdbc:shop",
    "jdbc:postgresql",
    "jdbc:postgresql:",
    f"jdbc:oracle:thin:user/{SECRET}@//127.0.0.1/app",
    f"jdbc:postgresql://user:{SECRET}@127.0.0.1/app",
    f"jdbc:postgresql://127.0.0.1:port/app?password={SECRET}",
    f"jdbc:postgresql://127.0.0.1:99999/app?password={SECRET}",
    f"jdbc:postgresql://[::1/app?password={SECRET}",
    f"jdbc:postgresql://one,two/app?password={SECRET}",
    f"jdbc:postgresql://127.0.0.1/app?trustStorePassword={SECRET}",
    f"jdbc:mysql://127.0.0.1/app?sslmode={SECRET}",
]


async def asynchronous(connection: Any, rows: Any) -> None:
    """A function whose call does nothing."""


def generating(connection: Any, rows: Any) -> Iterator[None]:
    """A function whose call does nothing."""
    yield


class AsynchronousCall:
    """An object whose call does nothing."""

    async def __call__(self, connection: Any, rows: Any) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    "results",
    [asynchronous, generating, partial(asynchronous), AsynchronousCall()],
    ids=["coroutine", "generator", "partial", "object"],
)
def test_a_function_whose_call_does_nothing_is_refused(results: object) -> None:
    """An asynchronous function or one with a `yield` would take the keys, and write no rows."""
    with pytest.raises(InvalidOption, match=r"^results=.*it is asynchronous, or has a yield"):
        InboxWriter(**{**GOOD, "table": None, "results": results})


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_url_is_refused_without_repeating_it(url: Any) -> None:
    """The error names the option, or the unsupported database, but does not repeat the URL, which may contain
    a password."""
    with pytest.raises((InvalidOption, UnsupportedDatabase), match=r"^(url|dialect|driver)\b") as caught:
        InboxWriter(**{**GOOD, "url": url})
    assert SECRET not in "".join(traceback.format_exception(caught.value, chain=True)).split("Error: ")[-1]


@pytest.mark.parametrize("option", ["user", "password"])
def test_a_user_or_password_that_is_no_text(option: str) -> None:
    """A user or password that is not a string is rejected without being repeated."""
    with pytest.raises(InvalidOption, match=f"^{option}: expected text") as caught:
        InboxWriter(**{**GOOD, option: 31415})
    assert "31415" not in str(caught.value)


@on("mariadb")
def test_a_password_that_is_asked_for(migrated: Database) -> None:
    """A function or a command gives the password of each connection, on driver and executors. If there is
    none, or it is wrong, the error has neither the password nor what the command has printed."""
    engine, asked = make_result(migrated), []

    def give() -> str:
        asked.append(PASSWORD)
        return PASSWORD

    with role(migrated) as app:
        for right in rights("mariadb", "Spark"):
            app.grant(right)
        url = app.database.url._replace(password=None)
        write(app.database, [batch(("a", 1))], url=url, password=give)
        assert len(asked) > 3
        printing = [sys.executable, "-c", f"print({PASSWORD!r})"]
        task = prepared(app.database, url=url, password=printing)
        assert attempt(task, 0, batch(("b", 1)))
        assert PASSWORD not in repr(task)
        failing = [sys.executable, "-c", f"print({SECRET!r}); exit(3)"]
        with pytest.raises(SparkWriterError, match=r"password: .* ended with exit code 3") as failed:
            prepared(app.database, url=url, password=failing)
        with pytest.raises(DBAPIError, match="Access denied") as refused:
            prepared(app.database, url=url, password=[sys.executable, "-c", f"print({SECRET!r})"])
        for error in (failed.value, refused.value):
            assert SECRET not in "".join(traceback.format_exception(error))
    assert written(engine) == [("a", 1), ("b", 1)]


def test_what_a_command_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a command has printed when it ends is the password, also if a process that it has started goes on
    with the same output. A command that prints nothing is an error."""
    monkeypatch.setattr(passwords, "_PATIENCE", 10.0)
    fifo = tmp_path / "goes-on"
    os.mkfifo(fifo)
    try:
        assert passwords.given_by(("sh", "-c", f"cat {fifo} & echo {PASSWORD}")) == PASSWORD
    finally:
        fifo.write_bytes(b"")  # ends the process
    with pytest.raises(SparkWriterError, match=r"password: .* has printed nothing"):
        passwords.given_by(("sh", "-c", "echo"))


def test_the_option_for_a_command() -> None:
    """`passwordCommand` is divided as a shell divides it, and excludes `password`."""
    assert from_strings({"passwordCommand": "tool --for 'a b'"}) == {"password": ["tool", "--for", "a b"]}
    for given in ({"passwordCommand": "'"}, {"passwordCommand": "a", "password": SECRET}):
        with pytest.raises(InvalidOption, match=r"^passwordCommand: ") as caught:
            from_strings(given)
        assert SECRET not in str(caught.value)


UPSERT = {"results": "upsert", "upsertKey": "k", "version": "v"}
INSTEAD: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"password": "p"}, {"passwordCommand": "tool"}),
    ({"PASSWORDCOMMAND": "tool"}, {"password": "p"}),
    ({"results": "append"}, UPSERT),
    (UPSERT, {"results": "append"}),
    ({"outboxTopic": "t", "outboxPer": "partition"}, {"outboxTopic": "u", "outboxPayload": "p"}),
    ({"outboxTopic": "t"}, {"outboxKey": "k"}),
]


@pytest.mark.parametrize(("options", "session"), INSTEAD)
def test_options_instead_of_defaults(options: dict[str, str], session: dict[str, str]) -> None:
    """If an option is given, the session's defaults for the same argument are not used; others are."""
    defaults = {f"spark.inbox.{name}": value for name, value in {"ledger": "verify", **session}.items()}
    assert from_strings(with_defaults(options, defaults)) == {"ledger": "verify", **from_strings(options)}


def test_an_unknown_option_is_refused() -> None:
    """An unknown argument raises Python's TypeError, and an unknown text option raises `InvalidOption`."""
    with pytest.raises(TypeError, match="overwrite"):
        InboxWriter(**{**GOOD, "overwrite": True})
    for name, value in (("overwrite", "true"), ("numpartition", "4"), ("fetchsize", "10"), ("", "")):
        with pytest.raises(InvalidOption, match=f"^{name}: no such option"):
            from_strings({name: value})


JDBC = {
    "jdbc:postgresql://h/d": "postgresql+psycopg://h:5432/d",
    "JDBC:postgresql://h:6543/d": "postgresql+psycopg://h:6543/d",
    "jdbc:postgresql://[::1]:6543/d": "postgresql+psycopg://[::1]:6543/d",
    "jdbc:postgresql:d": "postgresql+psycopg://localhost:5432/d",
    "jdbc:postgresql://h/d?user=u&password=p%40%2Fw": "postgresql+psycopg://u:p%40%2Fw@h:5432/d",
    "jdbc:postgresql://h/d?sslmode=require&reWriteBatchedInserts=true": (
        "postgresql+psycopg://h:5432/d?sslmode=require"
    ),
    "jdbc:postgresql://h/d?currentSchema=shop": (
        "postgresql+psycopg://h:5432/d?options=-csearch_path%3Dshop"
    ),
    "jdbc:postgresql://h/a%20b": "postgresql+psycopg://h:5432/a b",
    "jdbc:mysql://h/d?rewriteBatchedStatements=true": "mysql+pymysql://h:3306/d",
    "jdbc:mysql://h:3307/d?user=u&password=p": "mysql+pymysql://u:p@h:3307/d",
    "jdbc:mariadb://h/d": "mariadb+pymysql://h:3306/d",
    "jdbc:sqlite:/tmp/x.db": "sqlite:////tmp/x.db",
    "jdbc:sqlite:x.db": f"sqlite:///{Path('x.db').absolute()}",
    "sqlite:///x.db": f"sqlite:///{Path('x.db').absolute()}",
    "postgresql://u:p@h/d": "postgresql+psycopg://u:p@h/d",
    "postgres://u@h/d": "postgresql+psycopg://u@h/d",
    "mysql://h/d": "mysql+pymysql://h/d",
    "mariadb://h/d": "mariadb+pymysql://h/d",
    "sqlite:////tmp/x.db": "sqlite:////tmp/x.db",
}


@pytest.mark.parametrize(("given", "meant"), JDBC.items())
def test_urls_in_either_form(given: str, meant: str) -> None:
    """A JDBC URL and a SQLAlchemy URL mean the same database, with the driver that the inbox uses."""
    found = checked(**{**GOOD, "url": given}).url
    assert found == make_url(meant)
    assert checked(**{**GOOD, "url": found}).url == found


def test_user_and_password_go_before_those_of_the_url() -> None:
    """The options `user` and `password` override the URL, as in Spark's JDBC source."""
    for url in ("jdbc:postgresql://h/d?user=a&password=b", "postgresql://a:b@h:5432/d"):
        found = checked(**{**GOOD, "url": url}, user="u", password="p@/:w").url  # noqa: S106
        assert (found.username, found.password, found.host) == ("u", "p@/:w", "h")


def test_a_jdbc_url_reaches_each_database(migrated: Database) -> None:
    """The writer writes to a real server whose address is a JDBC URL, with user and password as options."""
    engine, url = make_result(migrated), migrated.url
    where = f"{url.host}:{url.port}/" if url.host else ""
    slashes = "//" if url.host else ""
    scheme = {"postgresql": "postgresql", "sqlite": "sqlite"}.get(migrated.name, migrated.name)
    jdbc = f"jdbc:{scheme}:{slashes}{where}{url.database}"
    report = write(migrated, [batch(("a", 1))], url=jdbc, user=url.username, password=url.password)
    assert report.new == 1
    assert written(engine) == [("a", 1)]


STRINGS = {
    "url": ("url", "jdbc:postgresql://h/d", "jdbc:postgresql://h/d"),
    "dbtable": ("table", "shop.t", "shop.t"),
    "user": ("user", "u", "u"),
    "password": ("password", "p", "p"),
    "key": ("key", "a, b", ("a", "b")),
    "consumer": ("consumer", "c", "c"),
    "inbox": ("inbox", "rows", "rows"),
    "batchsize": ("batch_size", "10", 10),
    "numPartitions": ("num_partitions", "3", 3),
    "isolationLevel": ("isolation_level", "SERIALIZABLE", "SERIALIZABLE"),
    "sessionInitStatement": ("session_init_statement", "SET x = 1", "SET x = 1"),
    "queryTimeout": ("query_timeout", "5", 5),
    "txnAppId": ("run", "r", "r"),
    "txnVersion": ("batch", "7", 7),
    "ledger": ("ledger", "trust", "trust"),
    "atomicity": ("atomicity", "job", "job"),
    "nullKeys": ("null_keys", "drop", "drop"),
    "digest": ("digest", "a, b", ("a", "b")),
    "mismatches": ("mismatches", "count", "count"),
    "maxConnections": ("max_connections", "2", 2),
    "inboxSchema": ("inbox_schema", "s", "s"),
}


@pytest.mark.parametrize("spelled", [str, str.lower, str.upper, str.swapcase])
def test_text_options_have_the_names_of_sparks_jdbc_source(spelled: Any) -> None:
    """Text options are case-insensitive. Each sets the matching argument of the writer, and all of them can
    be used together."""
    given = {spelled(name): text for name, (_, text, _) in STRINGS.items()}
    found = from_strings(given)
    assert found == {argument: value for argument, _, value in STRINGS.values()}
    assert isinstance(checked(**found), WriterSettings)
    upsert = from_strings(
        {spelled("results"): "upsert", spelled("upsertKey"): "a,b", spelled("version"): "v"}
    )
    assert upsert == {"results": Upsert(("a", "b"), "v")}
    assert from_strings({spelled("results"): "append", spelled("checkpointLocation"): "x"}) == {
        "results": Append()
    }


SOURCE = {"url": "postgresql://user@127.0.0.1:1/app", "dbtable": "t", "key": "k", "consumer": "c"}
BAD_TEXTS = [
    ({"batchsize": "many"}, "batchsize='many'"),
    ({"batchsize": "0"}, "batch_size=0"),
    ({"numPartitions": "0"}, "max_connections=0"),
    ({"numPartitions": "4.5"}, "numPartitions='4.5'"),
    ({"txnVersion": "-1"}, "batch=-1"),
    ({"queryTimeout": "5s"}, "queryTimeout='5s'"),
    ({"isolationLevel": "NONE"}, "isolation_level='NONE'"),
    ({"isolationLevel": "READ_UNCOMMITTED"}, "isolation_level='READ_UNCOMMITTED'"),
    ({"ledger": "on"}, "ledger='on'"),
    ({"nullKeys": "ignore"}, "null_keys='ignore'"),
    ({"key": "a,,b"}, "key=('a', '', 'b')"),
    ({"dbtable": ""}, "table=''"),
    ({"consumer": ""}, "consumer=''"),
    ({"truncate": "true"}, "truncate='true'"),
    ({"driver": "org.postgresql.Driver"}, "driver='org.postgresql.Driver'"),
    ({"query": "SELECT 1"}, "query='SELECT 1'"),
    ({"overwrite": "true"}, "overwrite: no such option"),
    ({"atomicity": "job"}, "atomicity='job'"),
    ({"results": "replace"}, "results='replace'"),
    ({"results": "upsert"}, "results='upsert'"),
    ({"results": "upsert", "upsertKey": "a"}, "results='upsert'"),
    ({"results": "upsert", "upsertKey": "", "version": "v"}, "Upsert(key=('',))"),
    ({"results": "upsert", "upsertKey": "k,a", "version": "v"}, "with key=('k', 'v')"),
    ({"upsertKey": "a"}, "upsertKey"),
    ({"version": "v"}, "version"),
]


def test_the_data_source_refuses_as_early() -> None:
    """A wrong option raises `InvalidOption` on the driver, when Spark asks for a writer, for a batch and for
    a stream."""
    for options, said in BAD_TEXTS:
        source = InboxDataSource({**SOURCE, **options})
        for ask in (source.writer, source.streamWriter):
            with case(options), pytest.raises(InvalidOption) as caught:
                ask(ROWS, False)
            assert said in str(caught.value)


def test_the_data_source_does_not_overwrite() -> None:
    """Mode "overwrite" and output mode "complete" are rejected: existing rows are never deleted."""
    with pytest.raises(InvalidOption, match=r"overwrite.*append"):
        InboxDataSource(SOURCE).writer(ROWS, True)
    with pytest.raises(InvalidOption, match=r"complete.*append"):
        InboxDataSource(SOURCE).streamWriter(ROWS, True)


def test_results_are_checked_when_they_are_made() -> None:
    """`Statements` rejects anything but SQL text, and `Upsert` anything but column names, with
    `InvalidOption`."""
    for texts in ((), ("",), ("  ",), (5,), ("SELECT 1", None)):
        with pytest.raises(InvalidOption, match=r"^Statements\("):
            Statements(*texts)
    for key in ("", [], [""], [5]):
        with pytest.raises(InvalidOption, match=r"^Upsert\(key="):
            Upsert(key, "v")  # type: ignore[arg-type]
    for version in ("", None, 5):
        with pytest.raises(InvalidOption, match=r"^Upsert\(version="):
            Upsert("k", version)  # type: ignore[arg-type]


def test_nothing_shows_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password is not in the repr of the writer or of a task's settings, nor anywhere in the traceback of
    a refused connection."""
    shown = [InboxWriter(**GOOD), InboxWriter(**GOOD, password=SECRET), checked(**GOOD, password=SECRET)]
    for form in (repr, str):
        assert all(SECRET not in form(each) for each in shown)
    monkeypatch.setattr("spark._executor.connect.FIRST_PATIENCE", 0.1)
    for url in (GOOD["url"], f"mysql://user:{SECRET}@127.0.0.1:1/app"):
        settings = checked(**{**GOOD, "url": url})
        with pytest.raises(DBAPIError, match=r"127\.0\.0\.1") as caught:
            Job(settings, None).prepare(pa.schema([("k", pa.string())]))
        assert SECRET not in "".join(traceback.format_exception(caught.value, chain=True))


def test_a_password_in_a_query_is_not_shown_either() -> None:
    """A password as `?password=...`, which libpq accepts, is not shown either."""
    url = URL.create("postgresql", host="127.0.0.1", database="app", query={"password": SECRET})
    settings = checked(**{**GOOD, "url": url})
    assert SECRET not in repr(settings)
    assert settings.url.password == SECRET
