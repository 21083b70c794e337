"""Monitoring of the exactly-once path: one event for each message, sent after its transaction has ended."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as SQLTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from inbox import AsyncInbox, Event, EventKind, Inbox, LogEvents, Verdict
from inbox.errors import InvalidOption, NotTaken, TransactionAborted, TransientError
from inbox.schema import tables
from inbox_outbox_base.calls import retry
from tests.support.database import Database
from tests.support.on_servers import each_on, on
from tests.support.status_mode.asynchronous import in_loop
from tests.support.telemetry import Telemetry, telemetry

__all__ = ["telemetry"]

LONG_AGO = datetime.now(UTC) - timedelta(days=30)
DELIVERIES: list[tuple[str, dict[str, Any], EventKind]] = [
    ("a", {"payload": "first"}, EventKind.TAKEN),
    ("a", {"payload": "first"}, EventKind.DUPLICATE),
    ("a", {"payload": "other"}, EventKind.MISMATCH),
    ("old", {"message_time": LONG_AGO}, EventKind.TOO_OLD),
    ("held", {}, EventKind.IN_FLIGHT),
]


class Watch:
    """The events received, and how many messages other transactions could see at that moment."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.heard: list[tuple[EventKind, str, int]] = []
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        with self._engine.connect() as connection:
            seen = connection.scalar(select(func.count()).select_from(tables().message))
        self.heard.append((event.kind, event.key, seen or 0))
        self.events.append(event)


def test_each_verdict_is_an_event(sqlite: Database) -> None:
    """Each delivery causes one event with consumer and key, sent after the commit or rollback, when the
    connection is free again, whether the verdict was returned or raised."""
    engine = sqlite.engine(pool_size=1, max_overflow=0, pool_timeout=10)
    for on_refusal in ("raise", "return"):
        watch = Watch(engine)
        inbox = Inbox(on_refusal, wait=0, on_refusal=on_refusal, on_event=watch)
        for key, given, _ in DELIVERIES[:-1]:
            deliver(inbox, engine, key, **given)
        with sqlite.engine().begin() as connection:
            Inbox(on_refusal).accept(connection, "held")
            deliver(inbox, engine, "held")
        rows = 1 if on_refusal == "raise" else 3
        assert watch.heard == [(kind, key, rows) for key, _, kind in DELIVERIES]
        assert {event.consumer for event in watch.events} == {on_refusal}
        assert all(event.seconds > 0 for event in watch.events)


def deliver(inbox: Inbox, engine: Engine, key: str, **given: Any) -> None:
    try:
        with inbox.transaction(engine, key, **given):
            pass
    except NotTaken:
        pass


def test_nothing_is_said_of_what_was_rolled_back(postgres: Database) -> None:
    """A message whose body fails is not reported as taken; each retry of the handler is an event with its
    error, and the last event says that the message was taken."""
    engine, failures = postgres.engine(), [TransientError("no"), ValueError("bad")]
    watch = Watch(engine)
    inbox = Inbox("billing", on_event=watch)

    @inbox.handler(engine, key=lambda key: (key, 1))
    def bill(connection: Connection, key: str) -> None:
        if failures:
            raise failures.pop(0)

    with pytest.raises(ValueError, match="bad"):
        bill("a")
    failures.append(TransientError("again"))
    bill("a")
    assert watch.heard == [
        (EventKind.RETRIED, '["a",1]', 0),
        (EventKind.RETRIED, '["a",1]', 0),
        (EventKind.TAKEN, '["a",1]', 1),
    ]
    assert [event.error for event in watch.events] == ["TransientError: no", "TransientError: again", None]
    assert [event.attempt for event in watch.events] == [1, 1, 0]


