"""Settings of a session, and of a driver's connection, change nothing that we read; others are refused by
name when the connection is first used."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, NoReturn

import psycopg
import psycopg2.extensions
import pytest
from psycopg.adapt import Dumper, Loader
from psycopg.types.json import set_json_loads
from psycopg.types.string import StrDumper, TextLoader
from psycopg2.extensions import AsIs
from psycopg2.extras import RealDictCursor
from pymysql.constants import FIELD_TYPE
from pymysql.converters import conversions
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    event,
    insert,
    select,
    text,
)
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import sessionmaker

from inbox import AsyncInbox, AsyncStatusInbox, Inbox, SqlStore, StatusInbox, Verdict, purge
from inbox import check as check_inbox
from inbox.errors import MessageInFlight, UnsafeDatabase, UnusableConnection
from inbox.schema import metadata
from outbox import Accepted, Envelope, Outbox, Outcome, Refused, Relay, peek
from outbox import check as check_outbox
from outbox.errors import UnsafeDatabase as OutboxUnsafeDatabase
from outbox.errors import UnusableConnection as OutboxUnusableConnection
from tests.support.database import Database
from tests.support.listeners import asynchronously
from tests.support.on_servers import on
from tests.support.outbox_publishers import Recorder
from tests.support.together import Task

WORDS = "Łukasz 😀 \\ ' \" % _ %s"
INBOX = Inbox("billing", retention=timedelta(days=3))
REFUSAL = f"the schema check failed: {WORDS}"

OF_POSTGRESQL = [
    "timezone='America/St_Johns'",
    "bytea_output='escape'",
    "standard_conforming_strings=off",
    "intervalstyle='iso_8601'",
    "extra_float_digits=-15",
    "default_transaction_isolation='serializable'",
    "search_path='nowhere', public",
    "transform_null_equals=on",
    "array_nulls=off",
    "quote_all_identifiers=on",
]
OF_MYSQL = [
    "time_zone='+05:30'",
    "sql_mode=''",
    "sql_mode='ANSI'",
    "sql_mode='TRADITIONAL,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
    "sql_mode='NO_ZERO_DATE,NO_UNSIGNED_SUBTRACTION'",
    "autocommit=0",
    "sql_auto_is_null=1",
    "character_set_results=latin1",
    "NAMES latin1",
    "NAMES utf8",
    "collation_connection=utf8mb4_turkish_ci",
    "auto_increment_increment=3",
]


def works(engine: Engine, key: str, elsewhere: Engine) -> None:
    """All that is written on one engine is read as it was, on it and on another one."""
    exactly_once(engine, key, elsewhere)
    status_mode(engine, key, elsewhere)
    outbox(engine, key, elsewhere)


def exactly_once(engine: Engine, key: str, elsewhere: Engine) -> None:
    result = {"name": WORDS, "when": "2020-01-01", "sum": 1.5}
    with INBOX.transaction(engine, key, WORDS) as work:
        assert work.is_new
        work.result = result
    for each in (engine, elsewhere):
        with INBOX.transaction(each, key, WORDS) as work:
            assert (work.verdict, work.result) == (Verdict.DUPLICATE, result)
    keys = [f"{key} {number}" for number in range(3)]
    for verdict in (Verdict.NEW, Verdict.DUPLICATE):
        with engine.begin() as connection:
            assert INBOX.accept_many(connection, keys, keys) == [verdict] * 3
    for days, verdict in ((4, Verdict.TOO_OLD), (2.9, Verdict.NEW)):
        time = datetime.now(UTC) - timedelta(days=days)
        with engine.begin() as connection:
            assert INBOX.accept(connection, f"{key} {days}", message_time=time) is verdict


def status_mode(engine: Engine, key: str, elsewhere: Engine) -> None:
    inbox = StatusInbox("calls", store=SqlStore(engine))
    with pytest.raises(RuntimeError), inbox.claim(key, payload=WORDS) as claim:  # noqa: PT012
        claim.step(WORDS, lambda: WORDS)
        raise RuntimeError(WORDS)
    with inbox.claim(key, payload=WORDS) as claim:
        assert claim.step(WORDS, lambda: None) == WORDS
        claim.transact("book", lambda _: WORDS, source=engine)
        claim.result = WORDS
    with inbox.claim(key, payload=WORDS) as claim:
        assert claim.result == WORDS
    record = SqlStore(elsewhere).find("calls", key)
    assert record is not None
    assert record == SqlStore(engine).find("calls", key)
    assert WORDS in json.loads(record.history or "")[0]["error"]
    assert abs(datetime.now(UTC) - record.updated_at) < timedelta(minutes=1)


def outbox(engine: Engine, key: str, elsewhere: Engine) -> None:
    def answer(message: Envelope) -> Outcome:
        return Accepted() if message.key == key else Refused(REFUSAL)

    with engine.begin() as connection:
        for each in (key, f"{key} refused"):
            Outbox().publish(connection, topic=key, payload=WORDS, key=each, headers={"h": WORDS})
    publisher = Recorder(answer)
    Relay(engine, publisher).run_once()
    assert {(each.key, each.payload, each.headers["h"]) for each in publisher.sent} == {
        (each, WORDS.encode(), WORDS) for each in (key, f"{key} refused")
    }
    for place in (engine, elsewhere):
        (dead,) = peek(place, topic=key, state="dead")
        assert (dead.error, dead.headers) == (REFUSAL, {"h": WORDS})


def with_setting(database: Database, setting: str, **options: Any) -> Engine:
    """An engine whose sessions begin with this SET."""

    def connected(driver: Any, _: object) -> None:
        driver.cursor().execute(f"SET {setting}")
        driver.commit()

    engine = database.engine(**options)
    event.listen(engine, "connect", connected)
    return engine


def prepared(database: Database, prepare: Callable[[Any], object]) -> Engine:
    """An engine whose driver's connections are prepared like this."""
    engine = database.engine()

    def connected(driver: Any, _: object) -> None:
        prepare(driver)
        driver.commit()

    event.listen(engine, "connect", connected)
    return engine


