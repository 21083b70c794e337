"""Listeners and consumers."""

from typing import assert_type

from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from inbox import (
    Action,
    AsyncInbox,
    AsyncListener,
    Backoff,
    Decision,
    Decisions,
    Delivery,
    Event,
    EventKind,
    Inbox,
    Listener,
    LogEvents,
    Outcome,
    message_key,
    purge,
)
from inbox.kafka import AsyncKafkaConsumer, KafkaConsumer
from inbox.rabbitmq import AsyncRabbitConsumer, RabbitConsumer
from inbox.rocketmq import RocketMQConsumer

engine, async_engine = create_engine("sqlite:///shop.db"), create_async_engine("sqlite+aiosqlite:///shop.db")


def note(event: Event) -> None:
    if event.kind is EventKind.MISMATCH:
        print(event.consumer, event.key)


inbox = Inbox("billing", on_event=[note, LogEvents()])
async_inbox = AsyncInbox("billing", on_event=note)
Inbox("billing", on_event="log")  # E: arg-type, reportArgumentType
Inbox("billing", on_refusal="ignore")  # E: arg-type, reportArgumentType


@inbox.handler(engine, key=message_key)
def bill(connection: Connection, message: Delivery) -> None:
    print(connection, message.payload.decode())


@async_inbox.handler(async_engine, key=message_key)
async def bill_asynchronously(connection: AsyncConnection, message: Delivery) -> None:
    print(connection, message.payload)


@inbox.handler(engine, key=lambda message: message["order_id"])
def bill_line(connection: Connection, message: dict[str, str]) -> None:
    print(connection, message)


def put_away(message: Delivery, decision: Decision) -> None:
    print(message.id, decision.reason)


listener = inbox.listener(order="in_order", concurrency=4, key=lambda message: message["order_id"])
assert_type(listener, Listener)
decisions = listener.decide([{"order_id": "order-1"}], bill_line)
assert_type(decisions, Decisions)
assert_type(decisions[0].action, Action)
assert_type(decisions.acknowledged, int)
assert_type(bill_line({"order_id": "order-1"}), Outcome)
listener.decide(["order-1"], bill_line)  # E: arg-type, reportArgumentType
listener.decide([{"order_id": "order-1"}], print)  # E: arg-type, reportArgumentType
inbox.listener(order="any")  # E: arg-type, reportArgumentType


async def listen(messages: list[Delivery]) -> None:
    async_listener = async_inbox.listener(concurrency=4)
    assert_type(async_listener, AsyncListener)
    assert_type(await async_listener.decide(messages, bill_asynchronously), Decisions)
    await async_listener.decide(messages, bill)  # E: arg-type, reportArgumentType


RabbitConsumer("amqp://localhost", "bills", bill, concurrency=4, backoff=Backoff(first=1)).run()
RabbitConsumer("amqp://localhost", "bills", bill, dead_letter=put_away, key=lambda message: message.key)
RabbitConsumer("amqp://localhost", "bills", bill_line)  # E: arg-type, reportArgumentType
RabbitConsumer("amqp://localhost", "bills", bill_asynchronously)  # E: arg-type, reportArgumentType
RabbitConsumer("amqp://localhost", "bills", bill, concurency=4)  # E: call-arg, reportCallIssue
KafkaConsumer({"bootstrap.servers": "localhost", "group.id": "bills"}, "bills", bill)
KafkaConsumer({"group.id": "bills"}, "bills", bill_asynchronously)  # E: arg-type, reportArgumentType
RocketMQConsumer("localhost:8081", "bills", bill, group="billing")


async def consume() -> None:
    await AsyncRabbitConsumer("amqp://localhost", "bills", bill_asynchronously).run()
    await AsyncKafkaConsumer({"group.id": "bills"}, "bills", bill_asynchronously).run()
    AsyncRabbitConsumer("amqp://localhost", "bills", bill)  # E: arg-type, reportArgumentType


assert_type(purge(engine, dry_run=True).finished, bool)
