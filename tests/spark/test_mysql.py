"""MySQL and MariaDB: how LOAD DATA LOCAL, session settings and unique keys affect a write."""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, text

from inbox.errors import InvalidOption
from inbox_outbox_base.databases.mysql.loading import MySQLLoading
from spark import Upsert
from spark._executor.connect import engine_of, transaction
from spark.errors import ColumnMismatch, InvalidRow, SparkWriterError
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.spark.writes import batch, counts, execute, fetched, options_of, taken, write, written

TEN = [(f"k{number}", number) for number in range(10)]
pytestmark = [on("mariadb", "mysql"), pytest.mark.mysql]


@pytest.fixture
def no_local_infile(migrated: Database) -> Iterator[None]:
    """Makes the server reject LOAD DATA LOCAL, as MySQL does by default."""
    engine = migrated.engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("SET GLOBAL local_infile = OFF"))
        yield
        connection.execute(text("SET GLOBAL local_infile = ON"))


def test_load_data(migrated: Database, engine: Engine) -> None:
    """If the server allows it, rows are sent with LOAD DATA, and the report says so."""
    report = write(migrated, [batch(*TEN)])
    assert (counts(report), report.transport) == ({"new": 10}, "load data")
    assert written(engine) == TEN


@pytest.mark.usefixtures("no_local_infile")
def test_without_load_data(migrated: Database, engine: Engine) -> None:
    """If the server does not allow LOAD DATA, rows are sent with INSERT, and the report says so."""
    report = write(migrated, [batch(*TEN)], batch_size=3)
    assert (counts(report), report.transport) == ({"new": 10}, "insert")
    assert written(engine) == TEN


def test_a_url_may_forbid_load_data(migrated: Database, engine: Engine) -> None:
    """``local_infile=0`` in the URL is respected: the server cannot ask for files."""
    url = migrated.url.update_query_dict({"local_infile": "0"})
    assert write(migrated, [batch(*TEN)], url=url).transport == "insert"
    assert written(engine) == TEN


def test_another_character_set(migrated: Database, engine: Engine) -> None:
    """A session that takes what the driver sends for characters of another set is refused."""
    with pytest.raises(
        InvalidOption, match="character_set_client is latin1, but the driver sends text in utf8"
    ):
        write(migrated, [batch(*TEN)], session_init_statement="SET NAMES latin1")
    for name in ("utf8", "UTF8MB4"):
        url = migrated.url.update_query_dict({"charset": name})
        assert write(migrated, [batch((name, 1))], url=url).new == 1


def test_a_warning_of_load_data_is_an_error(migrated: Database, engine: Engine) -> None:
    """LOAD DATA LOCAL turns errors into warnings. A warning raises an error that names the column and not the
    value, and nothing is written after it."""
    table = pa.table({"a": ["1", "x"]})
    settings = options_of(migrated)
    database = MySQLLoading()
    with transaction(engine_of(settings), database, settings) as connection:
        connection.execute(text("CREATE TEMPORARY TABLE staged (a integer)"))
        with pytest.raises(InvalidRow, match=r"LOAD DATA: .*column .*a.* at row 2") as caught:
            database.load(connection, "staged", None, table, 10)
    assert "'x'" not in str(caught.value)


def test_text_that_is_no_text(migrated: Database, engine: Engine) -> None:
    """Bytes in a text column that are not valid UTF-8 raise an error; they are not stored as other text."""
    note = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"], pa.binary()).buffers())
    with pytest.raises(Exception, match=r"(?i)utf|1366"):
        write(migrated, [pa.record_batch({"id": ["a"], "note": note})])
    assert taken(engine) == []


