"""Consumers of RabbitMQ that run beside a test."""

from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inbox import AsyncInbox, Delivery, message_id
from inbox.rabbitmq import AsyncRabbitConsumer, RabbitConsumer
from tests.support import accounts
from tests.support.brokers.consumers import SOON, Handler, running
from tests.support.together import in_a_loop


def consuming(
    url: str, queue: str, handler: Handler, **options: Any
) -> AbstractContextManager[RabbitConsumer]:
    """Run a consumer during the block; the end of the block raises its error."""
    return running(RabbitConsumer(url, queue, handler, **{"backoff": SOON, **options}))


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
