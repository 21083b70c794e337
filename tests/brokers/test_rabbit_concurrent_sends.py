"""Simultaneous sends to RabbitMQ, for different topics; and large batches."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from outbox import Accepted, Envelope, Outcome, Refused, Unavailable, Unknown
from outbox.rabbitmq import AsyncRabbitPublisher, RabbitPublisher
from tests.servers.rabbitmq import LocalRabbit
from tests.support.answers import published, published_awaited
from tests.support.brokers.rabbit_alarm import lacking_memory, standing_still, without_rights
from tests.support.brokers.rabbit_queues import Queues, envelope
from tests.support.processes import wait_until
from tests.support.proxy import TcpProxy
from tests.support.together import Task, together

pytest_plugins = ["tests.support.brokers.rabbit_fixtures"]

LARGE = "x" * 30_000
"""A payload of which a few are more than the publisher writes at a time."""


@pytest.fixture
def proxy(queues: Queues) -> Iterator[TcpProxy]:
    """A proxy between a publisher and RabbitMQ."""
    with proxy_to(queues.url) as proxy:
        yield proxy


def proxy_to(url: str) -> TcpProxy:
    """A proxy for the server at this address."""
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    return TcpProxy(place.hostname, place.port)


def through(proxy: TcpProxy, login: str = "guest:guest", **options: Any) -> RabbitPublisher:
    """A publisher that reaches RabbitMQ through the proxy."""
    return RabbitPublisher(f"amqp://{login}@127.0.0.1:{proxy.port}/", **options)


def numbered(topic: str, count: int) -> list[Envelope]:
    """Messages whose payloads are numbers."""
    return [envelope(topic, str(number)) for number in range(count)]


def kinds(outcomes: list[Outcome]) -> set[type[Outcome]]:
    """The kinds of outcomes that occur."""
    return set(map(type, outcomes))


@pytest.mark.long(but_on="classic")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_two_threads_publish(queues: Queues, kind: str) -> None:
    """Two threads start to use one publisher at the same moment: everything is accepted, once, and each queue
    has its messages."""
    names = [queues.new(x_queue_type=kind) for _ in range(2)]
    publisher = RabbitPublisher(queues.url, timeout=30)

    def publish(queue: str) -> None:
        for _ in range(5):
            assert published(publisher, numbered(queue, 1_000)) == [Accepted()] * 1_000

    together([partial(publish, queue) for queue in names])
    publisher.close()
    assert [queues.count(queue) for queue in names] == [5_000] * 2


def test_tasks_publish(queues: Queues) -> None:
    """Several tasks can use the asynchronous publisher at the same time."""
    names = [queues.new() for _ in range(5)]

    async def scenario() -> list[list[Outcome]]:
        publisher = AsyncRabbitPublisher(queues.url)
        answers = await asyncio.gather(
            *(published_awaited(publisher, numbered(queue, 200)) for queue in names)
        )
        await publisher.close()
        return answers

    assert asyncio.run(scenario()) == [[Accepted()] * 200] * 5
    assert [queues.count(queue) for queue in names] == [200] * 5


def test_a_topic_that_closes_its_channel(queues: Queues) -> None:
    """One topic closes its channel again and again while a healthy topic is published: every message of the
    healthy one is accepted at the first attempt."""
    healthy, troubled = queues.new(), queues.new()
    publisher, sent, is_over = RabbitPublisher(queues.url), 0, threading.Event()

    def trouble() -> None:
        try:
            for _ in range(20):
                batch = [envelope(troubled, "1"), envelope(troubled, "bad", CC="x"), envelope(troubled, "2")]
                assert [type(each) for each in published(publisher, batch)] == [Accepted, Refused, Accepted]
        finally:
            is_over.set()

    troubling = Task(trouble)
    while not is_over.is_set():
        assert published(publisher, numbered(healthy, 200)) == [Accepted()] * 200
        sent += 200
    troubling.result()
    publisher.close()
    assert queues.count(healthy) == sent > 200


def test_a_topic_that_gets_no_answer(queues: Queues, proxy: TcpProxy) -> None:
    """While the messages of one topic wait for their confirms until the time limit, another topic is
    published."""
    silent, healthy = queues.new(), queues.new()
    publisher = through(proxy, timeout=3)
    proxy.stall_on(lambda chunk: silent.encode() in chunk)
    waiting = Task(lambda: published(publisher, [envelope(silent)]))
    assert proxy.was_cut.wait(30)
    assert published(publisher, numbered(healthy, 200)) == [Accepted()] * 200
    assert kinds(waiting.result()) == {Unknown}
    publisher.close()


@pytest.mark.long
def test_a_queue_that_stands_still(private_rabbitmq: LocalRabbit) -> None:
    """RabbitMQ stops reading a connection whose queue accepts no more. Other topics are published meanwhile,
    and the same topic once its queue continues."""
    with Queues(private_rabbitmq.url) as queues:
        still, healthy, is_over = queues.new(), queues.new(), threading.Event()
        publisher, sent = RabbitPublisher(private_rabbitmq.url, timeout=5), 0

        def wait() -> list[Outcome]:
            try:
                return published(publisher, numbered(still, 2_000))
            finally:
                is_over.set()

        with standing_still(private_rabbitmq, still):
            waiting = Task(wait)
            while not is_over.is_set():
                assert published(publisher, numbered(healthy, 200)) == [Accepted()] * 200
                sent += 200
            assert kinds(waiting.result()) <= {Unknown, Unavailable}
        assert published(publisher, numbered(still, 200)) == [Accepted()] * 200
        publisher.close()
        assert queues.count(healthy) == sent > 1_000


def test_answers_come_as_they_arrive(private_rabbitmq: LocalRabbit) -> None:
    """The outcome of a message does not wait for the confirm of another one."""
    with Queues(private_rabbitmq.url) as queues:
        still, healthy = queues.new(), queues.new()
        publisher = RabbitPublisher(private_rabbitmq.url, timeout=5)
        batch = [envelope(still), envelope(healthy), envelope("nowhere")]
        with standing_still(private_rabbitmq, still):
            answers = publisher.send(batch)
            early = dict([next(answers), next(answers)])
            assert queues.count(healthy) == 1
            late = dict(answers)
        publisher.close()
        assert {place: type(outcome) for place, outcome in early.items()} == {1: Accepted, 2: Unavailable}
        assert {place: type(outcome) for place, outcome in late.items()} == {0: Unknown}


def test_the_asynchronous_answers_come_as_they_arrive(private_rabbitmq: LocalRabbit) -> None:
    """The asynchronous publisher does not wait for other confirms either. A caller that stops early leaves
    nothing behind that disturbs the next send."""

    async def scenario(still: str, healthy: str) -> None:
        publisher = AsyncRabbitPublisher(private_rabbitmq.url, timeout=30)
        async for place, outcome in publisher.send([envelope(still), envelope(healthy)]):
            assert (place, outcome) == (1, Accepted())
            break
        assert await published_awaited(publisher, numbered(healthy, 200)) == [Accepted()] * 200
        await publisher.close()

    with Queues(private_rabbitmq.url) as queues:
        still, healthy = queues.new(), queues.new()
        with standing_still(private_rabbitmq, still):
            asyncio.run(scenario(still, healthy))
        assert queues.count(healthy) == 201


def test_a_caller_that_stops_early(private_rabbitmq: LocalRabbit) -> None:
    """When the caller stops early, the send ends and its connection is closed, since answers may still arrive
    on it."""
    with Queues(private_rabbitmq.url) as queues:
        still, healthy = queues.new(), queues.new()
        with proxy_to(private_rabbitmq.url) as proxy:
            publisher = through(proxy, timeout=120)
            with standing_still(private_rabbitmq, still):
                answers = publisher.send([envelope(still), envelope(healthy)])
                assert next(answers) == (1, Accepted())
                answers.close()
                wait_until(lambda: proxy.ended == 1)
                assert published(publisher, numbered(healthy, 200)) == [Accepted()] * 200
            publisher.close()


def test_two_topics_while_memory_is_lacking(private_rabbitmq: LocalRabbit) -> None:
    """While RabbitMQ lacks memory, nothing is sent once each connection knows of it. Both topics continue
    when there is memory again."""
    with Queues(private_rabbitmq.url) as queues:
        names = [queues.new() for _ in range(2)]
        publisher = RabbitPublisher(private_rabbitmq.url, timeout=2)

        def publish(payload: str) -> set[type[Outcome]]:
            works = [partial(published, publisher, [envelope(queue, payload)]) for queue in names]
            return kinds([outcome for (outcome,) in together(works)])

        assert publish("before") == {Accepted}
        with lacking_memory(private_rabbitmq):
            wait_until(lambda: publish("perhaps") == {Unavailable})
            assert publish("never") == {Unavailable}
        wait_until(lambda: publish("after") == {Accepted})
        publisher.close()
        for queue in names:
            bodies = queues.bodies(queue)
            assert {"before", "after"} <= set(bodies)
            assert "never" not in bodies


def test_connections_are_used_again(queues: Queues, proxy: TcpProxy) -> None:
    """There are at most as many connections as simultaneous sends, however many sends there were."""
    names = [queues.new() for _ in range(3)]
    publisher = through(proxy)
    works: list[Callable[[], object]] = [
        lambda queue=queue: [published(publisher, numbered(queue, 20)) for _ in range(20)]  # type: ignore[misc]
        for queue in names
    ]
    assert published(publisher, []) == []
    assert proxy.opened == 0
    works[0]()
    assert proxy.opened == 1
    together(works)
    assert 1 <= proxy.opened <= 3
    publisher.close()


def test_one_bad_message_of_a_thousand(queues: Queues) -> None:
    """RabbitMQ does not say which message it closed the channel for. The publisher finds it, and all others
    are accepted."""
    queue = queues.new()
    batch = numbered(queue, 1_000)
    batch[700] = envelope(queue, "bad", CC="x")
    publisher = RabbitPublisher(queues.url, timeout=30)
    outcomes = published(publisher, batch)
    publisher.close()
    refused = outcomes.pop(700)
    assert isinstance(refused, Refused)
    assert "PRECONDITION_FAILED" in refused.reason
    assert outcomes == [Accepted()] * 999
    assert len(set(queues.bodies(queue))) == 999


def test_a_missing_exchange_costs_one_attempt(queues: Queues, proxy: TcpProxy) -> None:
    """A missing exchange concerns all messages: none is sent again to find out which one caused the error."""
    publisher = through(proxy, exchange="nowhere")
    assert kinds(published(publisher, numbered("a", 300))) <= {Unknown, Unavailable}
    assert proxy.opened == 1
    publisher.close()


def test_no_right_to_publish(private_rabbitmq: LocalRabbit) -> None:
    """A missing permission concerns all messages, too. A message that was sent alone was certainly not
    taken."""
    with proxy_to(private_rabbitmq.url) as proxy:
        publisher = through(proxy, without_rights(private_rabbitmq))
        assert kinds(published(publisher, numbered("a", 300))) <= {Unknown, Unavailable}
        assert proxy.opened == 1
        (outcome,) = published(publisher, numbered("a", 1))
        assert isinstance(outcome, Unavailable)
        assert "ACCESS_REFUSED" in outcome.reason
        publisher.close()


def test_large_messages(queues: Queues) -> None:
    """Messages larger than a frame arrive whole, between small ones and in order."""
    queue = queues.new()
    payloads = ["small", "1" * 200_000, "", "2" * 400_000, *[LARGE] * 20, "last"]
    publisher = RabbitPublisher(queues.url)
    assert kinds(published(publisher, [envelope(queue, payload) for payload in payloads])) == {Accepted}
    publisher.close()
    assert queues.bodies(queue) == payloads


def test_a_connection_that_breaks_in_the_middle_of_a_batch(queues: Queues, proxy: TcpProxy) -> None:
    """When a connection breaks in the middle of a batch, confirmed messages are accepted, unwritten ones are
    unavailable, and only those written without a confirm are unknown."""
    queue = queues.new()
    publisher = through(proxy)
    batch = [envelope(queue, f"{number:03} {LARGE}") for number in range(1_000)]
    proxy.cut_on(lambda chunk: b"300 xx" in chunk, forward=False)
    outcomes = published(publisher, batch)
    assert proxy.was_cut.is_set()
    assert kinds(outcomes) == {Accepted, Unknown, Unavailable}
    is_written = [not isinstance(outcome, Unavailable) for outcome in outcomes]
    assert is_written == sorted(is_written, reverse=True)
    there = queues.count(queue)
    assert outcomes.count(Accepted()) <= there <= 300 < sum(is_written)
    assert published(publisher, [envelope(queue)]) == [Accepted()]
    publisher.close()
    wait_until(lambda: queues.count(queue) > there)
