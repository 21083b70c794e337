"""Invalid input is rejected with an error that names the option and the value, and never shows a password."""

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, inspect, select
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.exc import InvalidRequestError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.ext.asyncio import async_sessionmaker as async_sessions
from sqlalchemy.orm import Session, sessionmaker

from inbox import AsyncInbox, Inbox, Retention, Verdict, purge
from inbox.errors import InvalidOption, TablesMissing, UnsupportedDatabase, UnusableConnection
from inbox.schema import tables
from tests.outbox.test_async import run
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import ASYNC, SYNC, on

INBOX, ASYNC_INBOX = Inbox("bookkeeping"), AsyncInbox("bookkeeping")
SECRET = "hunter2"  # noqa: S105 - it opens nothing
ADDRESS = f"postgresql+psycopg://user:{SECRET}@127.0.0.1:1/app"

Ways = dict[str, Callable[[Engine], object]]


def _transaction(engine: Engine) -> None:
    with INBOX.transaction(engine, "a"):
        pytest.fail("ran")


def _transaction_in_session(engine: Engine) -> None:
    with INBOX.transaction(sessionmaker(engine), "a"):
        pytest.fail("ran")


def _handler(engine: Engine) -> None:
    INBOX.handler(engine, key=str)(lambda *_: pytest.fail("ran"))("a")


def _accept(engine: Engine) -> None:
    with engine.connect() as connection:
        INBOX.accept(connection, "a")


def _accept_old(engine: Engine) -> None:
    with engine.connect() as connection:
        INBOX.accept(connection, "a", message_time=datetime(2001, 1, 1, tzinfo=UTC))


def _accept_in_session(engine: Engine) -> None:
    with Session(engine) as session:
        INBOX.accept(session, "a")


def _accept_many(engine: Engine) -> None:
    with engine.connect() as connection:
        INBOX.accept_many(connection, ["a", "b"])


TAKING: Ways = {
    "transaction": _transaction,
    "transaction in a session": _transaction_in_session,
    "handler": _handler,
    "accept": _accept,
    "accept in a session": _accept_in_session,
    "accept_many": _accept_many,
}
EVERY_WAY: Ways = TAKING | {"accept an old one": _accept_old, "purge": INBOX.purge, "purge of all": purge}


class OtherDialect(SQLiteDialect_pysqlite):
    """A dialect that compiles every statement but was never tested with the inbox."""

    name = "other"
    supports_statement_cache = True


class OtherDriver(PGDialect_psycopg):
    """PostgreSQL through a driver whose transaction state the inbox cannot read."""

    driver = "other"
    supports_statement_cache = True


registry.register("other", __name__, "OtherDialect")
registry.register("postgresql.other", __name__, "OtherDriver")


def test_an_unknown_dialect_is_refused() -> None:
    """Every entry point rejects an unknown dialect; the error names it and the supported ones."""
    engine, told = create_engine("other://"), r"dialect='other'.*postgresql.*sqlite"
    for name, way in EVERY_WAY.items():
        with case(name), pytest.raises(UnsupportedDatabase, match=told) as caught:
            way(engine)
        assert isinstance(caught.value, NotImplementedError)
    engine.dispose()


def test_an_unknown_driver_is_refused(postgres: Database) -> None:
    """An unknown driver is rejected, because the commit guard has to read the driver's state."""
    engine = create_engine(postgres.url.set(drivername="postgresql+other"))
    for name, way in TAKING.items():
        with case(name), pytest.raises(UnsupportedDatabase, match="driver='other'"):
            way(engine)
    engine.dispose()


@on(*SYNC)
def test_missing_tables_name_the_command_that_makes_them(database: Database) -> None:
    """An empty database raises `TablesMissing`, with the table's name and the command that creates it."""
    told = r"^table inbox_(message|consumer) .*inbox-outbox migrate"
    for name, way in EVERY_WAY.items():
        engine = database.engine()
        with case(name), pytest.raises(TablesMissing, match=told) as caught:
            way(engine)
        assert isinstance(caught.value, LookupError)
        assert not inspect(engine).get_table_names()


