"""Databases for tests: rolled back, or emptied, after each."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from inbox import Inbox, SqlStore, Verdict
from inbox.errors import InvalidOption, TransactionAborted, TransactionEnded
from inbox.schema import tables
from inbox_outbox.testing import (
    EscapesRollback,
    RecordingPublisher,
    RolledBack,
    database,
    emptied,
    published,
    rolled_back,
)
from outbox import Outbox, Relay
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.program import ROOT
from tests.support.status_mode.asynchronous import in_loop

INVOICES = MetaData()
INVOICE = Table("invoice", INVOICES, Column("id", Integer, primary_key=True), Column("cents", Integer))
TABLES = tables()
everywhere = on("sqlite", "postgresql", "mariadb")


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with our tables, and one of the reader's."""
    engine = migrated.engine()
    INVOICES.create_all(engine)
    return engine


def rows(connection: Connection, *counted: Table) -> list[int]:
    """How many rows the tables have."""
    return [connection.execute(select(func.count()).select_from(each)).scalar_one() for each in counted]


def bill(test: RolledBack, body: Callable[[Session], object] = lambda _: None) -> list[Verdict]:
    """A handler that writes an invoice and publishes gets the same message twice."""
    inbox, outbox = Inbox("billing"), Outbox()

    @inbox.handler(test.sessions, key=lambda message: str(message["order"]))
    def handle(session: Session, message: dict[str, int]) -> None:
        session.execute(insert(INVOICE).values(cents=message["order"]))
        outbox.publish(session, "invoices", message, key="order", headers={"by": "test"})
        body(session)

    return [handle({"order": 1}).verdict for _ in range(2)]


@everywhere
def test_a_rolled_back_test_leaves_nothing(engine: Engine) -> None:
    """Handlers and publishing work in it, with Sessions and on the Connection, and find their own messages;
    after each test nothing is left, of ours or theirs."""
    for _ in range(2):
        with rolled_back(engine) as test:
            assert bill(test) == [Verdict.NEW, Verdict.DUPLICATE]
            Outbox().publish(test.connection, "others", b"1")
            assert [each.topic for each in published(test.connection)] == ["invoices", "others"]
            assert rows(test.connection, INVOICE, TABLES.message) == [1, 1]
    with engine.connect() as connection:
        assert rows(connection, INVOICE, TABLES.message, TABLES.consumer, TABLES.outbox.message) == [0] * 4


@everywhere
def test_the_guard_of_the_commit_works_in_it(engine: Engine) -> None:
    """A handler that ends its transaction itself is found there, too, and leaves nothing."""
    with rolled_back(engine) as test:
        with pytest.raises(TransactionEnded):
            bill(test, Session.rollback)
        assert rows(test.connection, INVOICE) == [0]
        assert published(test.connection) == []


@on("postgresql")
def test_a_swallowed_error_is_found_in_it(engine: Engine) -> None:
    """So is a transaction that an error has aborted; the next message of the test is taken."""

    def swallow(session: Session) -> None:
        with suppress(DBAPIError):
            session.execute(text("SELECT 1 / 0"))

    with rolled_back(engine) as test:
        with pytest.raises(TransactionAborted):
            bill(test, swallow)
        assert bill(test) == [Verdict.NEW, Verdict.DUPLICATE]


def escape(engine: Engine, how: Callable[[Connection], object]) -> None:
    """Code under test ends the transaction, with or without an error, and goes on."""
    with rolled_back(engine) as test:
        test.connection.execute(insert(INVOICE).values(cents=1))
        with suppress(EscapesRollback):
            how(test.connection)
        if not test.connection.closed:
            with suppress(InvalidRequestError):
                test.connection.execute(insert(INVOICE).values(cents=1))


@everywhere
def test_what_escapes_a_rollback_is_refused_by_name(engine: Engine) -> None:
    """Code that commits or rolls back the test's connection, ends its transaction by SQL, or wants an engine
    gets `EscapesRollback`. A COMMIT that it has asked for is not carried out."""
    for how in (Connection.commit, Connection.rollback, Connection.close):
        with pytest.raises(EscapesRollback, match="emptied"):
            escape(engine, how)
        with engine.connect() as connection:
            assert rows(connection, INVOICE) == [0]
    with pytest.raises(EscapesRollback, match="emptied"):
        escape(engine, lambda connection: connection.exec_driver_sql("COMMIT"))
    with pytest.raises(EscapesRollback, match="SqlStore"), rolled_back(engine) as test:
        SqlStore(test.engine)
    with pytest.raises(InvalidRequestError), rolled_back(engine) as test:
        test.connection.execution_options(isolation_level="AUTOCOMMIT")


