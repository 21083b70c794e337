"""The exactly-once path in asynchronous code."""

import asyncio
from typing import assert_type

from sqlalchemy import text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from inbox import AsyncInbox, Outcome, Taken, Verdict


class AsyncShopSession(AsyncSession):
    """A class of sessions of one's own."""


engine = create_async_engine("sqlite+aiosqlite:///shop.db")
sessions = async_sessionmaker(engine)
own_sessions = async_sessionmaker(engine, class_=AsyncShopSession)
scoped = async_scoped_session(own_sessions, scopefunc=asyncio.current_task)
inbox = AsyncInbox("billing")


def later() -> AsyncEngine:
    return engine


@inbox.handler(engine, key=lambda message: message["order_id"])
async def bill(connection: AsyncConnection, message: dict[str, str]) -> dict[str, int]:
    await connection.execute(text("INSERT INTO invoice VALUES (:order_id)"), message)
    return {"invoice": 7}


@inbox.handler(own_sessions, key=lambda message: message["order_id"])
async def bill_in_session(session: AsyncShopSession, message: dict[str, str]) -> None:
    await session.execute(text("INSERT INTO invoice VALUES (:order_id)"), message)


@inbox.handler(scoped, key=lambda message: message["order_id"])
async def bill_in_scoped_session(session: AsyncShopSession, message: dict[str, str]) -> None:
    await session.flush()


@inbox.handler(later, key=lambda message: message["order_id"])
async def bill_later(connection: AsyncConnection, message: dict[str, str]) -> str:
    return message["order_id"]


@inbox.handler(engine, key=lambda message: message["order_id"])  # E: arg-type, reportArgumentType
def bill_synchronously(connection: AsyncConnection, message: dict[str, str]) -> None:
    print(connection, message)


@inbox.handler(engine, key=lambda message: message["order_id"])  # E: arg-type, reportArgumentType
async def bill_on_the_wrong_handle(session: AsyncSession, message: dict[str, str]) -> None:
    await session.flush()


async def main() -> None:
    assert_type(await bill({"order_id": "order-1"}), Outcome)
    bill({"order_id": "order-1"})  # E: unused-coroutine, reportUnusedCoroutine
    async with asyncio.TaskGroup() as group:
        group.create_task(bill({"order_id": "order-2"}))

    async with inbox.transaction(engine, "order-1") as work:
        assert_type(work.connection, AsyncConnection)
        work.session.add(work)  # E: attr-defined, reportAttributeAccessIssue
    async with inbox.transaction(sessions, "order-1") as in_session:
        assert_type(in_session.session, AsyncSession)
        assert_type(in_session.connection, AsyncConnection)
    async with inbox.transaction(own_sessions, "order-1") as in_own_session:
        assert_type(in_own_session.session, AsyncShopSession)
    with inbox.transaction(engine, "order-1"):  # E: attr-defined, reportGeneralTypeIssues
        pass

    async with engine.begin() as connection:
        assert_type(await inbox.accept(connection, "order-1"), Verdict)
        assert_type(await inbox.accept_many(connection, ["order-1"]), list[Verdict])
        assert_type(await inbox.take(connection, "order-1"), Taken)
        inbox.accept(connection, "order-1")  # E: unused-coroutine, reportUnusedCoroutine
    async with own_sessions.begin() as session:
        await inbox.accept(session, "order-1")
    await inbox.accept(scoped, "order-1")
    await inbox.accept(engine, "order-1")  # E: arg-type, reportArgumentType


asyncio.run(main())
