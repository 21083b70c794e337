"""Handlers of both inbox modes, synchronous and not, that write a business row for each message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
)
from sqlalchemy.engine import URL

from inbox import schema
from inbox._exactly_once.async_inbox import AsyncInbox
from inbox._exactly_once.inbox import Inbox
from inbox._status_mode.async_inbox import AsyncStatusInbox
from inbox._status_mode.inbox import StatusInbox
from inbox._status_mode.stores.sql import SqlStore
from inbox_outbox_base.checks.backoff import Backoff
from inbox_outbox_base.words.incoming import Delivery, message_id

from .script import HandlerScript

Mode = Literal["exactly once", "status"]

SOON = Backoff(first=0.05, longest=0.2)
_PAUSE = 0.01
_CONNECTIONS = 10
_TAKEN = Table(
    "suite_taken",
    MetaData(),
    Column("number", Integer, primary_key=True),
    Column("id", String(200)),
    Column("key", LargeBinary(2_000)),
    Column("payload", LargeBinary(100_000)),
)
"""Taking a message twice makes two rows."""


def engine_on(url: URL) -> Engine:
    """An engine with enough connections for all handlers."""
    return create_engine(url, pool_size=_CONNECTIONS)


def make_tables(url: URL) -> None:
    """Make the inbox's tables and the business table."""
    engine = engine_on(url)
    schema.metadata.create_all(engine)
    _TAKEN.metadata.create_all(engine)
    engine.dispose()


def taken(engine: Engine) -> list[tuple[str | None, bytes]]:
    """Key and payload of each committed row, in the order in which they were written."""
    statement = select(_TAKEN.c.key, _TAKEN.c.payload).order_by(_TAKEN.c.number)
    with engine.connect() as connection:
        return [
            (None if key is None else key.decode(errors="surrogateescape"), payload)
            for key, payload in connection.execute(statement)
        ]


def _take(connection: Connection, message: Delivery) -> None:
    key = None if message.key is None else message.key.encode(errors="surrogateescape")
    row = {"id": message.id[:200], "key": key, "payload": message.payload or b""}
    connection.execute(insert(_TAKEN).values(row))


def handler(engine: Engine, script: HandlerScript, mode: Mode) -> Callable[[Delivery], Any]:
    """A handler for threads."""

    def body(connection: Connection, message: Delivery) -> None:
        script.begin(message)
        try:
            while script.holds(message):
                time.sleep(_PAUSE)
            _take(connection, message)
        finally:
            script.end(message)

    if mode == "exactly once":
        outcome = _outcome_of(Inbox("suite").handler(engine, key=message_id, attempts=1)(body))
    else:
        inbox = StatusInbox("suite", store=SqlStore(engine), lease=60, backoff=SOON, max_attempts=3)

        @inbox.handler(key=message_id)
        def claimed(_: Any, message: Delivery) -> None:
            with engine.begin() as connection:
                body(connection, message)

        outcome = _outcome_of(claimed)

    def handle(message: Delivery) -> Any:
        script.delivered(message)
        return outcome(message)

    return handle


def async_engine_on(url: URL) -> Any:
    """The same for tasks. Needs the extra `asyncio`, and for SQLite aiosqlite."""
    from sqlalchemy.ext.asyncio import create_async_engine

    if url.get_driver_name() == "pysqlite":
        url = url.set(drivername="sqlite+aiosqlite")
    return create_async_engine(url, pool_size=_CONNECTIONS)


def async_handler(engine: Any, script: HandlerScript, mode: Mode) -> Callable[[Delivery], Any]:
    """A handler for tasks."""

    async def body(connection: Any, message: Delivery) -> None:
        script.begin(message)
        try:
            while script.holds(message):  # noqa: ASYNC110 - another thread releases it
                await asyncio.sleep(_PAUSE)
            await connection.run_sync(_take, message)
        finally:
            script.end(message)

    if mode == "exactly once":
        outcome = _outcome_of(AsyncInbox("suite").handler(engine, key=message_id, attempts=1)(body))
    else:
        inbox = AsyncStatusInbox("suite", store=SqlStore(engine), lease=60, backoff=SOON, max_attempts=3)

        @inbox.handler(key=message_id)
        async def claimed(_: Any, message: Delivery) -> None:
            async with engine.begin() as connection:
                await body(connection, message)

        outcome = _outcome_of(claimed)

    async def handle(message: Delivery) -> Any:
        script.delivered(message)
        return await outcome(message)

    return handle


def _outcome_of(decorated: Any) -> Any:
    """The function that returns an outcome for every verdict, as consumers call it."""
    return getattr(decorated, "outcome", decorated)