@everywhere
def test_an_emptied_database_is_as_before(engine: Engine) -> None:
    """A relay sends what was committed, with its own connections; afterwards every table is empty, an inbox
    stores its settings again, and new messages are sent: their numbers go on."""
    for _ in range(2):
        with emptied(engine, metadata=INVOICES):
            publisher = RecordingPublisher()
            with engine.begin() as connection:
                Outbox().publish(connection, "invoices", b"1", key="order")
                connection.execute(insert(INVOICE).values(cents=1))
            for key in ("1", "2"):
                with engine.begin() as connection:
                    assert Inbox("billing").accept(connection, key) is Verdict.NEW
                    assert rows(connection, TABLES.consumer) == [1]
            Relay(engine, publisher).run_once()
            assert [each.payload for each in publisher.accepted] == [b"1"]
            with engine.begin() as connection:  # a relay that has died
                connection.execute(update(TABLES.outbox.bucket).values(epoch=12_345))
        with engine.connect() as connection:
            everything = [*TABLES.message.metadata.sorted_tables, INVOICE]
            left = dict(zip((each.name for each in everything), rows(connection, *everything), strict=True))
        assert {name: number for name, number in left.items() if number} == {
            "outbox_bucket": 64,
            "inbox_outbox_version": 1,
        }


@on("sqlite")
def test_a_database_in_use_is_not_emptied(engine: Engine) -> None:
    """A database that has rows before the test is refused, with the table's name, and keeps them."""
    with engine.begin() as connection:
        connection.execute(insert(INVOICE).values(cents=1))
    with pytest.raises(InvalidOption, match="table invoice has rows"), emptied(engine, metadata=INVOICES):
        raise AssertionError
    url = engine.url
    with pytest.raises(InvalidOption, match="table invoice has rows"), database(url, metadata=INVOICES):
        raise AssertionError
    with engine.connect() as connection:
        assert rows(connection, INVOICE) == [1]


def test_the_database_is_the_users_choice(tmp_path: Path) -> None:
    """Without a URL it is a temporary file, which is gone afterwards; a URL that is none is refused."""
    with database(metadata=INVOICES) as engine, engine.connect() as connection:
        assert rows(connection, INVOICE, TABLES.outbox.bucket) == [0, 64]
        assert Path(str(engine.url.database)).exists()
    assert not Path(str(engine.url.database)).parent.exists()
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    with database(url):
        pass
    assert (tmp_path / "mine.db").exists()
    with pytest.raises(InvalidOption, match="url: expected something like"), database("nonsense"):
        raise AssertionError


@on("postgresql")
@in_loop
async def test_an_async_session_reads_what_was_published(migrated: Database) -> None:
    """`published` runs by `run_sync`; without it, the error says so."""
    engine = migrated.async_engine()
    async with AsyncSession(engine) as session:
        await Outbox().publish(session, "orders", {"n": 1}, delay=60)
        await session.commit()
        [found] = await session.run_sync(published, topic="orders")
        assert found.json() == {"n": 1}
        assert found.available_at is not None
        with pytest.raises(InvalidOption, match="run_sync"):
            published(session)  # type: ignore[arg-type]
    await engine.dispose()


CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def inbox_outbox_metadata():
    from sqlalchemy import Column, Integer, MetaData, Table

    metadata = MetaData()
    Table("invoice", metadata, Column("id", Integer, primary_key=True))
    return metadata
"""
TESTS = """
import sys
import pytest

def test_loading_imports_nothing():
    assert not {"inbox", "outbox", "sqlalchemy"} & set(sys.modules)

@pytest.mark.parametrize("time", [1, 2])
def test_rolled_back(rolled_back, time):
    rolled_back.connection.exec_driver_sql("INSERT INTO invoice VALUES (1)")

@pytest.mark.parametrize("time", [1, 2])
def test_emptied(emptied_engine, time):
    with emptied_engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO invoice VALUES (1)")
"""


def test_the_plugin(tmp_path: Path) -> None:
    """A project's own tests have the fixtures, which give the same database to each of them, without the rows
    of another; loading the plugin imports nothing of ours."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    plugin = ["-p", "inbox_outbox._pytest_plugin", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "5 passed" in done.stdout, done.stdout
