"""Random faults while relays send many messages of each key in one batch to RocketMQ: the result is exact."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from sqlalchemy import Engine, insert

from inbox import Inbox, Verdict
from tests.servers.rocketmq import LocalRocket
from tests.support.brokers.rocketmq_relay import rocketmq_relay
from tests.support.brokers.rocketmq_topics import Topics
from tests.support.outbox_publishers import count
from tests.support.relay.crashes import MADE, TAKEN, assert_exact
from tests.support.relay.faults import FROZEN, Run, Work
from tests.support.relay.worker import consumer, hot_producer
from tests.support.together import Task

pytestmark = pytest.mark.mysql

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures", "tests.support.relay.fault_fixtures"]

LEASE = 3.0
OFTEN = {"kill": 4, "freeze": 2, "end a connection": 2}
"""With these weights, any eleven faults crash PostgreSQL, and crash and freeze RocketMQ."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a message in RocketMQ."""

    key: str
    number: int
    message: str


class Faults:
    """Kills or freezes RocketMQ, which recovers while other faults happen."""

    def __init__(self, server: LocalRocket) -> None:
        self._server = server
        self._recovery = Task(lambda: None)

    def kill(self) -> None:
        """Kill RocketMQ with kill -9."""
        self.end()
        self._server.kill()
        self._recovery = Task(self._server.start)

    def freeze(self) -> None:
        """Freeze RocketMQ for a while."""
        self.end()
        self._server.freeze()
        self._recovery = Task(self._thaw)

    def end(self) -> None:
        """Wait until RocketMQ answers."""
        self._recovery.result()

    def _thaw(self) -> None:
        time.sleep(FROZEN)
        self._server.thaw()


@pytest.mark.long
@pytest.mark.parametrize("faults", [11, 200])
def test_faults_of_rocketmq(run: Run, private_rocketmq: LocalRocket, faults: int) -> None:
    """Producers and relays are killed, or frozen past the lease and continued; connections are terminated,
    PostgreSQL and RocketMQ are killed, and RocketMQ is frozen. Every committed message is in RocketMQ under
    its id, the messages of a key in one queue and in order; no message that was rolled back is there."""
    rocket = Faults(private_rocketmq)
    run.crashes |= {"kill RocketMQ": rocket.kill, "freeze RocketMQ": rocket.freeze}
    with Topics(private_rocketmq.address, private_rocketmq.broker) as topics:
        names = [topics.new("FIFO", queues=2) for _ in range(3)]

        def work(role: str, number: int) -> Work:
            if role == "producer":
                return run.producer(number, hot_producer, names)
            if role == "relay":
                return rocketmq_relay, run.url, f"{number}", LEASE, private_rocketmq.address
            return consumer, run.url

        try:
            run.go(work, faults, lambda: True, OFTEN)
        finally:
            rocket.end()
        stored = [message for name in names for message in topics.stored(name)]
    copies = [
        Copy(each.properties["outbox-key"], int(each.body), each.properties["outbox-id"]) for each in stored
    ]
    take_all(run.engine, copies)
    assert_exact(run.engine, copies)
    assert len(copies) >= len({copy.message for copy in copies}) == count(run.engine, MADE) > faults


def take_all(engine: Engine, copies: Sequence[Copy]) -> None:
    """Take the copies through an inbox in batches; one by one would take minutes."""
    inbox = Inbox("orders")
    for begin in range(0, len(copies), 1_000):
        some = copies[begin : begin + 1_000]
        with engine.begin() as connection:
            verdicts = inbox.accept_many(connection, [copy.message for copy in some])
            new = [copy for copy, verdict in zip(some, verdicts, strict=True) if verdict is Verdict.NEW]
            if new:
                taken = [{"key": copy.key, "number": copy.number} for copy in new]
                connection.execute(insert(TAKEN), taken)
