"""Login and TLS with RocketMQ's publisher and consumer."""

import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from inbox.errors import InvalidOption
from inbox.rocketmq import RocketMQConsumer
from outbox import Accepted, Unavailable
from outbox.errors import UnsafeBroker
from outbox.rocketmq import RocketMQPublisher
from tests.servers.rocketmq import LocalRocket, program
from tests.support.answers import published
from tests.support.brokers.consumers import payloads
from tests.support.brokers.rocketmq_consumers import consuming, send
from tests.support.brokers.rocketmq_topics import Topics, envelope
from tests.support.cli import line
from tests.support.database import Database
from tests.support.outbox_publishers import publish
from tests.support.present import present
from tests.support.processes import wait_until
from tests.support.program import run

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]

CONSUMER = """
import sys
from inbox import Outcome, Verdict
from inbox.rocketmq import RocketMQConsumer
url, topic, group = sys.argv[1:]
def handle(message):
    print(message.payload.decode())
    consumer.stop()
    return Outcome(Verdict.NEW)
consumer = RocketMQConsumer(url, topic, handle, group=group)
consumer.run()
"""


@pytest.fixture
def guarded() -> Iterator[LocalRocket]:
    """A server that requires a login."""
    server = LocalRocket(present("rocketmq", program()), ("me", "s3cr3t"))
    yield server
    server.stop()


def roots(server: LocalRocket, *, is_trusted: bool) -> list[str]:
    """What goes before a command, so that gRPC trusts the server's certificate."""
    return ["env", *([f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={server.certificate}"] if is_trusted else [])]


@pytest.mark.long(but_on="True")
@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_publisher_with_tls(private_rocketmq: LocalRocket, postgres: Database, is_trusted: bool) -> None:
    """With rocketmqs:// messages are sent encrypted, and only to a server whose certificate can be
    verified."""
    with Topics(private_rocketmq.address, private_rocketmq.broker) as topics:
        topic = topics.new()
        publish(postgres.engine(), "a1", topic=topic)
        options = ("--to", f"rocketmqs://{topics.address}", "--timeout", "60s" if is_trusted else "5s")
        command = line("outbox", "drain", *options, url=postgres.url)
        done = run([*roots(private_rocketmq, is_trusted=is_trusted), *command])
        assert done.returncode == (0 if is_trusted else 4)
        assert ("CERTIFICATE_VERIFY_FAILED" in done.stderr) is not is_trusted
        assert len(topics.stored(topic)) == is_trusted


@pytest.mark.long
@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_consumer_with_tls(private_rocketmq: LocalRocket, is_trusted: bool) -> None:
    """With rocketmqs:// messages are received encrypted, and only from a server whose certificate can be
    verified."""
    with Topics(private_rocketmq.address, private_rocketmq.broker) as topics:
        topic, group = topics.new(), topics.group()
        send(topics.address, [envelope(topic, "a1")])
        url = f"rocketmqs://{topics.address}"
        command = [sys.executable, "-c", CONSUMER, url, topic, group]
        done = run([*roots(private_rocketmq, is_trusted=is_trusted), *command])
    assert (done.returncode, done.stdout) == ((0, "a1\n") if is_trusted else (1, ""))
    assert ("CERTIFICATE_VERIFY_FAILED" in done.stderr) is not is_trusted


@pytest.mark.long  # a server of its own
def test_a_login(guarded: LocalRocket) -> None:
    """With a wrong login a relay and a consumer do not start, and the error does not contain the secret;
    nothing is sent. With the right one, messages are sent and received."""
    seen: list[bytes] = []

    with Topics(guarded.address, guarded.broker) as topics:
        topic, group = topics.new(), topics.group()
        for login in ("", "me:Wr0ng@", "you:s3cr3t@"):
            url = f"rocketmq://{login}{guarded.address}"
            with closing(RocketMQPublisher(url)) as publisher:
                with pytest.raises(UnsafeBroker, match="RocketMQ refuses the login: UNAUTHORIZED") as unsafe:
                    publisher.check(30)
                (outcome,) = published(publisher, [envelope(topic, "never")])
            with pytest.raises(InvalidOption, match=r"^url: RocketMQ refuses the login: UNAUTH") as refused:
                RocketMQConsumer(url, topic, payloads(seen), group=group).run()
            assert isinstance(outcome, Unavailable)
            said = f"{unsafe.value} {outcome} {refused.value}"
            assert "s3cr3t" not in said
            assert "Wr0ng" not in said
        place = f"me:s3cr3t@{guarded.address}"
        with closing(RocketMQPublisher(f"rocketmq://{place}")) as publisher:
            publisher.check(30)
            assert published(publisher, [envelope(topic, "a1")]) == [Accepted()]
        with consuming(place, topic, group, payloads(seen)):
            wait_until(lambda: seen == [b"a1"])