def test_missing_tables_in_a_schema(postgres: Database) -> None:
    """A schema without the tables raises `TablesMissing`, even if they exist in another schema."""
    with (
        postgres.engine().connect() as connection,
        pytest.raises(TablesMissing, match=r"nowhere\.inbox_message"),
    ):
        Inbox("bookkeeping", schema="nowhere").accept(connection, "a")


def test_a_missing_business_table_is_the_callers_error(sqlite: Database) -> None:
    """Only errors about the inbox's own tables are explained; an error in the body comes through
    unchanged."""
    with (
        pytest.raises(Exception, match="no_such_table") as caught,
        INBOX.transaction(sqlite.engine(), "a") as work,
    ):
        work.connection.exec_driver_sql("SELECT * FROM no_such_table")
    assert not isinstance(caught.value, TablesMissing)


def test_a_closed_connection_is_refused(sqlite: Database) -> None:
    """A closed connection raises `UnusableConnection`, which is also SQLAlchemy's `InvalidRequestError`."""
    connection = sqlite.engine().connect()
    connection.close()
    for take in (INBOX.accept, lambda *args: INBOX.accept_many(args[0], [args[1]])):
        with pytest.raises(UnusableConnection, match="closed") as caught:
            take(connection, "a")
        assert isinstance(caught.value, InvalidRequestError)


def _by_engine_option(database: Database) -> Engine:
    return database.engine(isolation_level="AUTOCOMMIT")


def _by_execution_option(database: Database) -> Engine:
    return database.engine().execution_options(isolation_level="AUTOCOMMIT")


@on(*SYNC)
def test_autocommit_is_refused(migrated: Database) -> None:
    """AUTOCOMMIT is rejected before anything is written, because there is no transaction to join."""
    for make, (name, way) in product([_by_engine_option, _by_execution_option], TAKING.items()):
        with case((make, name)), pytest.raises(UnusableConnection, match="AUTOCOMMIT"):
            way(make(migrated))
    assert _rows(migrated) == 0


@on(*SYNC)
def test_an_autocommit_connection_is_refused(migrated: Database) -> None:
    """A connection set to AUTOCOMMIT is rejected; once it is set back, it is accepted."""
    with migrated.engine().connect() as connection:
        before = connection.get_isolation_level()
        connection.rollback()
        connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(UnusableConnection, match="AUTOCOMMIT"):
            INBOX.accept(connection, "a")
        connection.rollback()
        connection.execution_options(isolation_level=before)
        assert INBOX.accept(connection, "a") is Verdict.NEW


def _rows(database: Database) -> int:
    with database.engine().connect() as connection:
        return connection.execute(select(func.count()).select_from(tables().message)).scalar_one()


