"""An exception that a signal handler raises inside a driver's call leaves an answer unread: that connection
is never used again, so no other message pays for it."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import StatementError

from inbox import Inbox, SqlStore, StatusInbox, Verdict, purge
from inbox.errors import TransactionAborted, TransactionEnded
from inbox_outbox_base.databases.taking import Borrowed
from outbox import Outbox, Relay, pause
from tests.support import accounts
from tests.support.database import Database
from tests.support.interrupted import MOST, TimeLimit, interruptible
from tests.support.on_servers import WITH_WRITERS, each_on, on
from tests.support.outages import END_OTHERS
from tests.support.outbox_publishers import Recorder


class Forbidden(Exception):
    """What a listener of the application raises."""


INBOX = Inbox("bookkeeping")
SESSIONS = {"postgresql": "pg_backend_pid()", "mariadb": "connection_id()", "mysql": "connection_id()"}

WAITING = ("postgresql", "psycopg2", "mariadb", "mysqldb")
"""Drivers whose calls wait for a server, each in its own way."""

LOCK_WAITS = {
    "postgresql": "SHOW lock_timeout",
    "mariadb": "SELECT @@innodb_lock_wait_timeout",
    "mysql": "SELECT @@innodb_lock_wait_timeout",
    "sqlite": "PRAGMA busy_timeout",
}


def handles(engine: Engine, key: str) -> None:
    """Take a message in a transaction of the inbox's, and give it a result."""
    with INBOX.transaction(engine, key) as work:
        if work.is_new:
            accounts.add(work.connection)
            work.result = key
        assert work.result == key


def accepts(engine: Engine, key: str) -> None:
    """Take a message, and publish one, in the caller's transaction."""
    with engine.begin() as connection:
        if INBOX.accept(connection, key) is Verdict.NEW:
            accounts.add(connection)
            Outbox().publish(connection, topic="orders", payload=key)


def steps(engine: Engine, key: str) -> None:
    """Claim a message, and do one step of each kind."""
    with StatusInbox("calls", store=SqlStore(engine)).claim(key) as claim:
        if claim.is_new:
            assert claim.step("call", lambda: key) == key
            claim.transact("book", accounts.add, source=engine)


def operates(engine: Engine, key: str) -> None:
    """Publish, relay, pause and purge, each in transactions of its own."""
    with engine.begin() as connection:
        Outbox().publish(connection, topic="orders", payload=key)
    Relay(engine, Recorder()).run_once()
    pause(engine, "orders")
    purge(engine)


def lock_wait(engine: Engine, database: Database) -> object:
    """How long a connection of the pool waits for locks."""
    with engine.connect() as connection:
        return connection.exec_driver_sql(LOCK_WAITS[database.name]).scalar_one()


def at_each_answer(
    database: Database, work: Callable[[Engine, str], object], kind: type[BaseException] = TimeLimit
) -> int:
    """Interrupt the work at each answer in turn, or at every ninth one if there are many, and then handle two
    healthy messages on the only connection of the pool, which waits for locks as before. Return how many
    interruptions came through."""
    raised = 0
    with interruptible(database, kind) as (engine, interruption):
        accounts.make(database.engine())
        own_wait = lock_wait(engine, database)
        for answer in range(1, MOST, 9 if work is operates else 1):
            interruption.at(answer)
            try:
                work(engine, f"interrupted-{answer}")
            except kind:
                raised += 1
            if not interruption.is_over():
                break
            assert lock_wait(engine, database) == own_wait
            total = accounts.total(database.engine())
            for key in (f"first-{answer}", f"second-{answer}"):
                handles(engine, key)
                handles(engine, key)  # a duplicate, with its result
            assert accounts.total(database.engine()) == total + 2
        else:
            raise AssertionError("it needs more answers than expected")
    return raised


@each_on(
    "mariadb",
    "work",
    [(handles,), (accepts,), (steps,), (operates,)],
    3,
    among=(*WAITING, "sqlite"),
)
def test_no_other_message_pays(migrated: Database, work: Callable[[Engine, str], object]) -> None:
    """Wherever a call is interrupted, ours or the body's, the next messages on the same pool are taken once,
    answered with their own results, and not blamed."""
    assert at_each_answer(migrated, work) > 3


