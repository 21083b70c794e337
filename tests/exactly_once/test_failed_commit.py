"""A transaction whose COMMIT failed is not committed later by the next user of its connection, whether the
caller rolled back or only closed the session."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from inbox import AsyncInbox, Inbox, SqlStore, StatusInbox, Verdict
from tests.outbox.test_async import run
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.database import Database
from tests.support.on_servers import each_on

pytestmark = pytest.mark.mysql

INBOX = Inbox("billing")
POOL_OF_ONE = {"pool_size": 1, "max_overflow": 0}


class Spoilt(Exception):
    """The error that these tests raise in COMMIT."""


def spoil_commit(engine: Engine) -> None:
    """Make the next COMMIT fail before it is sent, as a faulty listener of the application would."""
    calls = iter([True])

    @event.listens_for(engine, "commit")
    def fail(_: Connection) -> None:
        if next(calls, False):
            raise Spoilt


def in_session(engine: Engine) -> None:
    """Take the message in the caller's Session, closed without a rollback."""
    with Session(engine) as session:
        accounts.add(session)
        assert INBOX.accept(session, "a") is Verdict.NEW
        session.commit()


def in_connection(engine: Engine) -> None:
    """Take the message on the caller's Connection, closed without a rollback."""
    with engine.connect() as connection:
        accounts.add(connection)
        assert INBOX.accept_many(connection, ["a"]) == [Verdict.NEW]
        connection.commit()


def in_transaction(engine: Engine) -> None:
    """Take the message in the inbox's own transaction, with a session."""
    with INBOX.transaction(sessionmaker(engine), "a") as work:
        accounts.add(work.session)


def in_transaction_of_an_engine(engine: Engine) -> None:
    """Take the message in the inbox's own transaction, without a session."""
    with INBOX.transaction(engine, "a") as work:
        accounts.add(work.connection)


def in_session_rolled_back(engine: Engine) -> None:
    """Take the message in the caller's Session, which is rolled back: SQLAlchemy believes by then that the
    transaction has ended."""
    with Session(engine) as session:
        accounts.add(session)
        assert INBOX.accept(session, "a") is Verdict.NEW
        try:
            session.commit()
        finally:
            session.rollback()


def in_step(engine: Engine) -> None:
    """Run a step of status-table mode."""
    with StatusInbox("steps", store=SqlStore(engine), lease=60, heartbeat=False).claim("s") as claim:
        spoil_commit(engine)
        claim.transact("add", accounts.add)


def check_nothing_is_left(engine: Engine, observer: Engine) -> None:
    """The next user of the connection commits only its own writes, and the message is NEW again."""
    with engine.begin() as connection:
        assert connection.scalar(select(Account.total)) == 0
        accounts.add(connection, amount=100)
    assert accounts.total(observer) == 100
    with observer.begin() as connection:
        assert INBOX.accept(connection, "a") is Verdict.NEW


WAYS: list[Callable[[Engine], None]] = [
    in_session,
    in_connection,
    in_transaction,
    in_transaction_of_an_engine,
]


@each_on("sqlite", "way", [(way,) for way in WAYS], [(in_session,)])
def test_a_listener_fails(migrated: Database, way: Callable[[Engine], None]) -> None:
    """If a listener makes COMMIT fail, nothing is committed later: neither the business rows nor the inbox
    row."""
    accounts.make(migrated.engine())
    engine = migrated.engine(**POOL_OF_ONE)
    spoil_commit(engine)
    with pytest.raises(Spoilt):
        way(engine)
    check_nothing_is_left(engine, migrated.engine())


@each_on(
    "sqlite",
    "way,reset",
    product([*WAYS, in_session_rolled_back, in_step], ["commit", None]),
    [(in_session, "commit")],
)
def test_a_pool_that_does_not_roll_back(
    migrated: Database, way: Callable[[Engine], None], reset: str | None
) -> None:
    """Nothing is committed later even if the pool commits returned connections, or leaves them as they
    are."""
    accounts.make(migrated.engine())
    engine = migrated.engine(**POOL_OF_ONE, pool_reset_on_return=reset)
    if way is not in_step:
        spoil_commit(engine)
    with pytest.raises(Spoilt):
        way(engine)
    check_nothing_is_left(engine, migrated.engine())


@pytest.mark.parametrize("way", WAYS)
def test_sqlite_is_busy(sqlite: Database, way: Callable[[Engine], None]) -> None:
    """Nothing is committed later if SQLite's COMMIT fails because of a reader, which leaves the transaction
    open."""
    accounts.make(sqlite.engine())
    engine = sqlite.engine(connect_args={"timeout": 0.1}, **POOL_OF_ONE)
    with sqlite.engine().connect() as reader:
        reader.exec_driver_sql("BEGIN")
        reader.execute(text("SELECT * FROM account")).all()
        with pytest.raises(OperationalError):
            way(engine)
    check_nothing_is_left(engine, sqlite.engine())


def test_async(migrated: Database) -> None:
    """An AsyncSession and an AsyncConnection behave the same: nothing is committed later."""
    accounts.make(migrated.engine())
    inbox = AsyncInbox("billing")

    async def fail(handle: Any) -> None:
        async with handle:
            await accounts.add_async(handle)
            assert await inbox.accept(handle, "a") is Verdict.NEW
            await handle.commit()

    async def work(engine: AsyncEngine) -> None:
        for new_handle in (engine.connect, lambda: AsyncSession(engine)):
            spoil_commit(engine.sync_engine)
            with pytest.raises(Spoilt):
                await fail(new_handle())
            async with engine.begin() as connection:
                assert await connection.scalar(select(Account.total)) == 0

    run(migrated, work, **POOL_OF_ONE)
    with migrated.engine().begin() as connection:
        assert INBOX.accept(connection, "a") is Verdict.NEW
