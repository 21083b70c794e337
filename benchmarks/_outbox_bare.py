"""Bare clients of brokers: they read the rows of an outbox, send them, and wait for the answers.

The messages are those of the relay's publishers. A bare client keeps no order after a failure, counts no
attempts, and cannot run twice at the same time.
"""

import asyncio
from collections.abc import Iterator
from datetime import datetime
from time import perf_counter
from typing import Any, Protocol

import aiormq
import psycopg
from confluent_kafka import Producer
from pamqp.commands import Basic
from sqlalchemy import URL

from ._outbox_peer import driver_url
from ._outbox_rows import TOPIC

_BATCH = 1_000
_SELECT = """
    SELECT bucket, sequence, id, key, payload, content_type, created_at FROM outbox_message
    ORDER BY bucket, sequence
"""
_DELETE = """
    DELETE FROM outbox_message USING unnest(%s::integer[], %s::bigint[]) AS given (bucket, sequence)
    WHERE outbox_message.bucket = given.bucket AND outbox_message.sequence = given.sequence
"""

_Rows = list[tuple[Any, ...]]


class Bare(Protocol):
    """A bare client."""

    def send(self, url: URL, messages: int, *, deletes: bool) -> float:
        """Send all rows, and delete each batch once it is answered if that is wanted; return the seconds."""


class BareKafka:
    """An idempotent producer. If it does not delete, it never waits before the end."""

    def __init__(self, address: str) -> None:
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})

    def send(self, url: URL, messages: int, *, deletes: bool) -> float:
        """As `Bare.send`."""
        producer, errors = self._producer, list[Any]()
        producer.list_topics(TOPIC, 10)
        begun = perf_counter()
        for rows in _batches(url, deletes=deletes):
            for _, _, message_id, key, payload, content_type, created_at in rows:
                headers = {
                    "outbox-id": message_id,
                    "outbox-created-at": created_at.isoformat(),
                    "content-type": content_type,
                }
                producer.produce(
                    TOPIC, payload, key, headers=headers, on_delivery=lambda error, _: errors.append(error)
                )
            producer.poll(0)
            if deletes:
                producer.flush()
        producer.flush()
        seconds = perf_counter() - begun
        if len(errors) != messages or any(errors):
            raise AssertionError(f"{errors.count(None)} of {messages} messages were written")
        return seconds


class BareRabbit:
    """A channel with confirms; a batch is sent once the one before is confirmed."""

    def __init__(self, url: str) -> None:
        self._url = url

    def send(self, url: URL, messages: int, *, deletes: bool) -> float:
        """As `Bare.send`."""
        return asyncio.run(self._send(url, messages, deletes=deletes))

    async def _send(self, url: URL, messages: int, *, deletes: bool) -> float:
        connection = await aiormq.connect(self._url)
        channel: Any = await connection.channel(publisher_confirms=True)
        confirmed, begun = 0, perf_counter()
        for rows in _batches(url, deletes=deletes):
            sends = [
                channel.basic_publish(
                    row[4], routing_key=TOPIC, properties=_properties(*row[2:]), mandatory=True, wait=False
                )
                for row in rows
            ]
            confirmed += sum(isinstance(answer, Basic.Ack) for answer in await asyncio.gather(*sends))
        seconds = perf_counter() - begun
        await connection.close()
        if confirmed != messages:
            raise AssertionError(f"{confirmed} of {messages} messages were confirmed")
        return seconds


def _properties(
    message_id: str, key: str | None, payload: bytes, content_type: str, created_at: datetime
) -> Basic.Properties:
    headers: dict[str, Any] = {
        "outbox-created-at": created_at.isoformat(),
        "x-deduplication-header": message_id,
    }
    if key is not None:
        headers["outbox-key"] = key
    return Basic.Properties(
        message_id=message_id,
        content_type=content_type,
        delivery_mode=2,
        timestamp=created_at,
        headers=headers,
    )


def _batches(url: URL, *, deletes: bool) -> Iterator[_Rows]:
    with psycopg.connect(driver_url(url)) as connection:
        if deletes:
            while rows := connection.execute(f"{_SELECT} LIMIT {_BATCH}", binary=True).fetchall():
                yield rows
                connection.execute(_DELETE, [[row[0] for row in rows], [row[1] for row in rows]])
                connection.commit()
        else:
            with connection.cursor("rows") as cursor:
                cursor.execute(_SELECT, binary=True)
                while rows := cursor.fetchmany(_BATCH):
                    yield rows