@on("mariadb", "mysql")
def test_before_a_setting_is_put_back(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's exception that comes when the code that puts a setting back has just been entered: the
    connection is discarded, so that the next user of the pool has the settings of its own."""
    engine = accounts.make(migrated.engine(pool_size=1, max_overflow=0))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    steps(engine, "a")
    own_wait, total = lock_wait(engine, migrated), accounts.total(engine)
    with monkeypatch.context() as patch:
        patch.setattr(Borrowed, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            steps(engine, "b")
    assert lock_wait(engine, migrated) == own_wait
    with engine.connect() as connection:
        accounts.add(connection)
        connection.rollback()
    assert accounts.total(engine) == total


@on(*WITH_WRITERS)
def test_a_connection_that_the_server_had_closed(migrated: Database) -> None:
    """An idle connection of the pool is gone when a setting is to be changed on it: the call goes on with
    another one."""
    engine = accounts.make(migrated.engine())
    for key in ("a", "b", "c"):
        steps(engine, key)
        with migrated.engine().connect() as connection:
            if migrated.name == "postgresql":
                connection.exec_driver_sql(END_OTHERS)
            else:
                others = "SELECT id FROM information_schema.processlist WHERE db = database()"
                for (session,) in connection.exec_driver_sql(f"{others} AND id <> connection_id()").all():
                    connection.exec_driver_sql(f"KILL {session}")
    assert accounts.total(migrated.engine()) == 3


@on("mariadb")
def test_a_keyboard_interrupt(migrated: Database) -> None:
    """The same for an exception that is no Exception."""
    assert at_each_answer(migrated, handles, KeyboardInterrupt) > 3


@on(*WITH_WRITERS)
def test_the_interrupted_message_is_delivered_again(migrated: Database) -> None:
    """An interrupted message takes effect once, whether or not its COMMIT had arrived."""
    with interruptible(migrated) as (engine, interruption):
        accounts.make(migrated.engine())
        for answer in range(1, MOST):
            interruption.at(answer)
            with suppress(TimeLimit):
                handles(engine, f"{answer}")
            if not interruption.is_over():
                break
            handles(engine, f"{answer}")
            assert accounts.total(migrated.engine()) == answer


def by_sqlalchemy(connection: Connection) -> None:
    connection.execute(text("SELECT 1"))


def by_the_driver(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.cursor().execute("UPDATE account SET total = total + 100")


@each_on("mariadb", "use", [(by_sqlalchemy,), (by_the_driver,)], 2, among=WAITING)
def test_a_body_that_is_interrupted(migrated: Database, use: Callable[[Connection], None]) -> None:
    """The same if the body calls the driver itself."""
    with interruptible(migrated) as (engine, interruption):
        accounts.make(migrated.engine())
        handles(engine, "before")
        with pytest.raises(TimeLimit), INBOX.transaction(engine, "interrupted") as work:  # noqa: PT012
            interruption.at(1)
            use(work.connection)
        for key in ("first", "second"):
            handles(engine, key)
            handles(engine, key)
    assert accounts.total(migrated.engine()) == 3


@on("mariadb", "postgresql")
def test_a_body_that_swallows_the_interruption(migrated: Database) -> None:
    """The transaction has ended with its connection: TransactionAborted, and nothing is written."""
    with interruptible(migrated) as (engine, interruption):
        accounts.make(migrated.engine())
        handles(engine, "before")
        with pytest.raises(TransactionAborted), INBOX.transaction(engine, "interrupted") as work:  # noqa: PT012
            accounts.add(work.connection, amount=100)
            interruption.at(1)
            with suppress(TimeLimit):
                by_sqlalchemy(work.connection)
        handles(engine, "interrupted")
    assert accounts.total(migrated.engine()) == 2


@on("mariadb", "postgresql")
def test_errors_before_a_statement_is_sent(migrated: Database) -> None:
    """An error that SQLAlchemy or a listener raises before anything is sent leaves the transaction open: the
    body may go on."""
    engine = accounts.make(migrated.engine())

    @event.listens_for(engine, "before_cursor_execute")
    def forbid(*call: Any) -> None:
        if "forbidden" in call[2]:
            raise Forbidden

    with INBOX.transaction(engine, "careful") as work:
        accounts.add(work.connection)
        with pytest.raises(StatementError):
            work.connection.execute(text("SELECT :missing"), {})
        with pytest.raises(Forbidden):
            work.connection.execute(text("SELECT 'forbidden'"))
    assert work.verdict is Verdict.NEW
    assert accounts.total(engine) == 1


@on("mariadb", "postgresql")
def test_a_connection_whose_transaction_was_ended(migrated: Database) -> None:
    """A connection on which TransactionEnded was raised does not return to the pool."""
    engine = migrated.engine(pool_size=1)
    own = text(f"SELECT {SESSIONS[migrated.name]}")
    with engine.connect() as connection:
        before = connection.scalar(own)
    with pytest.raises(TransactionEnded), INBOX.transaction(engine, "ended") as work:
        work.connection.exec_driver_sql("COMMIT")
    with engine.connect() as connection:
        assert connection.scalar(own) != before
