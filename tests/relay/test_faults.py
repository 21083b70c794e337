"""Random faults while messages go from producers through relays to a consumer: it ends exact.

The faults are drawn from a seed, which is printed; RELAY_FAULTS_SEED in the environment repeats them.
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiormq.abc import AbstractChannel
from sqlalchemy import URL, Engine, create_engine

from examples.embedded_postgres import EmbeddedPostgres
from tests.servers.rabbitmq import LocalRabbit
from tests.support.outbox_publishers import TABLES, count
from tests.support.rabbit_queues import Queues
from tests.support.relay_crashes import MADE, METADATA, TAKEN, arrivals, assert_exact, take
from tests.support.relay_faults import Cast, Faults, Work
from tests.support.relay_worker import consumer, producer, rabbit_consumer, rabbit_relay, relay
from tests.support.status_workers import wait_until

pytestmark = pytest.mark.mysql

pytest_plugins = ["tests.support.rabbit_fixtures"]

FAULTS_WITH_RABBIT = 25
LEASE, LEASE_WITH_RABBIT = 1.0, 2.0
END = 180
"""Seconds in which everything has to arrive, once there are no more faults."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a message that RabbitMQ was sent."""

    key: str
    number: int
    message: str


class Run:
    """Processes at work on one database, and faults that happen to them."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.seed = int(os.environ.get("RELAY_FAULTS_SEED") or random.randrange(10**6))
        print(f"RELAY_FAULTS_SEED={self.seed}")
        self.url: URL = server.url
        self.engine: Engine = create_engine(server.url, pool_pre_ping=True)
        self.crashes: dict[str, Callable[[], None]] = {"kill PostgreSQL": server.restart}
        METADATA.create_all(self.engine)

    def go(self, work: Callable[[str, int], Work], faults: int, is_taken: Callable[[], bool]) -> None:
        """Let processes work, and so many faults happen; then let arrive what is on its way."""

        def work_of(role: str, number: int) -> Work:
            if role == "producer":
                return producer, self.url, f"p{number}", self.seed + number
            return work(role, number)

        cast = Cast(work_of)
        drawn = Faults(self.seed, cast, self.engine, self.crashes)
        try:
            drawn.happen(faults)
            cast.end("producer")
            wait_until(lambda: count(self.engine, TABLES.message) == 0, END)
            cast.end("relay")
            wait_until(is_taken, END)
        finally:
            cast.close()
        print(f"{drawn.happened}, {count(self.engine, MADE)} messages")


@pytest.fixture
def run(private_postgres: EmbeddedPostgres) -> Iterator[Run]:
    """A run whose PostgreSQL is killed, too."""
    run = Run(private_postgres)
    yield run
    run.engine.dispose()


@pytest.mark.long(but_on="40")
@pytest.mark.parametrize("faults", [40, 500])
def test_faults(run: Run, faults: int) -> None:
    """Producers, relays and the consumer are killed, or frozen past the lease and continued; connections are
    ended, and PostgreSQL is killed. Every committed message is taken exactly once, those of a key first
    arrive in their order, and none that was rolled back is ever seen."""

    def work(role: str, number: int) -> Work:
        return (relay, run.url, f"{number}", LEASE) if role == "relay" else (consumer, run.url)

    run.go(work, faults, lambda: True)
    copies = arrivals(run.engine)
    for copy in copies:
        take(run.engine, copy)
    assert_exact(run.engine, copies)
    assert len(copies) >= count(run.engine, MADE) > faults


def test_faults_of_rabbitmq(run: Run, private_rabbitmq: LocalRabbit) -> None:
    """The same with RabbitMQ between relays and consumer, which is killed as well. The order is that of a
    second queue, which nobody reads meanwhile."""
    url = private_rabbitmq.url
    with Queues(url) as queues:
        exchange, queue, witness = "orders", queues.new(), queues.new()
        queues.do(lambda channel: spread(channel, exchange, queue, witness))

        def work(role: str, number: int) -> Work:
            if role == "relay":
                return rabbit_relay, run.url, f"{number}", LEASE_WITH_RABBIT, url, exchange
            return rabbit_consumer, run.url, url, queue

        run.crashes["kill RabbitMQ"] = private_rabbitmq.restart
        run.go(work, FAULTS_WITH_RABBIT, lambda: count(run.engine, TAKEN) >= count(run.engine, MADE))
        copies = [copy_of(message) for message in queues.take(witness)]
    assert_exact(run.engine, copies)
    assert len(copies) >= count(run.engine, MADE) > FAULTS_WITH_RABBIT


async def spread(channel: AbstractChannel, exchange: str, *queues: str) -> None:
    """Let an exchange put each message into all of the queues."""
    await channel.exchange_declare(exchange, exchange_type="fanout", durable=True)
    for queue in queues:
        await channel.queue_bind(queue, exchange)


def copy_of(message: Any) -> Copy:
    """What RabbitMQ was sent."""
    properties = message.header.properties
    return Copy(properties.headers["outbox-key"], int(message.body), properties.message_id)