MODES = ["''", "'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'", "'TRADITIONAL,PAD_CHAR_TO_FULL_LENGTH'"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("infile", ["0", "1"])
def test_every_sql_mode(migrated: Database, engine: Engine, mode: str, infile: str) -> None:
    """In every SQL mode, text is stored unchanged, and a wrong value raises an error."""
    notes = ["\\", "a\\'b\"\t\n", "", "\\N", None]
    rows = pa.record_batch({"id": list("abcde"), "note": notes})
    url = migrated.url.update_query_dict({"local_infile": infile})
    options: dict[str, Any] = {"url": url, "session_init_statement": f"SET SESSION sql_mode = {mode}"}
    write(migrated, [rows], **options)
    assert fetched(engine, "SELECT note FROM result ORDER BY id") == [(note,) for note in notes]
    wrong = pa.record_batch({"id": ["f"], "amount": pa.array([10**30], pa.decimal128(38, 0))})
    with pytest.raises(Exception, match="amount"):
        write(migrated, [wrong], **options)


def test_limits(migrated: Database, engine: Engine) -> None:
    """The server limits waiting, also for a client that no longer exists. The session's time zone is UTC."""
    for lock_timeout, seconds, idle in ((0, 1, 60), (1.5, 2, 60), (90, 90, 90)):
        settings = options_of(migrated, lock_timeout=lock_timeout, query_timeout=7)
        with transaction(engine_of(settings), MySQLLoading(), settings) as connection:
            asked = text(
                "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@wait_timeout, @@time_zone, "
                f"{_statement_limit(connection)}"
            )
            assert tuple(connection.execute(asked).one()) == (seconds, seconds, idle, "+00:00", 7)
            assert connection.get_isolation_level() == "READ COMMITTED"


def _statement_limit(connection: Connection) -> str:
    is_mariadb = getattr(connection.dialect, "is_mariadb", False)
    return "round(@@max_statement_time)" if is_mariadb else "@@max_execution_time DIV 1000"


def test_connections_are_counted_by_database_and_consumer(migrated: Database, engine: Engine) -> None:
    """All writers of a consumer share `max_connections`; other consumers have their own. A connection that
    closes frees its place."""
    settings = options_of(migrated, max_connections=2)
    other = options_of(migrated, max_connections=1, consumer="shipping")
    database = MySQLLoading()
    with engine.connect() as first, engine.connect() as second, engine.connect() as third:
        assert database.slot(first, settings)
        assert database.slot(second, settings)
        assert not database.slot(third, settings)
        assert database.slot(third, other)
        second.invalidate()
        deadline = time.monotonic() + 30
        while not database.slot(third, settings):  # the server notices soon
            assert time.monotonic() < deadline


UNIQUE = {
    "no key": ("", "no unique key on exactly these columns"),
    "another key": (", UNIQUE KEY other (item, amount)", "no unique key on exactly these columns"),
    "a part of a text": (", UNIQUE KEY item (item(3))", "no unique key on exactly these columns"),
    "two keys": (", UNIQUE KEY item (item), UNIQUE KEY other (amount)", "'other'"),
}


@pytest.mark.parametrize(("keys", "said"), UNIQUE.values(), ids=UNIQUE)
def test_an_upsert_needs_one_unique_key(migrated: Database, engine: Engine, keys: str, said: str) -> None:
    """ON DUPLICATE KEY UPDATE cannot name its key. An upsert into a table with another unique key is
    therefore rejected."""
    execute(engine, f"CREATE TABLE price (item varchar(9), version bigint, amount bigint{keys})")
    rows = pa.record_batch({"item": ["a"], "version": [1], "amount": [1]})
    with pytest.raises(ColumnMismatch, match=said):
        write(migrated, [rows], table="price", key=["item", "version"], results=Upsert("item", "version"))


def test_an_upsert_beside_a_counter(migrated: Database, engine: Engine) -> None:
    """An AUTO_INCREMENT primary key beside the upsert's key is allowed."""
    execute(
        engine,
        "CREATE TABLE price (id bigint PRIMARY KEY AUTO_INCREMENT, item varchar(9) UNIQUE, "
        "version bigint, amount bigint)",
    )
    for version, amount in ((2, 20), (1, 10), (3, 30)):
        rows = pa.record_batch(
            {"event": [f"e{version}"], "item": ["a"], "version": [version], "amount": [amount]}
        )
        write(migrated, [rows], table="price", key="event", results=Upsert("item", "version"))
    assert fetched(engine, "SELECT version, amount FROM price") == [(3, 30)]


def test_an_upsert_that_writes_the_counter(migrated: Database, engine: Engine) -> None:
    """Given the counter's values, it could update the row with that number instead: it is rejected."""
    execute(
        engine,
        "CREATE TABLE price (id bigint PRIMARY KEY AUTO_INCREMENT, item varchar(9) UNIQUE, version bigint)",
    )
    rows = pa.record_batch({"id": [1], "item": ["a"], "version": [1]})
    with pytest.raises(ColumnMismatch, match="unique key 'PRIMARY' could match a row as well"):
        write(migrated, [rows], table="price", key=["item", "version"], results=Upsert("item", "version"))


def test_an_enum_is_no_version(migrated: Database, engine: Engine) -> None:
    """The server would compare its labels as text."""
    execute(engine, "CREATE TABLE price (item varchar(9) PRIMARY KEY, version enum('low', 'high'))")
    rows = pa.record_batch({"item": ["a"], "version": ["low"]})
    with pytest.raises(ColumnMismatch, match="the column is an enum"):
        write(migrated, [rows], table="price", key=["item", "version"], results=Upsert("item", "version"))


MODES_OF_KEYS: dict[str, dict[str, Any]] = {
    "table": {"key": "item", "inbox": "table"},
    "upsert": {"key": ["item", "version"], "results": Upsert("item", "version")},
    "upsert-table": {"key": "item", "inbox": "table", "results": Upsert("item", "version")},
}


@pytest.mark.parametrize("mode", MODES_OF_KEYS)
def test_every_character_set(migrated: Database, engine: Engine, mode: str) -> None:
    """The target's column decides which keys are equal, also where its character set is smaller than that of
    the database, whose collation ignores case."""
    execute(engine, "ALTER DATABASE COLLATE utf8mb4_general_ci")
    for collation in ("utf8mb3_bin", "latin1_bin", "utf8mb4_bin"):
        execute(
            engine,
            "DROP TABLE IF EXISTS price",
            f"CREATE TABLE price (item varchar(9) COLLATE {collation} PRIMARY KEY, version bigint)",
        )
        for names in (["a", "b"], ["A", "c", "C"]):
            rows = pa.record_batch({"item": names, "version": [1] * len(names)})
            report = write(migrated, [rows], table="price", consumer=collation, **MODES_OF_KEYS[mode])
            assert (report.new, report.updated or 0) == (len(names), 0)
        assert fetched(engine, "SELECT count(*), sum(item = 'A') FROM price") == [(5, 1)]


def test_text_that_the_character_set_lacks(migrated: Database, engine: Engine) -> None:
    """It fails the partition, or is set aside, like any value that the table refuses."""
    execute(engine, "CREATE TABLE price (item varchar(9) COLLATE latin1_bin PRIMARY KEY, version bigint)")
    rows = pa.record_batch({"item": ["a", "\u65e5", "b"], "version": [1, 1, 1]})
    options: dict[str, Any] = {"table": "price", "key": "item"}
    with pytest.raises(SparkWriterError, match="item"):
        write(migrated, [rows], **options)
    report = write(migrated, [rows], bad_rows="table", **options)
    assert (report.new, report.rejected) == (2, 1)
    assert fetched(engine, "SELECT item FROM price ORDER BY item") == [("a",), ("b",)]


@pytest.mark.usefixtures("no_local_infile")
def test_a_row_that_the_server_would_not_receive(migrated: Database, engine: Engine) -> None:
    """A row larger than `max_allowed_packet` is refused before it is sent, as one that the table refuses."""
    with engine.connect() as connection:
        largest = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
    execute(engine, "CREATE TABLE price (item varchar(9) PRIMARY KEY, picture longblob)")
    pictures = pa.array([b"1", b"'" * (largest // 2 + 1), b"2"])
    rows = pa.record_batch({"item": ["a", "b", "c"], "picture": pictures})
    options: dict[str, Any] = {"table": "price", "key": "item"}
    with pytest.raises(InvalidRow, match="max_allowed_packet"):
        write(migrated, [rows], **options)
    assert write(migrated, [rows], bad_rows="table", **options).rejected == 1


def test_an_upsert_compares_as_the_table_does(migrated: Database, engine: Engine) -> None:
    """Keys that differ only in case are one row if the table's collation ignores case, and two rows
    otherwise."""
    for collation, expected in (("utf8mb4_general_ci", [("b", 2)]), ("utf8mb4_bin", [("B", 1), ("b", 2)])):
        execute(
            engine,
            "DROP TABLE IF EXISTS price",
            f"CREATE TABLE price (item varchar(9) COLLATE {collation} PRIMARY KEY, "
            "version bigint, label varchar(9) COLLATE utf8mb4_bin)",
        )
        rows = pa.record_batch({"item": ["B", "b"], "version": [1, 2], "label": ["B", "b"]})
        results = Upsert("item", "version")
        write(migrated, [rows], table="price", key="label", consumer=collation, results=results)
        assert fetched(engine, "SELECT label, version FROM price ORDER BY label") == expected


def test_a_table_that_is_the_inbox_compares_as_it_does(migrated: Database, engine: Engine) -> None:
    """With inbox="table", keys that are equal in the table's collation are one key, also within a
    partition."""
    execute(
        engine,
        "CREATE TABLE price (item varchar(9) COLLATE utf8mb4_general_ci PRIMARY KEY, amount bigint)",
    )
    for amounts, new in (([1, 2, 3], 2), ([4, 5, 6], 0)):
        rows = pa.record_batch({"item": ["b", "B", "c"], "amount": amounts})
        report = write(migrated, [rows], table="price", key="item", inbox="table")
        assert (report.new, report.duplicate) == (new, 3 - new)
    assert fetched(engine, "SELECT count(*), sum(amount) < 6 FROM price") == [(2, 1)]
