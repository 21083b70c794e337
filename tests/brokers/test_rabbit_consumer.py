"""The consumer for RabbitMQ: what takes effect, and what it tells RabbitMQ."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import Connection, create_engine

from examples.embedded_postgres import free_port
from inbox import Delivery, Inbox, Outcome, SqlStore, StatusInbox, Verdict, message_id, message_key
from inbox._consuming.rabbitmq.delivery import delivery_of
from inbox.errors import InvalidOption, UnsafeDatabase
from inbox.rabbitmq import AsyncRabbitConsumer, RabbitConsumer
from outbox import Outbox, Relay
from outbox.rabbitmq import RabbitPublisher
from tests.servers import Service
from tests.support import accounts
from tests.support.brokers.consumers import Counted, taking
from tests.support.brokers.rabbit_consumers import consuming, consuming_async
from tests.support.brokers.rabbit_queues import Queues
from tests.support.database import Database
from tests.support.processes import wait_until

pytest_plugins = ["tests.support.brokers.rabbit_fixtures"]

NAMES = [f"account-{number}" for number in range(6)]
NEW = Outcome(Verdict.NEW)


def test_from_commit_to_commit(queues: Queues, postgres: Database) -> None:
    """A message that one transaction publishes is taken by another one, once per key. A message that was
    rolled back never arrives."""
    engine, queue = postgres.engine(), queues.new()
    accounts.make(engine, NAMES)
    for number, name in enumerate(NAMES):
        with engine.connect() as connection:
            Outbox().publish(connection, topic=queue, payload={"name": name}, key=f"order-{number % 5}")
            connection.rollback() if number == 4 else connection.commit()
    publisher = RabbitPublisher(queues.url)
    assert Relay(engine, publisher).run_once() == 5
    publisher.close()

    @Inbox("bookkeeping").handler(engine, key=message_key)
    def book(connection: Connection, message: Delivery) -> None:
        accounts.add(connection, json.loads(message.payload)["name"])

    handler = Counted(book)
    with consuming(queues.url, queue, handler):
        wait_until(lambda: handler.count == 5)
    assert accounts.totals(engine) == dict(zip(NAMES, [1, 1, 1, 1, 0, 0], strict=True))


def test_a_signal_ends_an_asynchronous_consumer(queues: Queues) -> None:
    """Inside the `stopping_on_sigterm` of its listener, SIGTERM lets the running message finish."""
    queue = queues.new()
    queues.put(queue, "1")

    async def handle(_: Delivery) -> Outcome:
        os.kill(os.getpid(), signal.SIGTERM)
        return NEW

    async def consume() -> None:
        consumer = AsyncRabbitConsumer(queues.url, queue, handle)
        with consumer.listener.stopping_on_sigterm():
            await asyncio.wait_for(consumer.run(), 60)

    asyncio.run(consume())
    assert queues.count(queue) == 0


def test_what_is_published_takes_effect_once_in_tasks(queues: Queues, postgres: Database) -> None:
    """With an asynchronous handler, messages that are published three times take effect once."""
    engine, queue = postgres.engine(), queues.new()
    accounts.make(engine, NAMES)
    for _ in range(3):
        queues.put(queue, *NAMES)
    with consuming_async(postgres.async_url, queues.url, queue, concurrency=4):
        wait_until(lambda: set(accounts.totals(engine).values()) == {1} and queues.count(queue) == 0)
    assert accounts.totals(engine) == dict.fromkeys(NAMES, 1)


def test_a_delay_lets_others_pass(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that waits for its next attempt does not count towards the prefetch: later messages are
    handled meanwhile, even with a prefetch of one. A message with a shorter delay comes back earlier."""
    # Otherwise the first message of a new queue counts until a crash can no longer lose the queue.
    monkeypatch.setattr("inbox._consuming.rabbitmq.companion_queues._AGE", 0)
    queue, seen = queues.new(), list[str]()
    delays = {"long": 1.9, "short": 0.2}

    def handle(message: Delivery) -> Outcome:
        name = message.payload.decode()
        seen.append(name)
        again = message.attempt == 1 and name in delays
        return Outcome(Verdict.IN_FLIGHT, retry_after=delays[name]) if again else NEW

    queues.put(queue, "long", "short", "other")
    with consuming(queues.url, queue, handle, prefetch=1):
        wait_until(lambda: len(seen) == 5)
    assert seen == ["long", "short", "other", "short", "long"]


@pytest.mark.parametrize(("options", "held"), [({"prefetch": 3}, 3), ({"concurrency": 2}, 4), ({}, 2)])
def test_prefetch(queues: Queues, options: dict[str, Any], held: int) -> None:
    """RabbitMQ delivers as many messages as `prefetch` says, by default two for each that can run at the same
    time."""
    queue, go = queues.new(), threading.Event()

    def handle(_: Delivery) -> Outcome:
        go.wait(60)
        return NEW

    queues.put(queue, *map(str, range(12)))
    with consuming(queues.url, queue, handle, **options):
        wait_until(lambda: queues.count(queue) == 12 - held)
        threading.Event().wait(0.3)
        assert queues.count(queue) == 12 - held
        go.set()
        wait_until(lambda: queues.count(queue) == 0)