@on("postgresql", "mariadb", "psycopg2")
def test_settings_that_change_nothing(migrated: Database) -> None:
    """Time zones, SQL modes, character sets, isolation levels and ways to write values change nothing."""
    elsewhere = migrated.engine()
    for setting in OF_POSTGRESQL if migrated.name == "postgresql" else OF_MYSQL:
        engine = with_setting(migrated, setting)
        works(engine, f"{setting} {WORDS}", elsewhere)
        engine.dispose()


@on("mariadb")
def test_character_sets_of_the_driver(migrated: Database) -> None:
    """Nor does a smaller character set in the URL, in strict mode or not."""
    elsewhere = migrated.engine()
    for charset in ("utf8", "latin1", "ascii", "gbk"):
        engine = migrated.engine_at(migrated.url.update_query_dict({"charset": charset}))
        works(engine, f"{charset} {WORDS}", elsewhere)
        engine.dispose()


def fails(*_: Any, **__: Any) -> NoReturn:
    """What an application's own function for JSON must not be called for."""
    raise AssertionError


@on("postgresql", "mariadb", "psycopg2", "mysqldb")
def test_json_functions_of_the_application(migrated: Database) -> None:
    """The application's own functions for JSON are not called for our values."""
    engine = migrated.engine(json_deserializer=fails, json_serializer=fails)
    if engine.dialect.driver == "psycopg":
        event.listen(engine, "connect", lambda driver, _: set_json_loads(fails, driver))
    works(engine, WORDS, migrated.engine())


class Upper(TextLoader):
    """Reads text in upper case."""

    def load(self, data: Any) -> str:
        return str(super().load(data)).upper()


class AsText(Loader):
    """Reads anything as text."""

    def load(self, data: Any) -> str:
        return bytes(data).decode()


class UpperDumper(StrDumper):
    """Writes text in upper case."""

    def dump(self, obj: Any) -> Any:
        return super().dump(obj.upper())


class BoolDumper(Dumper):
    """Writes truth values as text that the server does not take for them."""

    def dump(self, obj: Any) -> Any:
        return b"yes" if obj else b"no"