async def _accept_async(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await ASYNC_INBOX.accept(connection, "a")


async def _accept_many_async(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await ASYNC_INBOX.accept_many(connection, ["a"])


async def _transaction_async(engine: AsyncEngine) -> None:
    async with ASYNC_INBOX.transaction(engine, "a"):
        pytest.fail("ran")


async def _transaction_in_async_session(engine: AsyncEngine) -> None:
    async with ASYNC_INBOX.transaction(async_sessions(engine), "a"):
        pytest.fail("ran")


async def _purge_async(engine: AsyncEngine) -> None:
    await ASYNC_INBOX.purge(engine)


TAKING_ASYNC = [_accept_async, _accept_many_async, _transaction_async, _transaction_in_async_session]


@on(*ASYNC)
def test_asynchronous_autocommit_is_refused(migrated: Database) -> None:
    """Async: AUTOCOMMIT is rejected, whether the engine or an execution option sets it."""

    async def by_execution_option(engine: AsyncEngine) -> None:
        await way(engine.execution_options(isolation_level="AUTOCOMMIT"))

    for way in TAKING_ASYNC:
        with case(way.__name__), pytest.raises(UnusableConnection, match="AUTOCOMMIT"):
            run(migrated, way, isolation_level="AUTOCOMMIT")
        with case(way.__name__), pytest.raises(UnusableConnection, match="AUTOCOMMIT"):
            run(migrated, by_execution_option)
    assert _rows(migrated) == 0


@on(*ASYNC)
def test_asynchronous_missing_tables(database: Database) -> None:
    """Async: `TablesMissing` names the command that creates them."""
    for way in [*TAKING_ASYNC, _purge_async]:
        with case(way.__name__), pytest.raises(TablesMissing, match="inbox-outbox migrate"):
            run(database, way)


def test_an_asynchronous_closed_connection_is_refused(sqlite: Database) -> None:
    """Async: a closed connection raises `UnusableConnection`."""

    async def work(engine: AsyncEngine) -> None:
        connection = await engine.connect()
        await connection.close()
        with pytest.raises(UnusableConnection, match="closed"):
            await ASYNC_INBOX.accept(connection, "a")

    run(sqlite, work)


@pytest.fixture
def secret_engine() -> Iterator[Engine]:
    """An engine with a password, for an address where no server answers."""
    engine = create_engine(ADDRESS)
    yield engine
    engine.dispose()


def _wrong_handles(engine: Engine) -> list[Any]:
    return [engine, ADDRESS, engine.url, sessionmaker(engine), None, create_async_engine(ADDRESS)]


def test_an_invalid_connection_is_refused(secret_engine: Engine) -> None:
    """Anything but a Connection or Session (an Engine, a URL and so on) is rejected with an error that says
    what is expected and shows no password."""
    for handle in _wrong_handles(secret_engine):
        for take in (INBOX.accept, lambda *args: INBOX.accept_many(args[0], [args[1]])):
            with pytest.raises(
                InvalidOption, match=r"connection.*expected a Connection, a Session"
            ) as caught:
                take(handle, "a")
            assert SECRET not in str(caught.value)


def test_an_invalid_engine_is_refused(secret_engine: Engine) -> None:
    """`transaction` begins its own transaction, so it accepts only an Engine or a sessionmaker; the error
    shows no password."""
    for source in (ADDRESS, secret_engine.url, None, create_async_engine(ADDRESS), Session(secret_engine)):
        with (
            pytest.raises(InvalidOption, match=r"source.*expected an Engine, sessionmaker or") as caught,
            INBOX.transaction(source, "a"),  # type: ignore[call-overload]
        ):
            pytest.fail("ran")
        assert SECRET not in str(caught.value)


def test_asynchronous_code_needs_asynchronous_handles(secret_engine: Engine) -> None:
    """Async: synchronous handles and URLs are rejected; the error shows no password."""

    async def accept(handle: Any) -> None:
        await ASYNC_INBOX.accept(handle, "a")

    async def transaction(source: Any) -> None:
        async with ASYNC_INBOX.transaction(source, "a"):
            pytest.fail("ran")

    for use, name in ((accept, "connection"), (transaction, "source")):
        for given in (secret_engine, ADDRESS, sessionmaker(secret_engine), None):
            with pytest.raises(InvalidOption, match=f"{name}.*expected an Async") as caught:
                asyncio.run(use(given))
            assert SECRET not in str(caught.value)


def test_no_password_is_told(secret_engine: Engine) -> None:
    """Neither the `repr` of an inbox or handler nor the error of an unreachable server shows a password."""
    handler = Inbox("bookkeeping").handler(secret_engine, key=str, attempts=2)(lambda *_: None)
    with pytest.raises(OperationalError) as caught:
        handler("a")
    assert SECRET not in f"{caught.value!s}{caught.value!r}{INBOX!r}{ASYNC_INBOX!r}{handler!r}"


NO_TIMES = [-1, -0.1, float("nan"), float("inf"), "5", True, timedelta(seconds=-1), 1e300, timedelta.max]


@pytest.mark.parametrize("value", NO_TIMES, ids=repr)
def test_an_invalid_time_is_refused(secret_engine: Engine, value: Any) -> None:
    """An invalid wait, retention, part of a retention or budget is rejected before the database is used; the
    error names the option and the value."""
    uses: dict[str, Callable[[], object]] = {
        "wait": lambda: Inbox("bookkeeping", wait=value),
        "retention": lambda: Inbox("bookkeeping", retention=value),
        "broker": lambda: Retention(broker=value),
        "producer": lambda: Retention(producer=value),
        "network": lambda: Retention(network=value),
        "budget": lambda: INBOX.purge(secret_engine, budget=value),
    }
    for name, use in uses.items():
        with pytest.raises(InvalidOption, match=re.escape(f"{name}={value!r}: ")):
            use()


def test_times_that_are_needed() -> None:
    """Neither the wait nor a part of the retention can be None, and a wait is not longer than a day."""
    given: list[Any] = [None, timedelta(days=30)]
    for kind, value in product([Inbox, AsyncInbox], given):
        with pytest.raises(InvalidOption, match=re.escape(f"wait={value!r}: ")):
            kind("bookkeeping", wait=value)
    for name in ("broker", "producer", "network"):
        with pytest.raises(InvalidOption, match=f"{name}=None: "):
            Retention(**{name: None})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None], ids=repr)
