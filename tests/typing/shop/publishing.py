"""The outbox: publishing, a publisher of one's own, and relays."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from typing import assert_type

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from inbox import AsyncInbox, AsyncStatusInbox, Claim, Delivery, Inbox, SqlStore, StatusInbox, message_key
from inbox import Outcome as InboxOutcome
from outbox import (
    Accepted,
    AsyncDirectDelivery,
    AsyncRelay,
    DirectDelivery,
    Envelope,
    Message,
    Outbox,
    Outcome,
    Refused,
    Relay,
    Router,
    Unavailable,
)
from outbox.kafka import KafkaPublisher
from outbox.rabbitmq import AsyncRabbitPublisher, RabbitPublisher

engine, async_engine = create_engine("sqlite:///shop.db"), create_async_engine("sqlite+aiosqlite:///shop.db")
sessions, async_sessions = sessionmaker(engine), async_sessionmaker(async_engine)
outbox = Outbox(on_repeat="raise", cloudevents="/shop")

with engine.begin() as connection:
    assert_type(outbox.publish(connection, topic="orders", payload={"order": 42}, key="order-42"), str)
    outbox.publish(connection, "orders", b"42", delay=timedelta(seconds=5), headers={"kind": "order"})
    assert_type(outbox.publish_many(connection, [Message("orders", {"order": 42})]), list[str])
    outbox.publish(connection, payload={"order": 42})  # E: call-overload, reportCallIssue
    outbox.publish(connection, "orders", 42, headers={"number": 42})  # E: dict-item, reportCallIssue
with sessions.begin() as session:
    assert_type(outbox.publish(session, "orders", {"order": 42}), str)
outbox.publish(scoped_session(sessions), "orders", {"order": 42})
outbox.publish(engine, "orders", {"order": 42})  # E: call-overload, reportCallIssue


async def publish() -> None:
    async with async_engine.begin() as connection:
        assert_type(await outbox.publish(connection, "orders", {"order": 42}), str)
        assert_type(await outbox.publish_many(connection, [Message("orders", 42)]), list[str])
        outbox.publish(connection, "orders", {"order": 42})  # E: unused-coroutine, reportUnusedCoroutine
    async with async_sessions.begin() as session:
        assert_type(await outbox.publish(session, "orders", {"order": 42}), str)
        outbox.publish(session, "orders", {"order": 42})  # E: unused-coroutine, reportUnusedCoroutine
        outbox.publish_many(session, [])  # E: unused-coroutine, reportUnusedCoroutine
    scoped: async_scoped_session[AsyncSession] = async_scoped_session(async_sessions, asyncio.current_task)
    await outbox.publish(scoped, "orders", {"order": 42})


def in_a_session(session: Session) -> None:
    outbox.publish(session, "orders", {"order": 42})


class Printer:
    """A publisher of one's own."""

    ordered = True

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        return [Accepted() if each.key else Refused("no key") for each in batch]


class Pairs:
    """One that answers as the answers come."""

    def send(self, batch: Sequence[Envelope]) -> Iterator[tuple[int, Outcome]]:
        yield from ((place, Unavailable("later")) for place, _ in enumerate(batch))


class AsyncPrinter:
    """An asynchronous one."""

    async def send(self, batch: Sequence[Envelope]) -> list[Accepted]:
        return [Accepted() for _ in batch]


class AsyncPairs:
    """An asynchronous one that answers as the answers come."""

    async def send(self, batch: Sequence[Envelope]) -> AsyncIterator[tuple[int, Outcome]]:
        for place, _ in enumerate(batch):
            yield place, Accepted()


class Silent:
    """Not one: it does not say what became of the messages."""

    def send(self, batch: Sequence[Envelope]) -> None:
        print(batch)


assert_type(Relay(engine, Printer()).run_once(), int)
Relay(engine, Pairs(), keep_sent=timedelta(days=1)).run()
Relay(engine, Router({"orders": RabbitPublisher("amqp://localhost"), "*": [KafkaPublisher({})]}))
Relay(engine, Silent())  # E: arg-type, reportArgumentType
Relay(engine, AsyncPrinter())  # E: arg-type, reportArgumentType
Relay(async_engine, Printer())  # E: arg-type, reportArgumentType
AsyncRelay(async_engine, AsyncPairs())
AsyncRelay(async_engine, AsyncRabbitPublisher("amqp://localhost"))
AsyncRelay(async_engine, Printer())  # E: arg-type, reportArgumentType


async def relay() -> None:
    assert_type(await AsyncRelay(async_engine, AsyncPrinter()).run_once(), int)
    AsyncRelay(async_engine, AsyncPrinter()).run()  # E: unused-coroutine, reportUnusedCoroutine


# Without a broker, a relay calls handlers.


@Inbox("billing").handler(sessions, key=message_key)
def bill(session: Session, message: Delivery) -> None:
    session.flush()


@StatusInbox("orders", store=SqlStore(engine), lease=600).handler(key=message_key)
def order(claim: Claim, message: Delivery | Envelope) -> str:
    return message.id


@AsyncInbox("billing").handler(async_sessions, key=message_key)
async def bill_asynchronously(session: AsyncSession, message: Envelope) -> None:
    await session.flush()


@AsyncStatusInbox("orders", store=SqlStore(async_engine), lease=600).handler(key=message_key)
async def order_asynchronously(claim: object, message: Delivery) -> str:
    return message.id


def undecorated(message: Envelope) -> None:
    print(message)


handlers: dict[str, Callable[[Delivery], InboxOutcome]] = {"bills": bill, "orders": order}
Relay(engine, DirectDelivery(handlers))
Relay(engine, DirectDelivery({"bills": bill, "orders": order}, concurrency=4))
AsyncRelay(async_engine, AsyncDirectDelivery({"bills": bill_asynchronously, "orders": order_asynchronously}))
DirectDelivery({"bills": undecorated})  # E: dict-item, reportArgumentType
DirectDelivery({"bills": bill_asynchronously})  # E: dict-item, reportArgumentType
AsyncDirectDelivery({"bills": bill})  # E: dict-item, reportArgumentType