REFUSED: Mapping[str, Callable[[Any], object]] = {
    "client_encoding='LATIN1'": lambda driver: driver.execute("SET client_encoding = 'LATIN1'"),
    "DateStyle='SQL, DMY'": lambda driver: driver.execute("SET datestyle = 'SQL, DMY'"),
    "row_factory=dict_row": lambda driver: setattr(driver, "row_factory", psycopg.rows.dict_row),
    "loader of text=Upper": lambda driver: driver.adapters.register_loader("text", Upper),
    "loader of int8=AsText": lambda driver: driver.adapters.register_loader("int8", AsText),
    "loader of timestamptz=AsText": lambda driver: driver.adapters.register_loader("timestamptz", AsText),
    "dumper of str=UpperDumper": lambda driver: driver.adapters.register_dumper(str, UpperDumper),
    "dumper of bool=BoolDumper": lambda driver: driver.adapters.register_dumper(bool, BoolDumper),
    "dumper of int=BoolDumper": lambda driver: driver.adapters.register_dumper(int, BoolDumper),
}


def cast_all(oid: int) -> Callable[[Any], object]:
    """What has psycopg2 read a type in upper case."""
    kind = psycopg2.extensions.new_type((oid,), "UPPER", lambda value, _: value and value.upper())
    return lambda driver: psycopg2.extensions.register_type(kind, driver)


REFUSED_OF_PSYCOPG2: Mapping[str, Callable[[Any], object]] = {
    "client_encoding='LATIN1'": lambda driver: driver.set_client_encoding("LATIN1"),
    "DateStyle='SQL, DMY'": lambda driver: driver.cursor().execute("SET datestyle = 'SQL, DMY'"),
    "cursor_factory=RealDictCursor": lambda driver: setattr(driver, "cursor_factory", RealDictCursor),
    "cast of text=UPPER": cast_all(25),
    "cast of int8=UPPER": cast_all(20),
    "cast of bytea=UPPER": cast_all(17),
}


def is_refused(engine: Engine, setting: str) -> None:
    """Each part refuses the engine with this text, and nothing is written."""
    with pytest.raises(UnusableConnection, match=setting), INBOX.transaction(engine, "a"):
        pass
    with pytest.raises(UnusableConnection, match=setting):
        SqlStore(engine).now()
    with pytest.raises(OutboxUnusableConnection, match=setting):
        Relay(engine, Recorder()).run()
    with pytest.raises(OutboxUnusableConnection, match=setting), engine.begin() as connection:
        Outbox().publish(connection, topic="orders", payload="a")


def test_what_is_refused_on_postgresql(postgres: Database) -> None:
    """Settings under which values would be read or written wrongly are refused by name and value."""
    for setting, prepare in REFUSED.items():
        engine = prepared(postgres, prepare)
        is_refused(engine, setting)
        engine.dispose()