@in_loop
async def test_the_same_asynchronously(postgres: Database) -> None:
    """`AsyncInbox` sends the same events."""
    watch = Watch(postgres.engine())
    engine, inbox = create_async_engine(postgres.async_url), AsyncInbox("billing", wait=0, on_event=watch)
    failures = [TransientError("no")]

    @inbox.handler(engine, key=lambda key: key)
    async def bill(connection: AsyncConnection, key: str) -> None:
        if failures:
            raise failures.pop(0)

    await bill("a")
    await bill("a")
    async with engine.begin() as connection:
        await inbox.accept(connection, "held")
        with pytest.raises(NotTaken):
            await bill("held")
    async with AsyncSession(engine) as session:
        assert (await inbox.take(session, "held")).verdict is Verdict.DUPLICATE
        assert await inbox.accept_many(session, ["b", "c"]) == [Verdict.NEW] * 2
        await session.rollback()
    await engine.dispose()
    assert watch.heard == [
        (EventKind.RETRIED, "a", 0),
        (EventKind.TAKEN, "a", 1),
        (EventKind.DUPLICATE, "a", 1),
        (EventKind.IN_FLIGHT, "held", 1),
        (EventKind.TAKEN, "held", 2),
    ]


def test_the_callers_transaction(sqlite: Database) -> None:
    """`accept`, `take` and `accept_many` send their events after the COMMIT, when others can see the rows:
    one for each message, or for all of a batch that have the same verdict."""
    watch = Watch(sqlite.engine())
    inbox = Inbox("billing", on_event=watch, wait=0)
    with sqlite.engine().begin() as connection:
        inbox.accept(connection, "a", "first")
        inbox.take(connection, "a", "other")
        inbox.accept_many(connection, ["old", "b", "c", "b"], message_times=[LONG_AGO, *[None] * 3])
        assert not watch.heard
    with Session(sqlite.engine()) as session:
        inbox.take(session, "d").result = 1
        session.commit()
        inbox.accept(session, "e")
        with session.begin_nested():
            inbox.accept(session, "f")
        session.commit()
    assert watch.heard == [
        (EventKind.TAKEN, "a", 3),
        (EventKind.MISMATCH, "a", 3),
        (EventKind.TOO_OLD, "old", 3),
        (EventKind.TAKEN, "", 3),
        (EventKind.DUPLICATE, "b", 3),
        (EventKind.TAKEN, "d", 4),
        (EventKind.TAKEN, "e", 6),
        (EventKind.TAKEN, "f", 6),
    ]
    assert [event.count for event in watch.events] == [1, 1, 1, 2, 1, 1, 1, 1]
    assert watch.events[1].stored_digest is not None
    assert all(event.consumer == "billing" and event.seconds > 0 for event in watch.events)


def roll_back(connection: Connection) -> None:
    connection.rollback()


def close(connection: Connection) -> None:
    connection.close()


def lose_in_commit(connection: Connection) -> None:
    def fail(_: Connection) -> None:
        raise ValueError("spoilt")

    event.listen(connection, "commit", fail)
    with pytest.raises(ValueError, match="spoilt"):
        connection.commit()
    event.remove(connection, "commit", fail)
    connection.rollback()


def roll_back_as_text(connection: Connection) -> None:
    connection.exec_driver_sql("ROLLBACK AND CHAIN")  # the next transaction has begun
    Inbox("other").accept(connection, "b")
    connection.commit()


def roll_back_through_the_driver(connection: Connection) -> None:
    connection.connection.rollback()
    connection.commit()


def swallow(connection: Connection) -> None:
    with pytest.raises(DBAPIError):
        connection.exec_driver_sql("SELECT nonsense")
    with pytest.raises(TransactionAborted):  # on PostgreSQL it would be a ROLLBACK
        connection.commit()
    connection.rollback()


