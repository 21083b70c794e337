"""RocketMQ's publisher passes the conformance suite; and a server that starts to hang in the middle of a
send."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery
from outbox import Accepted, Envelope, Unavailable, Unknown
from outbox.rocketmq import AsyncRocketMQPublisher, RocketMQPublisher
from outbox.testing import PublisherSuite
from tests.servers.rocketmq import LocalRocket
from tests.support.answers import published
from tests.support.brokers.rocketmq_topics import Topics, delivery_of, envelope
from tests.support.cli import line
from tests.support.database import Database
from tests.support.outbox_publishers import publish
from tests.support.processes import wait_until
from tests.support.program import ROOT

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]

TIMEOUT = 3.0


class RocketServer:
    """The server, and the methods with which the suites control it."""

    @pytest.fixture(autouse=True)
    def _server(self, private_rocketmq: LocalRocket) -> Iterator[None]:
        self.server = private_rocketmq
        with Topics(private_rocketmq.address, private_rocketmq.broker) as self.topics:
            yield

    def new_topic(self) -> str:
        return self.topics.new("FIFO")

    def freeze(self) -> None:
        self.server.freeze()

    def thaw(self) -> None:
        self.server.thaw()

    def kill(self) -> None:
        self.server.crash()

    def start(self) -> None:
        self.server.start()


class TestRocketMQPublisher(RocketServer, PublisherSuite):
    """The synchronous publisher."""

    kills = 1  # each takes seconds

    def publisher(self) -> RocketMQPublisher:
        return RocketMQPublisher(f"rocketmq://{self.server.address}", timeout=TIMEOUT)

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        return [delivery_of(stored, topic) for stored in self.topics.stored(topic)]

    def refused(self, topic: str) -> Envelope:
        return self.envelope(topic, size="x" * 20_000)

    def missing_topic(self) -> str:
        return f"missing-{uuid4()}"

    @pytest.mark.long
    def test_a_killed_server(self) -> None:
        """Long, because RocketMQ takes longer to start than the other servers."""
        super().test_a_killed_server()

    def unreachable(self) -> RocketMQPublisher:
        url = f"rocketmq://me:{self.secret}@127.0.0.1:{free_port()}"
        return RocketMQPublisher(url, timeout=TIMEOUT)


@pytest.mark.long  # beside the synchronous one, which has the same core
class TestAsyncRocketMQPublisher(TestRocketMQPublisher):
    """The asynchronous publisher."""

    def publisher(self) -> AsyncRocketMQPublisher:  # type: ignore[override]
        return AsyncRocketMQPublisher(f"rocketmq://{self.server.address}", timeout=TIMEOUT)


def test_a_server_that_hangs(private_rocketmq: LocalRocket) -> None:
    """If the server hangs, a send sends nothing; if it starts to hang during a send, that send still ends
    within its time limit. Both continue when the server does."""
    with (
        Topics(private_rocketmq.address, private_rocketmq.broker) as topics,
        closing(RocketMQPublisher(f"rocketmq://{private_rocketmq.address}", timeout=TIMEOUT)) as publisher,
    ):
        topic = topics.new("FIFO")
        answers = publisher.send([envelope(topic, f"{number}", "k") for number in range(10_000)])
        assert next(answers) == (0, Accepted())
        private_rocketmq.freeze()
        try:
            kinds = [type(outcome) for _, outcome in answers]
            begun = [kind for kind in kinds if kind is not Accepted]
            assert begun[0] is Unknown
            assert set(begun[1:]) == {Unavailable}
            (outcome,) = published(publisher, [envelope(topic, "hanging", "k")])
            assert isinstance(outcome, Unavailable)
        finally:
            private_rocketmq.thaw()
        taken = 1 + kinds.count(Accepted)
        wait_until(lambda: published(publisher, [envelope(topic, "last", "k")]) == [Accepted()])
        bodies = [each.body for each in topics.stored(topic)]
    assert bodies[:taken] == [b"%d" % number for number in range(taken)]
    assert set(bodies[taken:]) <= {b"%d" % taken, b"last"}


@pytest.mark.parametrize("is_trusted", [True, False])
def test_tls(private_rocketmq: LocalRocket, postgres: Database, is_trusted: bool) -> None:
    """With rocketmqs:// messages are sent encrypted, and only to a server whose certificate can be
    verified."""
    environment = (
        {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(private_rocketmq.certificate)} if is_trusted else {}
    )
    with Topics(private_rocketmq.address, private_rocketmq.broker) as topics:
        topic = topics.new()
        publish(postgres.engine(), "a1", topic=topic)
        to = f"rocketmqs://{private_rocketmq.address}"
        command = line(
            "outbox", "drain", "--to", to, "--timeout", "60s" if is_trusted else "5s", url=postgres.url
        )
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == (0 if is_trusted else 4)
        assert ("CERTIFICATE_VERIFY_FAILED" in done.stderr) is not is_trusted
        assert len(topics.stored(topic)) == is_trusted
