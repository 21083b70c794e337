"""A failed commit leaves nothing behind, even if its session is closed without a rollback."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import Outbox
from outbox._waking import in_process
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on, spread
from tests.support.published import TOPIC, texts
from tests.support.together import wait_until_blocked

pytestmark = pytest.mark.mysql

OUTBOX = Outbox()
POOL_OF_ONE = {"pool_size": 1, "max_overflow": 0}
SOON: dict[str, dict[str, Any]] = {
    "postgresql": {"options": "-c lock_timeout=100"},
    "mysql": {"init_command": "SET SESSION innodb_lock_wait_timeout = 1"},
    "sqlite": {"timeout": 0.1},
}
"""Connection options with which a wait for a lock takes at most a second."""


class Spoilt(Exception):
    """The error raised in these tests."""


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with a business table and an outbox, and a pool of one connection."""
    accounts.make(migrated.engine())
    return migrated.engine(**POOL_OF_ONE)


def spoil_insert(engine: Engine, error: type[BaseException] = Spoilt) -> None:
    """Make the INSERT of messages fail."""

    @event.listens_for(engine, "before_cursor_execute")
    def fail(_: object, __: object, statement: str, *___: object) -> None:
        if "INSERT INTO outbox_message" in statement:
            raise error


def work(session: Session) -> None:
    """Write a business row and publish its message."""
    accounts.add(session)
    OUTBOX.publish(session, TOPIC, "never", key="k")


def check_nothing_is_left(engine: Engine, observer: Engine) -> None:
    """Check that the next user of the connection is not affected, and commits only its own changes."""
    with engine.begin() as connection:
        assert connection.scalar(select(Account.total)) == 0
        accounts.add(connection, amount=100)
    assert accounts.total(observer) == 100
    assert texts(observer) == []


def in_session(engine: Engine) -> AbstractContextManager[Session]:
    return Session(engine)


@contextmanager
def rolling_back(engine: Engine) -> Iterator[Session]:
    """A session that is rolled back explicitly and used again."""
    with Session(engine) as session:
        try:
            yield session
        except BaseException:
            session.rollback()
            session.commit()
            raise


Open = Callable[[Engine], AbstractContextManager[Session]]


def commit_in(open_session: Open, engine: Engine) -> None:
    """Write a business row and its message, and commit them in a new session."""
    with open_session(engine) as session:
        work(session)
        session.commit()


@spread(
    "open_session, error",
    [
        (in_session, Spoilt),
        (in_session, KeyboardInterrupt),
        (rolling_back, Spoilt),
    ],
)
def test_messages_cannot_be_written(
    migrated: Database, engine: Engine, open_session: Open, error: type[BaseException]
) -> None:
    """If the messages cannot be written, the business rows are not committed, neither now nor by the next
    user of the connection."""
    spoil_insert(engine, error)
    with pytest.raises(error):
        commit_in(open_session, engine)
    check_nothing_is_left(engine, migrated.engine())


@spread("moment", ["first", "last"])
def test_a_listener_of_the_application_fails(migrated: Database, engine: Engine, moment: str) -> None:
    """The same if a listener of the application raises, before or after the messages are written."""
    calls = iter([True])

    def fail(_: Connection) -> None:
        if next(calls, False):
            raise Spoilt

    with Session(engine) as session:
        work(session)
        event.listen(engine, "commit", fail, insert=moment == "first")
        with pytest.raises(Spoilt):
            session.commit()
    check_nothing_is_left(engine, migrated.engine())


@contextmanager
def locked(migrated: Database) -> Iterator[None]:
    """A COMMIT of messages has to wait: the table is locked, or on SQLite another transaction is reading."""
    kind = migrated.url.get_backend_name()
    with migrated.engine().connect() as connection:
        if kind == "postgresql":
            connection.execute(text("LOCK TABLE outbox_message"))
        elif kind == "mysql":
            connection.execute(text("SELECT * FROM outbox_message FOR UPDATE"))
        else:
            connection.exec_driver_sql("BEGIN")
            connection.exec_driver_sql("SELECT * FROM outbox_message").all()
        yield


