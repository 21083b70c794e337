"""What a relay reads: no more bytes than a batch can have, and past thousands of waiting keys."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert, update

from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.databases.relaying import Relaying, ScanResult
from outbox import Envelope, Message, Outbox, Outcome, Relay, Unavailable
from outbox._relaying.reading import payloads as loading
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.on_servers import spread
from tests.support.outbox_publishers import ACCEPTED, TABLES, Ordered, Recorder, publish
from tests.support.relay.servers import NAMES, server

__all__ = ["server"]

HELD = 40_000
"""More than the number of parameters that SQLite allows in a statement."""
SMALL, LARGE = 200, 20
REJECTED = 3_000


@spread("light", [True, False], elsewhere=2, where=NAMES)
def test_a_batch_is_bounded_in_bytes(engine: Engine, monkeypatch: pytest.MonkeyPatch, light: bool) -> None:
    """No batch exceeds the limit of bytes unless it is a single message, even where large messages follow
    many small ones. Each message is complete, and all are in order, whether or not the scan reads the payload
    together with the row."""
    most = 100_000
    monkeypatch.setattr(loading, "_LARGEST_BATCH", most)
    size = most // (SMALL if light else 4) - 1
    payloads = [b"s%d" % number for number in range(SMALL)]
    payloads += [b"%d" % (number % 10) * size for number in range(LARGE)]
    payloads += [b"x" * (most + 1), b"y" * (2 * most), b"end"]
    drafts = [Message("orders", payload) for payload in payloads]
    with engine.begin() as connection:
        Outbox().publish_many(connection, drafts)
        connection.execute(update(TABLES.message).values(bucket=0))
    publisher = Recorder()
    assert Relay(engine, publisher, batch=SMALL).run_once() == len(payloads)
    assert [message.payload for message in publisher.accepted] == payloads
    batches = [[len(message.payload) for message in batch] for batch in publisher.batches]
    assert all(len(batch) == 1 or sum(batch) <= most for batch in batches)


@pytest.mark.quick("postgresql")
def test_past_thousands_of_keys_that_wait(engine: Engine) -> None:
    """A new message is sent while tens of thousands of others wait for an operator."""
    held = {"payload": b"", "topic": "orders", "content_type": "x", "state": "held", "error": "no"}
    rows = [
        {"bucket": number % BUCKETS, "id": str(number), "key": f"k{number}", **held} for number in range(HELD)
    ]
    with engine.begin() as connection:
        connection.execute(insert(TABLES.message), rows)
    publish(engine, "a1", "a2")
    publisher = Recorder()
    assert Relay(engine, publisher, after_dead="hold").run_once() == 2
    assert publisher.names == ["a1", "a2"]


def test_payloads_are_read_when_they_are_sent(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If thousands of messages go to a topic that the broker rejects, few of their payloads are read."""
    kind = type(relaying(engine.dialect.name, TABLES))
    scan, read = kind.scan, 0

    def count(*args: Any) -> ScanResult:
        nonlocal read
        found = scan(*args)
        read += sum(letter.payload is not None for letter in found.letters)
        return found

    monkeypatch.setattr(kind, "scan", count)
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message("full", b"x", f"k{number}") for number in range(REJECTED)])
    publish(engine, "a1", topic="free")
    publisher = Recorder(lambda message: Unavailable("no") if message.topic == "full" else ACCEPTED)
    assert Relay(engine, publisher).run_once() == 1
    assert publisher.of("a") == ["a1"]
    assert read < REJECTED / 5


class Slow(Ordered):
    """Takes some milliseconds for a batch."""

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Answer each message."""
        time.sleep(0.008)
        return super().send(batch)


def test_a_key_with_many_messages_is_read_once(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a batch of the only key is being sent, the relay reads no messages behind it, which it would have
    to read again when it sends them."""
    kind = type(relaying(postgres.name, TABLES))
    fetch, fetched = kind.fetch, list[int]()

    def count(self: Relaying, connection: Connection, places: list[tuple[int, int]], light: int) -> Any:
        fetched.append(len(places))
        return fetch(self, connection, places, light)

    monkeypatch.setattr(kind, "fetch", count)
    engine, many = postgres.engine(), 6_000
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message("orders", b"x", "a") for _ in range(many)])
    assert Relay(engine, Slow(), batch=100).run_once() == many
    assert sum(fetched) < many / 2
