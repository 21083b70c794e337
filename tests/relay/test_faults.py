"""Random faults while messages go from producers through relays to a consumer: the result is exact.

The faults are drawn from a seed, which is printed; set RELAY_FAULTS_SEED in the environment to repeat them.
"""

import pytest
from aiormq.abc import AbstractChannel

from tests.servers.rabbitmq import LocalRabbit
from tests.support.brokers.rabbit_queues import Queues
from tests.support.outbox_publishers import count
from tests.support.relay.crashes import MADE, TAKEN, arrivals, assert_exact, copy_in_rabbit, take
from tests.support.relay.faults import Run, Work
from tests.support.relay.lane_worker import slow_relay, spreading_producer
from tests.support.relay.worker import consumer, rabbit_consumer, rabbit_relay, relay

pytestmark = pytest.mark.mysql

pytest_plugins = ["tests.support.brokers.rabbit_fixtures", "tests.support.relay.fault_fixtures"]

LEASE, LEASE_WITH_RABBIT = 1.0, 2.0


@pytest.mark.long(but_on="8")
@pytest.mark.parametrize("faults", [8, 500])
def test_faults(run: Run, faults: int) -> None:
    """Producers, relays and the consumer are killed, or frozen past the lease and continued; connections are
    terminated, and PostgreSQL is killed. Every committed message is processed exactly once, the first copies
    of a key's messages arrive in order, and no message that was rolled back is ever seen."""

    def work(role: str, number: int) -> Work:
        if role == "producer":
            return run.producer(number)
        return (relay, run.url, f"{number}", LEASE) if role == "relay" else (consumer, run.url)

    run.go(work, faults, lambda: True)
    copies = arrivals(run.engine)
    for copy in copies:
        take(run.engine, copy)
    assert_exact(run.engine, copies)
    assert len(copies) >= count(run.engine, MADE) > faults


@pytest.mark.long(but_on="4")
@pytest.mark.parametrize("faults", [4, 300])
def test_faults_of_many_lanes(run: Run, faults: int) -> None:
    """The same while each relay sends dozens of slow batches, each to another topic, with several messages of
    a key in one batch; relays are also stopped. The order of a key holds across topics."""

    def work(role: str, number: int) -> Work:
        if role == "producer":
            return run.producer(number, spreading_producer)
        return (slow_relay, run.url, f"{number}", LEASE) if role == "relay" else (consumer, run.url)

    run.go(work, faults, lambda: True, {"stop a relay": 3, "kill": 4, "freeze": 2, "end a connection": 2})
    copies = arrivals(run.engine)
    for copy in copies:
        take(run.engine, copy)
    assert_exact(run.engine, copies)
    assert count(run.engine, MADE) > faults


@pytest.mark.long
@pytest.mark.parametrize("faults", [200])
def test_faults_of_rabbitmq(run: Run, private_rabbitmq: LocalRabbit, faults: int) -> None:
    """The same with RabbitMQ between relays and consumer; RabbitMQ is killed as well. The order is checked in
    a second queue, which has no reader meanwhile."""
    url = private_rabbitmq.url
    with Queues(url) as queues:
        exchange, queue, witness = "orders", queues.new(), queues.new()
        queues.do(lambda channel: spread(channel, exchange, queue, witness))

        def work(role: str, number: int) -> Work:
            if role == "producer":
                return run.producer(number)
            if role == "relay":
                return rabbit_relay, run.url, f"{number}", LEASE_WITH_RABBIT, url, exchange
            return rabbit_consumer, run.url, url, queue

        run.crashes["kill RabbitMQ"] = private_rabbitmq.restart
        run.go(work, faults, lambda: count(run.engine, TAKEN) >= count(run.engine, MADE))
        copies = [copy_in_rabbit(each) for each in queues.take(witness)]
    assert_exact(run.engine, copies)
    assert len(copies) >= count(run.engine, MADE) > faults


async def spread(channel: AbstractChannel, exchange: str, *queues: str) -> None:
    """Make an exchange deliver each message to all of the queues."""
    await channel.exchange_declare(exchange, exchange_type="fanout", durable=True)
    for queue in queues:
        await channel.queue_bind(queue, exchange)