def test_an_invalid_count_is_refused(secret_engine: Engine, value: Any) -> None:
    """An invalid `attempts` or `batch` is rejected before the database is used; the error names the option
    and the value."""
    with pytest.raises(InvalidOption, match=rf"^attempts={value!r}"):
        INBOX.handler(secret_engine, key=str, attempts=value)
    with pytest.raises(InvalidOption, match=rf"^attempts={value!r}"):
        ASYNC_INBOX.handler(create_async_engine(ADDRESS), key=str, attempts=value)
    with pytest.raises(InvalidOption, match=rf"^batch={value!r}"):
        INBOX.purge(secret_engine, batch=value)


def test_a_message_time_without_a_zone_is_refused(sqlite: Database) -> None:
    """A message time without a time zone is rejected; the error names `message_time`, and nothing is
    taken."""
    values: list[Any] = [datetime(2026, 1, 1), "2026-01-01", 0]  # noqa: DTZ001 - the mistake itself
    for value in values:
        with sqlite.engine().begin() as connection:
            with case(value), pytest.raises(InvalidOption, match=r"^message_time="):
                INBOX.accept(connection, "a", message_time=value)
            assert INBOX.accept(connection, "a") is Verdict.NEW
            connection.rollback()


def test_a_payload_that_has_no_digest_is_refused(sqlite: Database) -> None:
    """A payload that JSON cannot represent is rejected; the error names `payload`, and the transaction goes
    on."""
    with sqlite.engine().begin() as connection:
        for payload in (object(), {1, 2}, {"a": b"b"}):
            with pytest.raises(InvalidOption, match=r"^payload"):
                INBOX.accept(connection, "a", payload)
        assert INBOX.accept(connection, "a") is Verdict.NEW


@pytest.mark.parametrize("wait", [timedelta(days=1), 0.001], ids=str)
def test_every_valid_wait_works(migrated: Database, wait: Any) -> None:
    """The database can handle every `wait` that an inbox accepts, in batches too."""
    inbox = Inbox("bookkeeping", wait=wait)
    with migrated.engine().begin() as connection:
        assert inbox.accept_many(connection, ["a", "b"]) == [Verdict.NEW, Verdict.NEW]
        assert inbox.accept(connection, "a") is Verdict.DUPLICATE
