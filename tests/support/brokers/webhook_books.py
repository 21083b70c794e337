"""Handlers of each mode, synchronous or not, that add to the account that a message's payload names."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from inbox import AsyncInbox, AsyncStatusInbox, Delivery, Inbox, SqlStore, StatusInbox, message_id
from tests.support import accounts

from .consumers import SOON

Before = Callable[[Delivery], object]


def once(engine: Engine, before: Before = str) -> Any:
    """In the exactly-once path."""

    @Inbox("books").handler(engine, key=message_id, payload=_payload, attempts=1)
    def book(connection: Any, message: Delivery) -> None:
        before(message)
        accounts.add(connection, message.payload.decode())

    return book


def by_status(engine: Engine, before: Before = str) -> Any:
    """In status-table mode."""

    @StatusInbox("books", store=SqlStore(engine), backoff=SOON).handler(key=message_id, payload=_payload)
    def book(_: Any, message: Delivery) -> None:
        with engine.begin() as connection:
            before(message)
            accounts.add(connection, message.payload.decode())

    return book


def once_async(engine: AsyncEngine, before: Before = str) -> Any:
    """In the exactly-once path, asynchronous."""

    @AsyncInbox("books").handler(engine, key=message_id, payload=_payload, attempts=1)
    async def book(connection: Any, message: Delivery) -> None:
        before(message)
        await accounts.add_async(connection, message.payload.decode())

    return book


def by_status_async(engine: AsyncEngine, before: Before = str) -> Any:
    """In status-table mode, asynchronous."""
    inbox = AsyncStatusInbox("books", store=SqlStore(engine), backoff=SOON)

    @inbox.handler(key=message_id, payload=_payload)
    async def book(_: Any, message: Delivery) -> None:
        async with engine.begin() as connection:
            before(message)
            await accounts.add_async(connection, message.payload.decode())

    return book


def _payload(message: Delivery) -> bytes:
    return bytes(message.payload)
