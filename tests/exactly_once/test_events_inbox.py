"""Monitoring of the exactly-once path: one event for each message, sent after its transaction has ended."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, func, select
from sqlalchemy.exc import TimeoutError as SQLTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from inbox import AsyncInbox, Event, EventKind, Inbox, LogEvents
from inbox.errors import InvalidOption, NotTaken, TransientError
from inbox.schema import tables
from inbox_outbox_base.calls import retry
from tests.support.database import Database
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
            inbox.accept(connection, "held")
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
    await engine.dispose()
    assert watch.heard == [
        (EventKind.RETRIED, "a", 0),
        (EventKind.TAKEN, "a", 1),
        (EventKind.DUPLICATE, "a", 1),
        (EventKind.IN_FLIGHT, "held", 1),
    ]


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