def test_a_lock_is_not_had_in_time(migrated: Database) -> None:
    """The same if the wait for a lock times out: in the INSERT, or on SQLite in the COMMIT."""
    accounts.make(migrated.engine())
    soon = migrated.engine(connect_args=SOON[migrated.url.get_backend_name()], **POOL_OF_ONE)
    with locked(migrated), pytest.raises(OperationalError):
        commit_in(in_session, soon)
    check_nothing_is_left(soon, migrated.engine())


@on("sqlite")
def test_a_pool_that_was_renewed(migrated: Database, engine: Engine) -> None:
    """The same with the new pool of an engine that was disposed of."""
    with Session(engine) as session:
        OUTBOX.publish(session, TOPIC, "first")
        session.rollback()
    engine.dispose()
    test_messages_cannot_be_written(migrated, engine, in_session, Spoilt)


@on("sqlite")
def test_the_wake_up_fails(migrated: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit does not fail if relays cannot be woken, for example because the process cannot start a
    thread."""

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with relay_woken_by(engine, fail), monkeypatch.context() as patch:
        publish(engine)
        in_process.unregister((engine.url, None), fail)
        patch.setattr(threading.Thread, "start", fail)
        publish(engine)
    assert texts(migrated.engine()) == ["told", "told"]


@on("sqlite")
def test_a_wake_up_that_is_interrupted(migrated: Database, engine: Engine) -> None:
    """Ctrl-C while relays are being woken rolls the transaction back."""

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with relay_woken_by(engine, interrupt), pytest.raises(KeyboardInterrupt):
        commit_in(in_session, engine)
    check_nothing_is_left(engine, migrated.engine())


def publish(engine: Engine) -> None:
    """Commit a message that has to be sent."""
    with Session(engine) as session:
        OUTBOX.publish(session, TOPIC, "told")
        session.commit()


@contextmanager
def relay_woken_by(engine: Engine, wake: in_process.Wake) -> Iterator[None]:
    """Register a relay of this process that each commit wakes."""
    in_process.register((engine.url, None), wake)
    try:
        yield
    finally:
        in_process.unregister((engine.url, None), wake)


def run_async(database: Database, failing: Callable[[AsyncEngine], Any], **options: Any) -> None:
    """Run something that fails, and check what is left."""
    accounts.make(database.engine())

    async def main() -> None:
        engine = create_async_engine(database.async_url, **POOL_OF_ONE, **options)
        try:
            async with asyncio.timeout(60):
                await failing(engine)
                async with engine.begin() as connection:
                    assert await connection.scalar(select(Account.total)) == 0
                    await accounts.add_async(connection, amount=100)
        finally:
            await engine.dispose()

    asyncio.run(main())
    assert accounts.total(database.engine()) == 100
    assert texts(database.engine()) == []


async def commit_async(engine: AsyncEngine) -> None:
    """Write a business row and its message, and commit them in a new AsyncSession."""
    async with AsyncSession(engine) as session:
        await accounts.add_async(session)
        await OUTBOX.publish(session, TOPIC, "never", key="k")
        await session.commit()


@spread("error", [Spoilt, asyncio.CancelledError])
def test_messages_cannot_be_written_async(migrated: Database, error: type[BaseException]) -> None:
    """If an AsyncSession cannot write its messages, the business rows are not committed either."""

    async def fail(engine: AsyncEngine) -> None:
        spoil_insert(engine.sync_engine, error)
        with pytest.raises(error):
            await commit_async(engine)

    run_async(migrated, fail)


@on(*WITH_WRITERS)
def test_a_task_is_cancelled_while_it_commits(migrated: Database) -> None:
    """The same if the task is cancelled while the database executes the INSERT of the message."""

    async def fail(engine: AsyncEngine) -> None:
        task = asyncio.create_task(commit_async(engine))
        with locked(migrated):
            await asyncio.to_thread(wait_until_blocked, migrated.engine())
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert task.cancelled()

    run_async(migrated, fail)
