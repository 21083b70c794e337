"""Transactions in which the inbox writes nothing: the message is not new, or it is a step without a claim.
They are watched like all others, from the body's first statement on."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import sessionmaker

from inbox import Inbox, SqlStore, StatusInbox, Verdict
from inbox.errors import TransactionAborted, TransactionEnded
from tests.servers import Server
from tests.support import accounts
from tests.support.database import Database
from tests.support.deadlock import ACCOUNTS, heavier_transaction, procedure
from tests.support.on_servers import BOTH_MYSQL, each_on, on

pytestmark = pytest.mark.mysql

KEY = "transfer-1"
INBOX = Inbox("bookkeeping")
Body = Callable[[Connection], Any]


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with accounts, and an inbox that has taken the message."""
    engine = accounts.make(migrated.engine(), ACCOUNTS)
    with INBOX.transaction(engine, KEY):
        pass
    return engine


def after_a_duplicate(engine: Engine, body: Body) -> None:
    """Run a body after its message has been taken."""
    with INBOX.transaction(engine, KEY) as work:
        assert work.verdict is Verdict.DUPLICATE
        body(work.connection)


def in_a_session(engine: Engine, body: Body) -> None:
    """The same in a Session."""
    with INBOX.transaction(sessionmaker(engine), KEY) as work:
        assert work.verdict is Verdict.DUPLICATE
        body(work.session.connection())


def without_a_claim(engine: Engine, body: Body) -> None:
    """Run a body as a step of a message without a key."""
    inbox = StatusInbox("bookkeeping", store=SqlStore(engine), missing_key="run")
    with inbox.claim(None) as claim:
        claim.transact("book", body)


ALL = {"duplicate": after_a_duplicate, "session": in_a_session, "step": without_a_claim}


def nothing(_: Connection) -> None:
    """A body that sends nothing."""


def read(connection: Connection) -> None:
    """A body that begins no transaction on MariaDB and MySQL."""
    connection.execute(text("SELECT 1"))


def read_in_a_savepoint(connection: Connection) -> None:
    """A body whose savepoint would be all of the transaction on SQLite."""
    with connection.begin_nested():
        read(connection)
    read(connection)


def use_the_driver(connection: Connection) -> None:
    """A body that uses the driver's connection before anything else."""
    connection.connection.cursor().execute("UPDATE account SET total = total + 0")
    with connection.begin_nested():
        connection.connection.cursor().execute("UPDATE account SET total = total + 0")


@each_on("sqlite", "run", ALL)
def test_the_transaction_goes_on(engine: Engine, run: Callable[[Engine, Body], None]) -> None:
    """Whatever comes before the first write, what the body writes is committed."""
    for before in (nothing, read, read_in_a_savepoint, use_the_driver):

        def book(connection: Connection, before: Body = before) -> None:
            before(connection)
            accounts.add(connection)
            accounts.add(connection)

        run(engine, before)
        run(engine, book)
    assert accounts.total(engine) == 8


def sending(statement: str) -> Body:
    """Write, and send a text that ends the transaction."""

    def body(connection: Connection) -> None:
        accounts.add(connection)
        connection.execute(text(statement))

    return body


rolled_back, chained, begun_again = map(sending, ("ROLLBACK", "ROLLBACK AND CHAIN", "START TRANSACTION"))


def failed_ddl(connection: Connection) -> None:
    """DDL commits before it fails."""
    accounts.add(connection)
    with suppress(DBAPIError):
        connection.execute(text("CREATE TABLE account (id INTEGER)"))


def analyzed(connection: Connection) -> None:
    """A statement that commits and answers with rows, which have no status."""
    accounts.add(connection)
    connection.execute(text("ANALYZE TABLE account")).all()


def called(connection: Connection) -> None:
    """The very first statement commits a part and writes another."""
    connection.execute(text("CALL book_twice()"))


def rolled_back_by_the_driver(connection: Connection) -> None:
    """Roll back unseen, after a savepoint, and write."""
    accounts.add(connection)
    with connection.begin_nested():
        accounts.add(connection)
    driver = connection.connection
    driver.rollback()
    driver.cursor().execute("UPDATE account SET total = total + 1")


def refused(connection: Connection) -> None:
    """On SQLite an error may roll back."""
    accounts.add(connection)
    with suppress(IntegrityError):
        connection.execute(text("INSERT OR ROLLBACK INTO account (name, total) VALUES ('cash', 1)"))


ENDS = {
    "sqlite": [rolled_back, rolled_back_by_the_driver, refused],
    "postgresql": [rolled_back, rolled_back_by_the_driver, chained],
    "mariadb": [rolled_back, rolled_back_by_the_driver, chained, begun_again, failed_ddl, analyzed, called],
}
ENDS["mysql"] = ENDS["mariadb"]


@pytest.mark.parametrize("run", ALL.values(), ids=ALL)
@on(*ENDS)
def test_a_body_that_ends_the_transaction(
    engine: Engine, server: Server, run: Callable[[Engine, Body], None]
) -> None:
    """TransactionEnded: what the body writes after that is not committed, also in another transaction."""
    has_procedures = server.name in BOTH_MYSQL
    with procedure(engine, "book_twice", BOOK_TWICE) if has_procedures else nullcontext():
        for end in ENDS[server.name]:

            def book(connection: Connection, end: Body = end) -> None:
                end(connection)
                accounts.add(connection, amount=100)

            with pytest.raises(TransactionAborted if end is refused else TransactionEnded):
                run(engine, book)
    assert accounts.total(engine) < 100


BOOK_TWICE = """BEGIN
    UPDATE account SET total = total + 1 WHERE name = 'cash';
    COMMIT;
    UPDATE account SET total = total + 100 WHERE name = 'cash';
END"""


@on("sqlite")
def test_a_body_that_reads(engine: Engine) -> None:
    """SQLite: until it writes, it keeps neither a lock nor a snapshot, in which it could not write."""

    def read_and_book(connection: Connection) -> None:
        connection.execute(text("SELECT * FROM account")).all()
        with engine.begin() as other:
            accounts.add(other)
        accounts.add(connection)

    without_a_claim(engine, read_and_book)
    assert accounts.total(engine) == 2


@pytest.mark.parametrize("when", ["at a statement", "in a stream", "late in a stream"])
@pytest.mark.parametrize("run", ALL.values(), ids=ALL)
@on(*BOTH_MYSQL)
def test_a_swallowed_deadlock(engine: Engine, run: Callable[[Engine, Body], None], when: str) -> None:
    """It has undone the transaction: TransactionAborted, and what comes later is not committed alone."""
    if when == "late in a stream":  # after the rows that the server sends before it meets the lock
        with engine.begin() as connection:
            for number in range(500):
                accounts.open_account(connection, f"{'a' * 50} {number}")

    def meet_deadlock(connection: Connection) -> None:
        if when == "at a statement":
            accounts.add(connection, "account 1")
        else:
            rows = text("SELECT * FROM account ORDER BY name FOR UPDATE")
            connection.execute(rows, execution_options={"stream_results": True}).all()

    def swallow_deadlock(connection: Connection) -> None:
        with heavier_transaction(engine, connection), pytest.raises(OperationalError, match="1213"):
            meet_deadlock(connection)
        accounts.add(connection, amount=100)

    with pytest.raises(TransactionAborted):
        run(engine, swallow_deadlock)
    assert accounts.total(engine) == 0
