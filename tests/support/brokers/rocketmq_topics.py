"""RocketMQ topics and groups that belong to one test, and their contents."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Self
from uuid import uuid4

from inbox import Delivery
from inbox_outbox_base.brokers.rocketmq import properties
from inbox_outbox_base.brokers.rocketmq.client import grpc, rocketmq
from inbox_outbox_base.brokers.rocketmq.message import message_of
from outbox import Envelope

from .rocketmq_remoting import Remoting, Stored

WAIT = 60
"""Seconds, for what takes one on a machine that is not busy."""
INVISIBLE = 60
"""Seconds for which nobody else gets a message that was received."""

BROKERS_OWN = re.compile(r"[A-Z0-9_]+|__.*")


def envelope(topic: str, payload: str | bytes = "x", key: str | None = None, **headers: str) -> Envelope:
    """A message as a relay passes it to a publisher."""
    body = payload.encode() if isinstance(payload, str) else payload
    return Envelope(f"{uuid4()}", topic, key, body, "text/plain", headers, 1, datetime.now(UTC))


@contextmanager
def event_loop() -> Iterator[None]:
    """An event loop of this thread: RocketMQ's own client needs one in the thread that calls it, but sets one
    only if that thread, and none of its own, opens the connection."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class Topics:
    """Makes topics and groups, and removes them on leaving the ``with`` block.

    Args:
        address: what clients connect to.
        broker: where topics and groups are made.
    """

    def __init__(self, address: str, broker: str) -> None:
        self.address = address
        self._remoting = Remoting(broker)
        self._topics: dict[str, int] = {}
        self._groups: list[str] = []

    def new(self, kind: str = "NORMAL", *, queues: int = 2, name: str | None = None) -> str:
        """Create a topic of this kind: NORMAL, FIFO, DELAY or TRANSACTION."""
        name = name or f"test-{uuid4().hex}"
        self._remoting.make_topic(name, kind, queues)
        self._topics[name] = queues
        return name

    def delete(self, topic: str) -> None:
        """Delete one of this test's topics."""
        self._remoting.delete_topic(topic)
        del self._topics[topic]

    def group(self, *, in_order: bool = False, retries: int = 16, name: str | None = None) -> str:
        """Create a consumer group; `in_order` for FIFO topics. A message is delivered at most 1 + `retries`
        times."""
        name = name or f"test-{uuid4().hex}"
        self._remoting.make_group(name, in_order=in_order, retries=retries)
        self._groups.append(name)
        return name

    def put_damaged(self, topic: str, envelope: Envelope) -> None:
        """Write what is left of a message when a broker is killed that writes it: its properties end in
        zeros."""
        found = message_of(envelope, is_fifo=False)
        named = {"UNIQ_KEY": envelope.id, **found.user_properties}
        text = "".join(f"{name}\x01{value}\x02" for name, value in named.items())
        whole = text.index("outbox-id") + 20
        self._remoting.put(topic, found.body, text[:whole] + "\0" * (len(text) - whole))

    def settle(self, group: str, topic: str, offset: int) -> None:
        """Say that the group has consumed a topic's first queue up to this offset, as clients of RocketMQ 4
        do."""
        self._remoting.settle(group, topic, offset)

    def stored(self, topic: str) -> list[Stored]:
        """All messages that the broker has stored for a topic, each queue in order."""
        return [
            message for queue in range(self._topics[topic]) for message in self._remoting.stored(topic, queue)
        ]

    def messages(self, topic: str, group: str, count: int) -> list[Any]:
        """`count` messages as the client returns them, received and acknowledged by a consumer of that
        group."""
        with event_loop():
            return self._messages(topic, group, count)

    def _messages(self, topic: str, group: str, count: int) -> list[Any]:
        configuration = rocketmq.ClientConfiguration(self.address, rocketmq.Credentials(), request_timeout=10)
        consumer = rocketmq.SimpleConsumer(configuration, group, {topic: rocketmq.FilterExpression()}, 1)
        consumer.startup()
        found: list[Any] = []
        give_up = time.monotonic() + WAIT
        try:
            while len(found) < count and time.monotonic() < give_up:
                try:
                    messages = consumer.receive(count - len(found), INVISIBLE)
                except (rocketmq.v5.exception.ClientException, grpc.RpcError):
                    time.sleep(0.1)  # the server does not know the consumer before it has its settings
                    continue
                for message in messages:
                    consumer.ack(message)
                    found.append(message)
        finally:
            consumer.shutdown()
        return found

    def dead(self, group: str) -> list[Stored]:
        """The broker's own dead letters after too many deliveries to this group."""
        try:
            return self._remoting.stored(f"%DLQ%{group}", 0)
        except RuntimeError:
            return []  # it makes that topic for the first dead message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for topic in self._topics:
            self._remoting.delete_topic(topic)
        for group in self._groups:
            self._remoting.delete_group(group)


def delivery_of(stored: Stored, topic: str) -> Delivery:
    """A message as the broker has stored it."""
    plain = {name: text for name, text in stored.properties.items() if not BROKERS_OWN.fullmatch(name)}
    found = properties.decode(plain)
    return Delivery(
        id=found.pop("outbox-id"),
        topic=topic,
        key=found.pop("outbox-key", None),
        payload=b"" if found.pop("outbox-empty", "") else stored.body,
        content_type=found.pop("content-type"),
        created_at=datetime.fromisoformat(found.pop("outbox-created-at")),
        headers=found,
        attempt=1,
        raw=stored,
    )
