"""Inbox and outbox together: what a handler publishes is sent once, however often its message is
delivered."""

import threading
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, text
from sqlalchemy.orm import Session, sessionmaker

from inbox import Action, Inbox, SqlStore, StatusInbox, Verdict, Work
from inbox.errors import TransactionAborted
from outbox import Outbox
from outbox.schema import tables
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on, spread
from tests.support.published import TOPIC, Handle, texts
from tests.support.together import together

INBOX, OUTBOX = Inbox("bookkeeping"), Outbox()


def itself(engine: Engine) -> Engine:
    return engine


SOURCES = [itself, sessionmaker]
every_source = pytest.mark.parametrize("make", SOURCES)


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with two accounts beside the outbox."""
    return accounts.make(migrated.engine(), ["cash", "bank"])


def handle_of(work: Work[Connection, Session], make: Any) -> Handle:
    """The Session or Connection of the transaction."""
    return work.session if make is sessionmaker else work.connection


def told(number: int) -> str:
    """The message that a handler publishes."""
    return f"booked {number}"


@spread("make", SOURCES)
def test_a_duplicate_s_message_is_not_sent_again(engine: Engine, make: Any) -> None:
    """A handler publishes in the transaction of `inbox.transaction`: a duplicate publishes nothing."""
    for _ in range(3):
        with INBOX.transaction(make(engine), "transfer-1") as work:
            if work.is_new:
                handle = handle_of(work, make)
                accounts.add(handle)
                OUTBOX.publish(handle, TOPIC, told(1))
    assert accounts.total(engine) == 1
    assert texts(engine) == [told(1)]


@on("sqlite")
@every_source
def test_a_handler_that_raises_publishes_nothing(engine: Engine, make: Any) -> None:
    """When a handler raises, nothing is sent; the message is delivered again, and what it publishes then is
    sent once."""
    failures = [ZeroDivisionError()]

    @INBOX.handler(make(engine), key=str)
    def book(handle: Any, number: int) -> None:
        OUTBOX.publish(handle, TOPIC, told(number))
        accounts.add(handle)
        if failures:
            raise failures.pop()

    with pytest.raises(ZeroDivisionError):
        book(1)
    assert texts(engine) == []
    assert [book(1).verdict, book(1).verdict] == [Verdict.NEW, Verdict.DUPLICATE]
    assert texts(engine) == [told(1)]
    assert accounts.total(engine) == 1


@pytest.mark.quick("postgresql")
@on("postgresql", "mariadb", "sqlite")
@every_source
@pytest.mark.parametrize("way", ["transaction", "step"])
@pytest.mark.parametrize("fails", [False, True])
def test_texts_before_and_after_publishing(engine: Engine, make: Any, way: str, *, fails: bool) -> None:
    """What might end the transaction, but does not, changes nothing, wherever it stands: the inbox and the
    outbox have one mark for it."""

    def book(handle: Any) -> None:
        for _ in range(2):
            connection = handle.connection() if isinstance(handle, Session) else handle
            connection.connection.cursor().execute("SELECT 1")
            OUTBOX.publish(handle, TOPIC, told(1))
        accounts.add(handle)
        if fails:
            raise ZeroDivisionError

    def deliver() -> None:
        if way == "step":
            with StatusInbox("orders", store=SqlStore(engine)).claim("order-1") as claim:
                claim.transact("book", book, source=make(engine))
        else:
            with INBOX.transaction(make(engine), "transfer-1") as work:
                book(handle_of(work, make))

    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        deliver()
    assert texts(engine) == [told(1)] * (0 if fails else 2)
    assert accounts.total(engine) == (not fails)


@on("mariadb")
def test_looking_at_the_driver_while_rows_are_read(engine: Engine) -> None:
    """A handler reads all rows of a stream, although something looks at the driver's connection meanwhile."""
    with INBOX.transaction(engine, "transfer-1") as work:
        connection = work.connection
        pairs = "SELECT a.name FROM account a, account b"
        rows = iter(
            connection.execute(text(pairs), execution_options={"stream_results": True, "yield_per": 1})
        )
        next(rows)
        assert connection.connection is not None
        assert sum(1 for _ in rows) == 3
        accounts.add(connection)
    assert accounts.total(engine) == 1


