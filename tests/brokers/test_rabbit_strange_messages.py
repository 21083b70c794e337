"""Messages that other clients can write but the AMQP client cannot read or write."""

import asyncio
import logging
import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from aiormq.abc import AbstractChannel

from inbox import Delivery, Outcome, Verdict
from inbox._consuming.rabbitmq.frames import _Reader
from tests.support.brokers.consumers import payloads
from tests.support.brokers.rabbit_consumers import consuming
from tests.support.brokers.rabbit_queues import Queues
from tests.support.brokers.rabbit_wire import nested, put, sized, table, text
from tests.support.listeners import Fault
from tests.support.processes import wait_until

pytest_plugins = ["tests.support.brokers.rabbit_fixtures"]

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MICROSECONDS = struct.pack(">Q", int(MOMENT.timestamp() * 1_000_000))
NEW = Outcome(Verdict.NEW)


def test_what_the_client_cannot_read_is_taken(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages with times in microseconds, invalid UTF-8 and all types of numbers are handled, delayed and
    stored as dead letters like others. Their headers do not change."""
    monkeypatch.setattr("inbox._consuming.rabbitmq.companion_queues._AGE", 0)
    queue, seen = queues.new(), list[Delivery]()
    city = b"Z\xfcrich"
    strange: dict[str, bytes] = {
        "outbox-key": b"S" + sized(b"\0\xff\\xff"),
        "time": b"T" + MICROSECONDS,
        "city": b"S" + sized(city),
        "single": b"f" + struct.pack(">f", 0.5),
        "price": b"d" + struct.pack(">d", 1234567.89),
        "big": b"d" + struct.pack(">d", 1e300),
        "decimal": b"D" + struct.pack(">Bi", 2, -150),
        "sent": b"T" + struct.pack(">Q", 1_767_323_045_678),
        "größe": b"t\1",
        "inner": b"F"
        + table(time=b"T" + MICROSECONDS, city=b"S" + sized(city), big=b"d" + struct.pack(">d", 0.1)),
        "list": b"A" + sized(b"T" + MICROSECONDS + b"x" + sized(city) + b"l" + struct.pack(">q", -1) + b"V"),
    }

    async def publish(channel: AbstractChannel) -> None:
        await put(channel, queue, "time", message_id=text(b"1"), timestamp=MICROSECONDS)
        await put(channel, queue, "id", message_id=text(city), content_type=text(b"\xff" * 255))
        await put(channel, queue, "headers", message_id=text(b"3"), headers=table(**strange), priority=b"\1")
        await put(channel, queue, "good", message_id=text(b"4"))

    def handle(message: Delivery) -> Outcome:
        seen.append(message)
        if message.payload == b"good":
            return NEW
        if message.attempt == 1:
            raise Fault("not yet")
        return Outcome(Verdict.MISMATCH)

    queues.do(publish)
    with consuming(queues.url, queue, handle):
        wait_until(lambda: queues.count(f"{queue}.dead") == 3)
    assert [each.payload for each in seen[:4]] == [b"time", b"id", b"headers", b"good"]
    first, again = ({each.payload: each for each in seen if each.attempt == number} for number in (1, 2))
    assert first[b"time"].created_at == MOMENT
    assert again[b"time"].created_at == MOMENT
    assert first[b"id"].id == again[b"id"].id == "Z\\xfcrich"
    assert len(first[b"id"].content_type) == 64
    assert first[b"headers"].key == again[b"headers"].key == "\\x00\\xff\\\\xff"
    headers = dict(first[b"headers"].headers)
    assert headers.pop("time") == str(int.from_bytes(MICROSECONDS))
    assert headers.pop("city") == "Z\\xfcrich"
    assert headers.pop("gr\\xf6\\xdfe") == "True"
    assert (headers["single"], headers["price"], headers["big"]) == ("0.5", "1234567.89", "1e+300")
    assert headers["decimal"] == "-1.50"
    assert headers["sent"] == "2026-01-02 03:04:05.678000+00:00"
    assert int.from_bytes(MICROSECONDS) == first[b"headers"].raw.header.properties.headers["inner"]["time"]
    simple = ("single", "price", "big", "decimal", "sent", "city", "time", "gr\\xf6\\xdfe")
    for name in simple:
        assert again[b"headers"].headers[name] == first[b"headers"].headers[name]
    dead = {message.body: message for message in queues.take(f"{queue}.dead")}
    kept = dead[b"headers"].header.properties.headers or {}
    inner: Any = kept["inner"]
    assert (inner["city"], inner["big"]) == (bytearray(city), "0.1")
    assert kept["list"] == [int.from_bytes(MICROSECONDS), bytearray(city), -1, None]


def test_a_message_that_nobody_can_read(
    queues: Queues, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that breaks every connection is reported, and the consumer pauses longer each time. When the
    message is removed, the others are taken."""
    queue, seen, pauses = queues.new(), list[bytes](), list[int]()

    class Short:
        def delay(self, failures: int) -> float:
            pauses.append(failures)
            return 0.01 if len(pauses) < 3 else 0.2

    monkeypatch.setattr("inbox._consuming.rabbitmq.async_consumer._RECONNECT", Short())
    queues.do(lambda channel: put(channel, queue, "bad", headers=nested(2_000)))
    with caplog.at_level(logging.ERROR, "inbox.rabbitmq"), consuming(queues.url, queue, payloads(seen)):
        wait_until(lambda: len(pauses) > 4)
        queues.do(lambda channel: channel.queue_delete(queue))
        queues.do(lambda channel: channel.queue_declare(queue, durable=True))
        queues.put(queue, "good")
        wait_until(lambda: seen == [b"good"])
    assert pauses == list(range(1, len(pauses) + 1))
    assert f"{queue!r}: the AMQP client cannot decode a message" in caplog.text


def test_frames_come_as_they_were_sent() -> None:
    """Readable frames are passed on byte for byte, in pieces of any size, and so are frames that cannot be
    made readable."""

    async def scenario() -> None:
        header = bytes([2, 0, 1]) + sized(bytes([0, 60, *bytes(10), 0, 0])) + b"\xce"
        hopeless = bytes([2, 0, 1]) + sized(bytes([0, 60, *bytes(10), 0x20, 0]) + table(x=b"?")) + b"\xce"
        body = bytes([3, 0, 1]) + sized(b"payload") + b"\xce"
        beat = bytes([8, 0, 0]) + sized(b"") + b"\xce"
        sent = header + hopeless + body + beat
        stream = asyncio.StreamReader()
        stream.feed_data(sent)
        stream.feed_eof()
        reader, received = _Reader(stream), b""
        while not reader.at_eof():
            received += await reader.readexactly(1)
            received += await reader.readexactly(6)
            received += await reader.readexactly(int.from_bytes(received[-4:]) + 1)
        assert received == sent
        with pytest.raises(asyncio.IncompleteReadError):
            await reader.readexactly(1)

    asyncio.run(scenario())
