"""Status-table mode."""

from enum import StrEnum
from typing import TypedDict, assert_type

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from inbox import AsyncClaim, AsyncStatusInbox, Claim, Outcome, SqlStore, StatusInbox, Verdict

engine, async_engine = create_engine("sqlite:///shop.db"), create_async_engine("sqlite+aiosqlite:///shop.db")
sessions, async_sessions = sessionmaker(engine), async_sessionmaker(async_engine)
inbox = StatusInbox("orders", store=SqlStore(engine), lease=600)
async_inbox = AsyncStatusInbox("orders", store=SqlStore(async_engine), lease=600)


class Payment(StrEnum):
    PAID = "paid"


class Parcel(TypedDict):
    number: int


def lock_stock() -> str:
    return "shelf 7"


def count_stock() -> int | None:
    return None


def list_parcels() -> list[int]:
    return [1]


def charge() -> Payment:
    return Payment.PAID


def send() -> tuple[int, int]:
    return 1, 2


def pack() -> Parcel:
    return {"number": 1}


def find_shelves() -> set[str]:
    return {"shelf 7"}


async def charge_remotely() -> dict[str, int]:
    return {"cents": 500}


async def notify() -> None: ...


async def find_shelves_remotely() -> set[str]:
    return {"shelf 7"}


def release_stock(shelf: str) -> None:
    print(shelf)


def insert_order(connection: Connection) -> int:
    return connection.execute(text("INSERT INTO orders VALUES (1)")).rowcount


def insert_in_session(session: Session) -> None:
    session.execute(text("INSERT INTO orders VALUES (1)"))


async def insert_remotely(connection: AsyncConnection) -> int:
    return (await connection.execute(text("INSERT INTO orders VALUES (1)"))).rowcount


async def insert_in_remote_session(session: AsyncSession) -> None:
    await session.execute(text("INSERT INTO orders VALUES (1)"))


# A step's result has the type that JSON gives back.

with inbox.claim("order-1", payload={"cents": 500}) as claim:
    assert_type(claim.is_new, bool)
    assert_type(claim.verdict, Verdict)
    assert_type(claim.step("lock", lock_stock, undo=release_stock), str)
    assert_type(claim.step("count", count_stock, on_unknown="halt"), int | None)
    parcels = claim.step("list", list_parcels)
    parcels.append(2)
    parcels.add(2)  # E: attr-defined, reportAttributeAccessIssue
    payment = claim.step("charge", charge)
    assert_type(payment, str)
    parcel: Parcel = claim.step("pack", pack)
    sent: list[int] = claim.step("send", send)
    claim.step("forget", lambda: None)
    claim.step("find", find_shelves)  # E: type-var, reportCallIssue
    claim.step("charge", charge_remotely)  # E: type-var, reportCallIssue
    claim.step("charge", charge, on_unknown="stop")  # E: call-overload, reportCallIssue
    assert_type(claim.transact("insert", insert_order), int)
    claim.transact("insert", insert_in_session, source=sessions)
    claim.transact("insert", insert_in_session)  # E: arg-type, reportCallIssue
    claim.transact("insert", insert_order, source=sessions)  # E: arg-type, reportCallIssue


@inbox.handler(key=lambda message: message["order_id"])
def order(claim: Claim, message: dict[str, str]) -> str:
    return claim.step("lock", lock_stock) + message["order_id"]


assert_type(order({"order_id": "order-1"}), Outcome)
assert_type(order.outcome({"order_id": "order-1"}), Outcome)
order("order-1")  # E: arg-type, reportArgumentType


@inbox.handler(key=lambda message: message["order_id"])  # E: arg-type, reportArgumentType
async def order_asynchronously(claim: Claim, message: dict[str, str]) -> None:
    print(claim, message)


@async_inbox.handler(key=lambda message: message["order_id"])
async def order_remotely(claim: AsyncClaim, message: dict[str, str]) -> dict[str, int]:
    assert_type(await claim.step("lock", lock_stock, undo=release_stock), str)
    charged = await claim.step("charge", charge_remotely)
    charged["cents"] = 0
    await claim.step("notify", notify)
    await claim.step("send", send)
    claim.step("notify", notify)  # E: unused-coroutine, reportUnusedCoroutine
    await claim.step("find", find_shelves_remotely)  # E: type-var, reportCallIssue
    assert_type(await claim.transact("insert", insert_remotely), int)
    await claim.transact("insert", insert_in_remote_session, source=async_sessions)
    await claim.transact("insert", insert_in_remote_session)  # E: arg-type, reportCallIssue
    return charged


@async_inbox.handler(key=lambda message: message["order_id"])  # E: arg-type, reportArgumentType
def order_synchronously(claim: AsyncClaim, message: dict[str, str]) -> None:
    print(claim, message)


async def main() -> None:
    assert_type(await order_remotely({"order_id": "order-1"}), Outcome)
    assert_type(await order_remotely.outcome({"order_id": "order-1"}), Outcome)
    order_remotely({"order_id": "order-1"})  # E: unused-coroutine, reportUnusedCoroutine
    async with async_inbox.claim("order-1") as claim:
        assert_type(claim, AsyncClaim)
