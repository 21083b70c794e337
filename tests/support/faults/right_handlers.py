"""Handlers that take each message exactly once. The fault kit's processes import this file."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from inbox import AsyncInbox, Inbox, SqlStore, StatusInbox, Verdict
from inbox_outbox import faults

ENGINE = create_engine(os.environ.get("SHOP_URL", "sqlite://"))
ASYNC_ENGINE = create_async_engine(os.environ.get("SHOP_ASYNC_URL", "sqlite+aiosqlite://"))
BILL = text("INSERT INTO bill VALUES (:order, :cents)")
INBOX = Inbox("shop", wait=2)
ASYNC_INBOX = AsyncInbox("shop", wait=2)
LEASE = 0.8
STATUS = StatusInbox("shop-status", store=SqlStore(ENGINE), lease=LEASE)


def transaction(message: dict[str, Any]) -> None:
    """The inbox's block."""
    with INBOX.transaction(ENGINE, message["order"]) as work:
        if work.is_new:
            work.connection.execute(BILL, message)


@INBOX.handler(ENGINE, key=lambda message: message["order"])
def decorated(connection: Connection, message: dict[str, Any]) -> None:
    """The inbox's decorator."""
    connection.execute(BILL, message)


def steps(message: dict[str, Any]) -> None:
    """Status-table mode: a call with its idempotency key, then a transaction."""
    with STATUS.claim(message["order"]) as claim:
        if claim.is_new:
            claim.step("charge", lambda: faults.effect("charge", key=claim.step_key("charge")))
            claim.transact("bill", lambda connection: _execute(connection, message))


def _execute(connection: Connection, message: dict[str, Any]) -> None:
    connection.execute(BILL, message)


def task(function: Callable[[Session, dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """A task queue's decorator, which acknowledges late: a session for each run, and it commits at the
    end."""

    @wraps(function)
    def run(message: dict[str, Any]) -> None:
        with Session(ENGINE) as session, session.begin():
            function(session, message)

    return run


@task
def queued(session: Session, message: dict[str, Any]) -> None:
    """A task with `accept`."""
    verdict = INBOX.accept(session, message["order"])
    if verdict is Verdict.NEW:
        session.execute(BILL, message)
    elif verdict is not Verdict.DUPLICATE:
        raise RuntimeError(verdict)


async def asynchronous(message: dict[str, Any]) -> None:
    """A coroutine, with the asynchronous inbox."""
    async with ASYNC_INBOX.transaction(ASYNC_ENGINE, message["order"]) as work:
        await asyncio.sleep(0)
        if work.is_new:
            await work.connection.execute(BILL, message)


def by_hand(message: dict[str, Any]) -> None:
    """A table of one's own with a unique key, in the same transaction as the effect."""
    with suppress(IntegrityError), ENGINE.begin() as connection:
        faults.point("begun")
        connection.execute(text("INSERT INTO seen VALUES (:order)"), message)
        faults.point("claimed")
        connection.execute(BILL, message)