def test_messages_of_others(queues: Queues) -> None:
    """A message that no outbox has sent is read as far as possible: headers become text, missing values are
    empty, and an invalid time is left out."""
    queue, seen = queues.new(), list[Delivery]()

    odd = {
        "number": 7,
        "bytes": bytearray(b"\xff"),
        "outbox-created-at": "yesterday",
        "cloudEvents:id": "1",
        "inbox-attempt": "x",
    }
    queues.put(queue, "odd", headers=odd)
    queues.put(
        queue,
        "naive",
        headers={"outbox-created-at": "2026-01-02T03:04:05", "outbox-key": bytearray(b"k\xff")},
    )
    queues.do(lambda channel: channel.basic_publish(b"bare", routing_key=queue))
    with consuming(queues.url, queue, taking(seen.append)):
        wait_until(lambda: len(seen) == 3)
    first, second, bare = seen
    assert first.headers == {"number": "7", "bytes": "\\xff", "ce_id": "1"}
    assert first.place == f"queue {queue}"
    assert (first.created_at, first.key, first.attempt) == (None, None, 1)
    assert second.created_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert second.key == "k\\xff"
    assert (bare.headers, bare.content_type, bare.payload) == ({}, "", b"bare")


def test_events_of_other_producers(queues: Queues) -> None:
    """A CloudEvent without a message id is identified by its source and id."""
    queue = queues.new()
    event = {"cloudEvents:specversion": "1.0", "cloudEvents:id": "1", "cloudEvents:source": "/shop"}
    queues.put(queue, "event", headers=event)
    (message,) = queues.take(queue)
    message.header.properties.message_id = None  # drawn by the client that published it
    assert delivery_of(message).id == '["/shop","1"]'


def test_the_queue_can_be_declared(queues: Queues) -> None:
    """A missing queue raises an error, unless `declare` is set; then it is created as durable. An existing
    queue is not changed."""
    queue, seen = f"{queues.new()}.new", list[Delivery]()

    with pytest.raises(InvalidOption, match=f"queue='{queue}': there is no such queue"):
        RabbitConsumer(queues.url, queue, taking(seen.append)).run()
    with consuming(queues.url, queue, taking(seen.append), declare=True):
        wait_until(lambda: queues.has(queue))
        queues.put(queue, "1")
        wait_until(lambda: len(seen) == 1)
    queues.do(lambda channel: channel.queue_declare(queue, durable=True))
    queues.do(lambda channel: channel.queue_delete(queue))
    quorum = queues.new(x_queue_type="quorum")
    queues.put(quorum, "2")
    with consuming(queues.url, quorum, taking(seen.append), declare=True):
        wait_until(lambda: len(seen) == 2)


def test_nobody_there(rabbitmq: Service) -> None:
    """A wrong address, a wrong password and a missing virtual host each raise one error that names the
    address, but not the password."""
    place, port = urlsplit(rabbitmq.url), free_port()
    nobody = RabbitConsumer(f"amqp://me:secret@127.0.0.1:{port}/", "q", lambda _: NEW)
    with pytest.raises(ConnectionError, match=f"amqp://me@127.0.0.1:{port}/ does not answer") as away:
        nobody.run()
    stranger = RabbitConsumer(f"amqp://guest:secret@{place.hostname}:{place.port}/", "q", lambda _: NEW)
    with pytest.raises(
        InvalidOption, match=f"guest@{place.hostname}:{place.port}/': .*ACCESS_REFUSED"
    ) as refused:
        stranger.run()
    elsewhere = RabbitConsumer(f"amqp://guest:guest@{place.hostname}:{place.port}/none", "q", lambda _: NEW)
    with pytest.raises(InvalidOption, match=r"/none': RabbitMQ refuses .*virtual host does not exist"):
        elsewhere.run()
    for error in (away.value, refused.value):
        assert "secret" not in str(error)
        assert error.__cause__ is None


def test_invalid_options() -> None:
    """An invalid option is rejected by name when the consumer is created."""

    async def asynchronous(_: Delivery) -> Outcome:
        return NEW

    engine = create_engine("sqlite://")
    synchronous: Any = Inbox("orders").handler(engine, key=message_key)(lambda *_: None)

    def make(**options: Any) -> Callable[[], RabbitConsumer]:
        given = {"url": "amqp://localhost", "queue": "q", "handler": lambda _: NEW, **options}
        return lambda: RabbitConsumer(**given)

    wrong = {
        "url": make(url="localhost"),
        "queue": make(queue=""),
        "queue='": make(queue="ä" * 121),  # 242 bytes
        "handler": make(handler=asynchronous),
        "prefetch": make(prefetch=0),
        "max_attempts": make(max_attempts=0),
        "declare": make(declare=1),
        "reject_dead_letters": make(reject_dead_letters="yes"),
        "concurrency": make(concurrency=0),
    }
    for option, mistake in wrong.items():
        with pytest.raises(InvalidOption, match=f"^{option}"):
            mistake()
    with pytest.raises(InvalidOption, match="expected an asynchronous function"):
        AsyncRabbitConsumer("amqp://localhost", "q", synchronous)
    AsyncRabbitConsumer("amqp://localhost", "q", lambda delivery: asynchronous(delivery))
    assert AsyncRabbitConsumer("amqp://localhost", "q", asynchronous, concurrency=5).prefetch == 10


@pytest.mark.parametrize("mode", ["exactly once", "status"])
def test_tables_that_cannot_keep_a_promise(queues: Queues, postgres: Database, mode: str) -> None:
    """Before the first message, a consumer looks at its handler's table, and ends if that is unsafe."""
    engine, queue = postgres.engine(), queues.new()
    queues.put(queue, "1")
    handler: Any
    if mode == "status":
        handler = StatusInbox("orders", store=SqlStore(engine)).handler(key=message_id)(lambda *_: None)
    else:
        handler = Inbox("orders").handler(engine, key=message_id)(lambda *_: None)
    with engine.begin() as connection:
        for table in ("inbox_status", "inbox_message"):
            connection.exec_driver_sql(f"ALTER TABLE {table} SET UNLOGGED")
    with pytest.raises(UnsafeDatabase, match="unlogged"):
        RabbitConsumer(queues.url, queue, handler).run()
