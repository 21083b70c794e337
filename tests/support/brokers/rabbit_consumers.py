"""Consumers that run beside a test, and handlers that add to accounts."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Any

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inbox import AsyncInbox, Backoff, Delivery, Inbox, Outcome, message_id
from inbox.rabbitmq import AsyncRabbitConsumer, RabbitConsumer
from tests.support import accounts
from tests.support.together import Task, in_a_loop

SOON = Backoff(first=0.1, longest=0.1)
Handler = Callable[[Delivery], Outcome]


@contextmanager
def consuming(url: str, queue: str, handler: Handler, **options: Any) -> Iterator[RabbitConsumer]:
    """Run a consumer during the block; the end of the block raises its error."""
    consumer = RabbitConsumer(url, queue, handler, **{"backoff": SOON, **options})
    running = Task(consumer.run)
    try:
        yield consumer
    finally:
        consumer.stop()
    running.result()


class Counted:
    """A handler that counts the deliveries that it has finished."""

    def __init__(self, handler: Handler) -> None:
        self.count = 0
        self._handler = handler
        self._lock = Lock()

    def __call__(self, message: Delivery) -> Outcome:
        outcome = self._handler(message)
        with self._lock:
            self.count += 1
        return outcome


def consuming_async(
    database: URL, url: str, queue: str, **options: Any
) -> AbstractContextManager[AsyncRabbitConsumer]:
    """`consuming` with tasks: each message's payload names the account to add to."""

    def consumer(engine: AsyncEngine) -> AsyncRabbitConsumer:
        @AsyncInbox("bookkeeping").handler(engine, key=message_id)
        async def book(connection: AsyncConnection, message: Delivery) -> None:
            await accounts.add_async(connection, message.payload.decode())

        return AsyncRabbitConsumer(url, queue, book, **{"backoff": SOON, **options})

    return in_a_loop(database, consumer, AsyncRabbitConsumer.run)


def bookkeeping(engine: Engine, before: Callable[[Delivery], object] = str) -> Handler:
    """A handler that calls `before` and then adds to the account that the message's payload names."""

    @Inbox("bookkeeping").handler(engine, key=message_id, payload=lambda message: message.payload)
    def book(connection: Connection, message: Delivery) -> None:
        before(message)
        accounts.add(connection, message.payload.decode())

    return book