def end_by_ddl(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE made (id INT)")
    Inbox("other").accept(connection, "b")
    connection.commit()


ENDS = (roll_back, roll_back_as_text, close, lose_in_commit, roll_back_through_the_driver, swallow)


@each_on("postgresql", "end", ENDS, [roll_back_as_text, end_by_ddl], among=("postgresql", "mariadb"))
def test_nothing_is_said_of_a_callers_rollback(migrated: Database, end: Callable[[Connection], None]) -> None:
    """However a transaction ends, messages that it has not committed for certain cause no event, and the next
    transaction of the same connection has its own only."""
    watch = Watch(migrated.engine())
    inbox = Inbox("billing", on_event=watch)
    engine = migrated.engine()
    connection = engine.connect()
    inbox.accept(connection, "a")
    end(connection)
    if connection.closed:
        connection = engine.connect()
    with connection.begin_nested() as savepoint:
        inbox.accept(connection, "b")
        savepoint.rollback()
    inbox.accept_many(connection, ["c"])
    connection.execute(text("SET LOCAL lock_timeout = 0") if migrated.name == "postgresql" else select(1))
    connection.commit()
    connection.close()
    assert [key for _, key, _ in watch.heard] == ["c"]


@on("mariadb")
def test_a_transaction_in_two_phases(migrated: Database) -> None:
    """The events come after the second phase, and none if that is a rollback."""
    watch = Watch(migrated.engine())
    inbox = Inbox("billing", on_event=watch)
    with migrated.engine().connect() as connection:
        for key, keeps in (("a", False), ("b", True)):
            transaction = connection.begin_twophase()
            inbox.accept(connection, key)
            transaction.prepare()
            assert not watch.heard
            transaction.commit() if keeps else transaction.rollback()
    assert watch.heard == [(EventKind.TAKEN, "b", 1)]


@in_loop
async def test_retries_end_in_time(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an attempt takes as long as all retries should, only one more follows, however many are left."""
    monkeypatch.setattr(retry, "_LEAST", 0.2)
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.3}
    engine, heard = create_engine(postgres.url, **options), list[EventKind]()
    inbox = Inbox("billing", on_event=lambda event: heard.append(event.kind))
    with engine.connect(), pytest.raises(SQLTimeoutError):
        inbox.handler(engine, key=str, attempts=8)(lambda connection, key: None)("a")
    engine.dispose()
    assert heard == [EventKind.RETRIED]
    async_engine = create_async_engine(postgres.async_url, **options)
    async_inbox = AsyncInbox("billing", on_event=lambda event: heard.append(event.kind))

    @async_inbox.handler(async_engine, key=str, attempts=8)
    async def bill(connection: AsyncConnection, key: str) -> None:
        raise AssertionError("there is no connection")

    async with async_engine.connect():
        with pytest.raises(SQLTimeoutError):
            await bill("a")
    await async_engine.dispose()
    assert heard == [EventKind.RETRIED] * 2


def test_a_hook_that_fails_hurts_no_message(postgres: Database, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a hook is logged; the other hooks are still called, and the message is taken."""
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("monitoring is away")

    engine = postgres.engine()
    with Inbox("billing", on_event=[broken, heard.append]).transaction(engine, "a"):
        pass
    assert [event.kind for event in heard] == [EventKind.TAKEN]
    assert "monitoring is away" in caplog.text
    with pytest.raises(InvalidOption, match="on_event"):
        Inbox("billing", on_event=7)  # type: ignore[arg-type]


def test_both_adapters_understand_the_events(
    postgres: Database, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """`LogEvents` writes a line for each event; `OtelEvents` counts them and measures the messages taken."""
    caplog.set_level(logging.DEBUG, "inbox.messages")
    engine = postgres.engine()
    inbox = Inbox("billing", on_event=[LogEvents(), telemetry.events])
    for key, given, _ in DELIVERIES[:-1]:
        deliver(inbox, engine, key, **given)
    digests = "digest=305257bf1b736b6c8ac529f8cb1ef59a stored=1c6616224336f5d2ea1e55c74768eac0"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "'billing' key='a': taken"),
        ("DEBUG", "'billing' key='a': duplicate"),
        ("WARNING", f"'billing' key='a': mismatch {digests}"),
        ("WARNING", "'billing' key='old': too old"),
    ]
    assert telemetry.counted() == {"taken": 1, "duplicate": 1, "mismatch": 1, "too_old": 1}
    (duration,) = telemetry.points("messaging.process.duration")
    assert duration.count == 1