@on("psycopg2")
def test_what_is_refused_of_psycopg2(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through another driver, whose adapters are those of the whole process."""
    for setting, prepare in REFUSED_OF_PSYCOPG2.items():
        engine = prepared(migrated, prepare)
        is_refused(engine, setting)
        engine.dispose()
    adapters = psycopg2.extensions.adapters
    quoted = {str: "upper", bool: "yes", bytes: "x", int: "0"}
    for kind, written in quoted.items():
        with monkeypatch.context() as patch:
            patch.setitem(adapters, (kind, psycopg2.extensions.ISQLQuote), lambda _, to=written: AsIs(to))
            is_refused(migrated.engine(), f"adapter of {kind.__name__}")


@on("mysqldb")
def test_what_is_refused_of_mysqlclient(migrated: Database) -> None:
    """The same for character sets, which its library hears of, and for bytes that would be sent as text."""
    is_refused(with_setting(migrated, "NAMES latin1"), "charset='latin1'")
    converters = import_module("MySQLdb.converters").conversions
    plain = migrated.url.difference_update_query(["binary_prefix"])
    is_refused(migrated.engine_at(plain), "binary_prefix=False: expected True")
    for refusal, arguments in {
        "conv: it must write 1.5": {"conv": converters | {float: lambda *_: b"0"}},
        "conv: it must read type 8": {"conv": converters | {FIELD_TYPE.LONGLONG: str}},
        "use_unicode=False": {"use_unicode": False},
    }.items():
        is_refused(migrated.engine(connect_args=arguments), refusal)


@on("asyncpg")
def test_what_is_refused_of_asyncpg(migrated: Database) -> None:
    """The same for codecs, and for the encoding."""

    async def refused(setting: str, prepare: Callable[[Any], Awaitable[object]]) -> None:
        engine = create_async_engine(migrated.async_url)
        event.listen(engine.sync_engine, "connect", lambda driver, _: driver.run_async(prepare))
        with pytest.raises(UnusableConnection, match=setting):
            async with AsyncInbox("billing").transaction(engine, "a"):
                pass
        await engine.dispose()

    def coded(kind: str) -> Callable[[Any], Awaitable[object]]:
        return lambda driver: driver.set_type_codec(
            kind, schema="pg_catalog", encoder=str, decoder=str.upper, format="text"
        )

    async def work() -> None:
        for kind in ("text", "int8", "bytea", "timestamptz"):
            await refused(f"codec of {kind}", coded(kind))
        await refused(
            "client_encoding='LATIN1'", lambda driver: driver.execute("SET client_encoding = 'LATIN1'")
        )

    asyncio.run(work())


def by_option(engine: Engine, level: str) -> Engine:
    return engine.execution_options(isolation_level=level)


def by_listener(engine: Engine, level: str) -> Engine:
    @event.listens_for(engine, "engine_connect")
    def set_level(connection: Connection) -> None:
        connection.execution_options(isolation_level=level)

    return engine


def by_begin(engine: Engine, _: str) -> Engine:
    """As SQLAlchemy's manual makes transactions of SQLite begin early."""

    @event.listens_for(engine, "connect")
    def send_nothing(driver: Any, _: object) -> None:
        driver.isolation_level = None

    @event.listens_for(engine, "begin")
    def send_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


@pytest.mark.parametrize(
    ("server", "change"),
    [
        ("postgresql", by_option),
        ("postgresql", by_listener),
        ("mariadb", by_option),
        ("sqlite", by_option),
        ("sqlite", by_begin),
    ],
    indirect=["server"],
)
def test_an_engine_with_a_level_of_its_own(
    migrated: Database, change: Callable[[Engine, str], Engine]
) -> None:
    """Whatever the isolation level of the application's transactions is: a claim is stored while its handler
    runs, an end when it ends, and a relay does not wait for a publisher whose transaction is open."""
    engine, plain = change(migrated.engine(), "SERIALIZABLE"), SqlStore(migrated.engine())
    inbox = StatusInbox("orders", store=SqlStore(engine))
    with inbox.claim("a") as claim:
        claim.step("call", lambda: 1)
        with pytest.raises(MessageInFlight), StatusInbox("orders", store=plain).claim("a"):
            pass
    record = plain.find("orders", "a")
    assert record is not None
    assert record.status == "consumed"
    with engine.begin() as connection:
        Outbox().publish(connection, topic="orders", payload="1")
    if migrated.name == "sqlite":  # it has one writer
        assert Relay(engine, Recorder()).run_once() == 1
        return
    with engine.begin() as connection:
        Outbox().publish(connection, topic="orders", payload="2")
        assert Task(Relay(engine, Recorder()).run_once).result(20) == 1


def test_a_listener_that_begins_transactions(migrated: Database) -> None:
    """On an engine that tests its connections by a statement, which begins a transaction, everything works
    that opens connections of its own."""
    engine = migrated.engine()
    event.listen(engine, "engine_connect", lambda connection: connection.scalar(select(1)))
    with StatusInbox("orders", store=SqlStore(engine)).claim("a") as claim:
        claim.step("call", lambda: 1)
    with engine.connect() as connection:
        Outbox().publish(connection, topic="orders", payload="1")
        connection.commit()
    assert Relay(engine, Recorder()).run_once() == 1
    for source in (engine, sessionmaker(engine)):
        assert INBOX.handler(source, key=str)(lambda handle, key: 1)(str(source)).result == 1
        with StatusInbox("orders", store=SqlStore(engine)).claim(str(source)) as claim:
            assert claim.transact("write", lambda handle: 1, source=source) == 1
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM inbox_message").scalar_one() == 2
    assert peek(engine) == []
    assert purge(engine).finished
    assert check_inbox(engine).is_safe


def test_a_listener_that_begins_transactions_asynchronously(postgres: Database) -> None:
    """The same for an AsyncEngine."""

    async def scenario(engine: AsyncEngine) -> None:
        event.listen(engine.sync_engine, "engine_connect", lambda connection: connection.scalar(select(1)))

        async def write(*_: Any) -> int:
            return 1

        assert (await AsyncInbox("billing").handler(engine, key=str)(write)("a")).result == 1
        async with AsyncStatusInbox("orders", store=SqlStore(engine)).claim("a") as claim:
            assert await claim.transact("write", write) == 1

    asynchronously(postgres, scenario)


@pytest.mark.parametrize("setting", ["search_path = nowhere", "ROLE pg_monitor"])
def test_a_listener_that_sets_for_one_transaction(postgres: Database, setting: str) -> None:
    """The setting would end with the listener's transaction, and our statements would lead elsewhere, or have
    other rights: it is refused by name, and nothing is written."""
    engine, plain = postgres.engine(), SqlStore(postgres.engine())
    event.listen(engine, "engine_connect", lambda each: each.execute(text(f"SET LOCAL {setting}")))
    refused = pytest.raises(UnusableConnection, match="SET LOCAL")
    for source in (engine, engine.execution_options(isolation_level="SERIALIZABLE")):
        with refused, INBOX.transaction(source, "a"):
            pytest.fail("begun")
    with StatusInbox("orders", store=plain).claim("a") as claim:
        with refused:
            claim.transact("write", lambda _: pytest.fail("begun"), source=engine)
        with refused, StatusInbox("orders", store=SqlStore(engine)).claim("b"):
            pytest.fail("claimed")
    with pytest.raises(OutboxUnusableConnection, match="SET LOCAL"):
        Relay(engine, Recorder()).run_once()
    with INBOX.transaction(plain.engine, "a") as work:
        assert work.is_new


def test_another_style_of_parameters(postgres: Database) -> None:
    """An engine with positional parameters works as SQLAlchemy does."""
    engine = postgres.engine(paramstyle="format")
    with engine.begin() as connection:
        assert len(INBOX.accept_many(connection, ["a", "b"])) == 2
        assert INBOX.accept(connection, "a") is Verdict.DUPLICATE
        Outbox().publish(connection, topic="orders", payload="1", key="a")
    with INBOX.transaction(engine, "c") as work:
        work.result = 1
    assert Relay(engine, Recorder()).run_once() == 1


def test_a_signal_during_the_look_at_a_connection(postgres: Database) -> None:
    """A signal handler's exception is not taken for a dumper that is wrong."""

    class TimeLimit(Exception):
        pass

    class Interrupted(StrDumper):
        def dump(self, obj: Any) -> Any:
            raise TimeLimit

    engine = prepared(postgres, lambda driver: driver.adapters.register_dumper(str, Interrupted))
    with pytest.raises(TimeLimit), engine.begin() as connection:
        INBOX.accept(connection, "a")
    engine.dispose()


def test_another_encoding_of_the_database(postgres: Database) -> None:
    """A database whose encoding is not UTF8 is refused."""
    name = f"{postgres.url.database}_latin1"
    of_latin1 = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
    with postgres.engine(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text(of_latin1))
        engine = create_engine(postgres.url.set(database=name))
        metadata.create_all(engine)
        is_refused(engine, "server_encoding='LATIN1'")
        engine.dispose()
        connection.execute(text(f"DROP DATABASE {name}"))


@on("mariadb")
def test_what_is_refused_on_mariadb(migrated: Database) -> None:
    """The same for PyMySQL's converters, and for its older literals in a small character set."""
    for kind, convert in ((FIELD_TYPE.DATETIME, str), (FIELD_TYPE.LONGLONG, float)):
        engine = migrated.engine(connect_args={"conv": {**conversions, kind: convert}})
        is_refused(engine, f"conv: it must read type {kind}")
        engine.dispose()


@pytest.mark.parametrize("setting", ["sql_select_limit=2", "sql_safe_updates=1", "timestamp=1000000000"])
@on("mysql", "mariadb")
def test_what_the_check_refuses(migrated: Database, setting: str) -> None:
    """Settings that only the server knows are refused with the first message, and nothing is written."""
    engine = migrated.engine(connect_args={"init_command": f"SET SESSION {setting}"})
    name = setting.partition("=")[0]
    with pytest.raises(UnsafeDatabase, match=f"session: {name}"), engine.begin() as connection:
        INBOX.accept_many(connection, ["a", "b", "c"])
    status = StatusInbox("orders", store=SqlStore(engine))
    with pytest.raises(UnsafeDatabase, match=f"session: {name}"), status.claim("a"):
        pass
    with pytest.raises(OutboxUnsafeDatabase, match=f"session: {name}"):
        Relay(engine, Recorder()).run()
    with pytest.raises(OutboxUnsafeDatabase, match=f"session: {name}"), engine.begin() as connection:
        Outbox().publish(connection, topic="orders", payload="a")
    for report in (check_inbox(engine), check_outbox(engine)):
        assert "session" in {each.what for each in report.findings if each.result == "refused"}
    engine.dispose()


def test_a_hidden_count_of_rows(sqlite: Database) -> None:
    """Whether a message is new does not hang on the number of rows that the driver reports."""
    engine = prepared(sqlite, lambda driver: driver.execute("PRAGMA count_changes = 1"))
    for verdict in (Verdict.NEW, Verdict.DUPLICATE):
        with INBOX.transaction(engine, "a") as work:
            assert work.verdict is verdict


def test_what_is_refused_on_sqlite(sqlite: Database) -> None:
    """The same for the module's factories."""
    for name, factory in (("text_factory", bytes), ("row_factory", dict)):
        engine = prepared(sqlite, lambda driver, name=name, factory=factory: setattr(driver, name, factory))  # type: ignore[misc]
        with (
            pytest.raises(UnusableConnection, match=f"{name}={factory.__name__}"),
            INBOX.transaction(engine, "a"),
        ):
            pass
        engine.dispose()


def test_a_journal_that_cannot_roll_back(sqlite: Database) -> None:
    """SQLite without a journal is refused, and nothing stays, although a rollback may undo nothing."""
    engine = prepared(sqlite, lambda driver: driver.execute("PRAGMA journal_mode = OFF"))
    with pytest.raises(UnsafeDatabase, match="journal_mode=OFF"), INBOX.transaction(engine, "a"):
        pass
    with pytest.raises(UnsafeDatabase), StatusInbox("orders", store=SqlStore(engine)).claim("a"):
        pass
    with pytest.raises(OutboxUnsafeDatabase), engine.begin() as connection:
        Outbox().publish(connection, topic="orders", payload="a")
    with pytest.raises(OutboxUnsafeDatabase, match="journal_mode=OFF"):
        Relay(engine, Recorder()).run_once()
    for report in (check_inbox(engine), check_outbox(engine)):
        assert not report.is_safe
    with engine.connect() as connection:
        for table in ("inbox_message", "inbox_status", "outbox_message"):
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() == 0
    engine.dispose()


@on("mariadb")
def test_the_last_insert_id(migrated: Database) -> None:
    """Taking a message changes LAST_INSERT_ID(); the id in the result of an INSERT is right."""
    engine = migrated.engine()
    head = Table("head", MetaData(), Column("id", Integer, primary_key=True))
    head.create(engine)
    with INBOX.transaction(engine, "a"):
        pass
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE head AUTO_INCREMENT = 77"))
        added = connection.execute(insert(head))
        assert INBOX.accept(connection, "a") is Verdict.DUPLICATE
        assert connection.execute(text("SELECT LAST_INSERT_ID()")).scalar_one() == 1
        assert added.inserted_primary_key == (77,)
