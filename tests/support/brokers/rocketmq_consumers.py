"""RocketMQ consumers that run beside a test, messages for them, and handlers that add to accounts."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine

from inbox import Backoff, Delivery, Inbox, Outcome, message_id
from inbox._consuming.rocketmq.link import Calls, Membership
from inbox.rocketmq import RocketMQConsumer
from inbox_outbox_base.brokers.rocketmq.address import parse
from inbox_outbox_base.brokers.rocketmq.message import message_of
from outbox import Envelope
from tests.support import accounts
from tests.support.together import Task

SOON = Backoff(first=0.1, longest=0.1)
Handler = Callable[[Delivery], Outcome]


def url_of(address: str) -> str:
    """The address in the form that a consumer takes."""
    return f"rocketmq://{address}"


@contextmanager
def consuming(
    address: str, topic: str | list[str], group: str, handler: Handler, **options: Any
) -> Iterator[RocketMQConsumer]:
    """Run a consumer during the block; the end of the block raises its error."""
    given = {"backoff": SOON, "invisible": 10, **options}
    consumer = RocketMQConsumer(url_of(address), topic, handler, group=group, **given)
    running = Task(consumer.run)
    try:
        yield consumer
    finally:
        consumer.stop()
    running.result()


def send(address: str, batch: Sequence[Envelope], *, is_fifo: bool = False) -> None:
    """Send messages one after another, as a publisher does."""
    send_raw(address, [message_of(each, is_fifo=is_fifo) for each in batch])


def send_raw(address: str, messages: Sequence[Any]) -> None:
    """`send` for messages in RocketMQ's own form."""

    async def work() -> None:
        calls = Calls(Membership(parse(url_of(address)), "none", {}))
        try:
            for message in messages:
                await calls.send(message)
        finally:
            await calls.disconnect()

    asyncio.run(work())


def bookkeeping(engine: Engine, before: Callable[[Delivery], object] = str, *, attempts: int = 12) -> Handler:
    """A handler that calls `before` and then adds to the account that the message's payload names. It retries
    this often itself while the database is unavailable."""

    @Inbox("bookkeeping").handler(
        engine, key=message_id, payload=lambda message: message.payload, attempts=attempts
    )
    def book(connection: Connection, message: Delivery) -> None:
        before(message)
        accounts.add(connection, message.payload.decode())

    return book