@on("postgresql")  # on the others an error undoes only its statement
@every_source
def test_a_swallowed_error_of_the_database_publishes_nothing(engine: Engine, make: Any) -> None:
    """If the handler swallows an error that has aborted the transaction, nothing is written, and
    `TransactionAborted` is raised."""

    def swallow() -> None:
        with INBOX.transaction(make(engine), "transfer-1") as work:
            OUTBOX.publish(handle_of(work, make), TOPIC, "never")
            with pytest.raises(Exception, match="no_such_table"):
                work.connection.exec_driver_sql("SELECT * FROM no_such_table")

    with pytest.raises(TransactionAborted):
        swallow()
    assert texts(engine) == []


@on("sqlite")
@pytest.mark.parametrize("buckets", [None, 63])
def test_the_number_of_buckets_is_no_fault_of_the_message(engine: Engine, buckets: int | None) -> None:
    """A message waits for the number of buckets to be put right."""
    if buckets is None:
        with engine.begin() as connection:
            connection.execute(delete(tables().bucket))

    @INBOX.handler(engine, key=str)
    def book(connection: Connection, message: str) -> None:
        Outbox(buckets=buckets).publish(connection, TOPIC, message)

    (decision,) = INBOX.listener().decide(["transfer-1"], book)
    assert decision.action is Action.RETRY
    assert decision.outcome is not None
    assert not decision.outcome.is_failure


@spread("make", SOURCES, where=WITH_WRITERS)
def test_handlers_that_deadlock_publish_once(engine: Engine, make: Any) -> None:
    """When two transactions deadlock, `handler` retries the one that was aborted, and its message is sent
    once."""
    both_hold_one = threading.Barrier(2, timeout=30)
    tried: Counter[int] = Counter()

    @INBOX.handler(make(engine), key=str)
    def book(handle: Connection | Session, number: int) -> None:
        tried[number] += 1
        OUTBOX.publish(handle, TOPIC, told(number))
        first, second = ("cash", "bank") if number else ("bank", "cash")
        accounts.add(handle, first)
        if tried[number] == 1:
            both_hold_one.wait()
        accounts.add(handle, second)

    together([lambda: book(0), lambda: book(1)])
    assert tried.total() == 3
    assert accounts.totals(engine) == {"cash": 2, "bank": 2}
    assert sorted(texts(engine)) == [told(0), told(1)]


@on("sqlite")
@every_source
def test_steps_of_status_table_mode_publish_once(engine: Engine, make: Any) -> None:
    """A `transact` step publishes in its own transaction: a retry of the handler does not repeat it, and a
    step that fails publishes nothing."""
    inbox = StatusInbox("orders", store=SqlStore(engine))
    failures = [ZeroDivisionError("in the step"), ZeroDivisionError("after the step")]

    def reserve(handle: Connection | Session) -> str:
        accounts.add(handle)
        OUTBOX.publish(handle, TOPIC, "reserved")
        if len(failures) == 2:
            raise failures.pop(0)
        return "done"

    def handle_order() -> Any:
        with inbox.claim("order-1") as claim:
            if claim.is_new:
                claim.result = claim.transact("reserve", reserve, source=make(engine))
                if failures:
                    raise failures.pop()
        return claim.result

    for message in ("in the step", "after the step"):
        with pytest.raises(ZeroDivisionError, match=message):
            handle_order()
    assert [handle_order(), handle_order()] == ["done", "done"]
    assert accounts.total(engine) == 1
    assert texts(engine) == ["reserved"]
