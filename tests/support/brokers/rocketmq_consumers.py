"""Consumers of RocketMQ that run beside a test, and messages for them."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from inbox._consuming.rocketmq.link import Calls, Membership
from inbox.rocketmq import RocketMQConsumer
from inbox_outbox_base.brokers.rocketmq.address import parse
from inbox_outbox_base.brokers.rocketmq.message import message_of
from outbox import Envelope
from tests.support.brokers.consumers import SOON, Handler, running


def url_of(address: str) -> str:
    """The address in the form that a consumer takes."""
    return f"rocketmq://{address}"


def consuming(
    address: str, topic: str | list[str], group: str, handler: Handler, **options: Any
) -> AbstractContextManager[RocketMQConsumer]:
    """Run a consumer during the block; the end of the block raises its error."""
    given = {"backoff": SOON, "invisible": 10, **options}
    return running(RocketMQConsumer(url_of(address), topic, handler, group=group, **given))


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
