"""RabbitMQ with killed consumers, a killed broker, and lost answers."""

import threading
from collections import Counter
from urllib.parse import urlsplit

import pytest

from inbox import Backoff, Delivery, Event, Outcome, Verdict
from outbox import Accepted, Envelope, Unavailable, Unknown
from outbox.rabbitmq import RabbitPublisher
from tests.servers.rabbitmq import LocalRabbit
from tests.support import accounts
from tests.support.answers import published
from tests.support.brokers.consumers import Counted, bookkeeping
from tests.support.brokers.rabbit_alarm import lacking_memory
from tests.support.brokers.rabbit_consumers import consuming
from tests.support.brokers.rabbit_queues import Queues, envelope
from tests.support.database import Database
from tests.support.processes import wait_until
from tests.support.proxy import TcpProxy

pytest_plugins = ["tests.support.brokers.rabbit_fixtures"]

NAMES = [f"account-{number}" for number in range(6)]
SETTLED = 3.0
"""Seconds after which a broker that crashes still has a queue that it had just made, and can use it."""


def test_a_consumer_outlives_the_broker(private_rabbitmq: LocalRabbit, postgres: Database) -> None:
    """The broker is killed with kill -9 while messages are consumed. The consumer reconnects by itself, and
    every message takes effect once, including those that wait for their next attempt. Meanwhile the consumer
    is live and not ready."""
    events: list[Event] = []
    engine, count, few, failures = postgres.engine(), 600, 60, Counter[str]()
    accounts.make(engine, NAMES)

    def fail_now_and_then(message: Delivery) -> None:
        failures[message.id] += 1
        if int(message.id[-2:], 16) < 32 and failures[message.id] == 1:
            raise ValueError("not yet")

    with Queues(private_rabbitmq.url) as queues:
        queue = queues.new()
        send(queues.url, [envelope(queue, NAMES[number % 6]) for number in range(few)])
        handler = bookkeeping(engine, fail_now_and_then)
        options = {"concurrency": 2, "prefetch": 20, "on_event": events.append}
        with consuming(queues.url, queue, handler, **options) as consumer:
            wait_until(lambda: len(failures) > 10 and max(failures.values()) > 1)
            threading.Event().wait(SETTLED)
            send(queues.url, [envelope(queue, NAMES[number % 6]) for number in range(count - few)])
            wait_until(lambda: sum(accounts.totals(engine).values()) > 60)
            assert consumer.probe().is_ready
            private_rabbitmq.kill()
            wait_until(lambda: not consumer.probe().is_ready)
            assert consumer.probe().is_live
            private_rabbitmq.start()
            wait_until(lambda: sum(accounts.totals(engine).values()) >= count)
            assert consumer.probe().is_ready
            wait_until(lambda: queues.count(queue) == 0)
        assert queues.everything(queue) == []
    assert accounts.totals(engine) == dict.fromkeys(NAMES, count // 6)
    assert any(runs > 1 for runs in failures.values())
    assert [(each.kind.value, each.topic) for each in events] == [
        (kind, queue) for kind in ("started", "disconnected", "reconnected")
    ]
    assert not consumer.probe().is_live


@pytest.mark.long
def test_a_broker_that_crashes_when_a_message_is_first_delayed(
    private_rabbitmq: LocalRabbit, postgres: Database
) -> None:
    """RabbitMQ may lose a queue that it has just created: a message that was moved into it is not lost."""
    engine, failures = postgres.engine(), list[str]()
    accounts.make(engine)

    def fail_once(message: Delivery) -> None:
        if not failures:
            failures.append(message.id)
            raise ValueError("not yet")

    with Queues(private_rabbitmq.url) as queues:
        queue = queues.new()
        queues.put(queue, "cash")
        threading.Event().wait(1)
        handler = bookkeeping(engine, fail_once)
        with consuming(queues.url, queue, handler, backoff=Backoff(first=128)):
            wait_until(lambda: queues.count(f"{queue}.retry.128s") == 1)
            # Long enough for the broker to store an acknowledgement, and too short for a queue.
            threading.Event().wait(0.3)
            private_rabbitmq.restart()
            wait_until(lambda: accounts.total(engine) == 1, timeout=40)
    assert accounts.total(engine) == 1


@pytest.mark.parametrize("arrives", [True, False])
def test_an_answer_that_gets_lost(queues: Queues, postgres: Database, arrives: bool) -> None:
    """When the connection breaks between a message and its confirm, the message is unknown. The same
    publisher sends it again with the same id, and it takes effect once."""
    engine, queue = postgres.engine(), queues.new()
    accounts.make(engine)
    place = urlsplit(queues.url)
    assert place.hostname is not None
    assert place.port is not None
    message = envelope(queue, "cash")
    with TcpProxy(place.hostname, place.port) as proxy:
        publisher = RabbitPublisher(f"amqp://guest:guest@127.0.0.1:{proxy.port}/")
        proxy.cut_on(lambda chunk: b"cash" in chunk, forward=arrives)
        (first,) = published(publisher, [message])
        assert proxy.was_cut.is_set()
        assert isinstance(first, Unknown)
        assert published(publisher, [message]) == [Accepted()]
        publisher.close()
    wait_until(lambda: queues.count(queue) == 1 + arrives)
    handler = Counted(bookkeeping(engine))
    with consuming(queues.url, queue, handler):
        wait_until(lambda: handler.count == 1 + arrives)
    assert accounts.total(engine) == 1


def test_a_broker_that_hangs_or_lacks_memory(private_rabbitmq: LocalRabbit) -> None:
    """When the broker hangs, messages on an open connection are unknown, and messages on a new one are
    unavailable. When it continues, so does the publisher. While the broker lacks memory, only the first
    message is unknown; the others were certainly not taken."""
    with Queues(private_rabbitmq.url) as queues:
        queue = queues.new()
        publisher = RabbitPublisher(private_rabbitmq.url, timeout=1)
        assert published(publisher, [envelope(queue)]) == [Accepted()]
        private_rabbitmq.freeze()
        outcomes = published(publisher, [envelope(queue), envelope(queue)])
        assert [type(each) for each in outcomes] == [Unknown] * 2
        (later,) = published(publisher, [envelope(queue, "never")])
        assert isinstance(later, Unavailable)
        private_rabbitmq.thaw()
        wait_until(lambda: published(publisher, [envelope(queue, "last")]) == [Accepted()])
        with lacking_memory(private_rabbitmq):
            wait_until(lambda: isinstance(published(publisher, [envelope(queue, "unknown")])[0], Unknown))
            for _ in range(2):
                (later,) = published(publisher, [envelope(queue, "never")])
                assert isinstance(later, Unavailable)
                assert "blocks publishers" in later.reason
        wait_until(lambda: published(publisher, [envelope(queue, "afterwards")]) == [Accepted()])
        publisher.close()
        bodies = queues.bodies(queue)
    assert {"last", "unknown", "afterwards"} <= set(bodies)
    assert "never" not in bodies


def test_a_queue_that_is_deleted(queues: Queues) -> None:
    """A consumer whose queue is deleted waits until the queue exists again."""
    queue, seen = queues.new(), list[str]()

    def handle(message: Delivery) -> Outcome:
        seen.append(message.payload.decode())
        return Outcome(Verdict.NEW)

    with consuming(queues.url, queue, handle):
        queues.put(queue, "before")
        wait_until(lambda: seen == ["before"])
        queues.do(lambda channel: channel.queue_delete(queue))
        queues.do(lambda channel: channel.queue_declare(queue, durable=True))
        queues.put(queue, "after")
        wait_until(lambda: seen == ["before", "after"])


def send(url: str, batch: list[Envelope]) -> None:
    """Publish the batch; checks that each message is accepted."""
    publisher = RabbitPublisher(url)
    assert published(publisher, batch) == [Accepted()] * len(batch)
    publisher.close()
