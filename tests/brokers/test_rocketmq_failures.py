"""The publisher for RocketMQ with a server that is away, or whose answer is lost."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from outbox import Accepted, Unavailable, Unknown
from outbox.rocketmq import RocketMQPublisher
from tests.servers.rocketmq import LocalRocket
from tests.support.answers import published
from tests.support.brokers.rocketmq_proxy import RocketProxy
from tests.support.brokers.rocketmq_topics import Topics, envelope
from tests.support.processes import wait_until
from tests.support.program import ROOT

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]

HERE = b"this message"
TIMEOUT = 4.0
FORK = """
import os, sys
from inbox_outbox_base.brokers.rocketmq import forking
from outbox.rocketmq import RocketMQPublisher
from tests.support.answers import published
from tests.support.program import ROOT
from tests.support.brokers.rocketmq_topics import envelope
url, topic, support = sys.argv[1:]
publisher = RocketMQPublisher(url, timeout=4)
print(*published(publisher, [envelope(topic)]), flush=True)
if support == "1":
    forking.begin()  # as a consumer does when it connects
if os.fork() == 0:
    print(*published(publisher, [envelope(topic)]), flush=True)
    os._exit(0)
os.wait()
publisher.close()
"""


@pytest.fixture
def proxy(rocketmq: Topics) -> Iterator[RocketProxy]:
    """A proxy between a client and RocketMQ."""
    with RocketProxy(rocketmq.address) as proxy:
        yield proxy


def sends(proxy: RocketProxy) -> RocketMQPublisher:
    """A publisher that sends through the proxy."""
    return RocketMQPublisher(f"rocketmq://127.0.0.1:{proxy.port}", timeout=TIMEOUT)


def is_here(chunk: bytes) -> bool:
    """Whether this chunk contains the marked message."""
    return HERE in chunk


def test_a_server_that_goes_away_between_sends(
    rocketmq: Topics, proxy: RocketProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each send, the publisher asks the proxy again. If the server is gone, nothing is sent, even
    though the publisher was connected."""
    monkeypatch.setattr("outbox._publishers.rocketmq.proxies._FRESH", 0.0)
    topic = rocketmq.new()
    with closing(sends(proxy)) as publisher:
        assert published(publisher, [envelope(topic)]) == [Accepted()]
        proxy.__exit__(None, None, None)
        outcomes = published(publisher, [envelope(topic) for _ in range(5)])
    assert {type(each) for each in outcomes} == {Unavailable}
    assert len(rocketmq.stored(topic)) == 1


@pytest.mark.long(but_on="1")
@pytest.mark.parametrize("support", ["0", "1"])
def test_a_fork_that_grpc_does_not_support(rocketmq: Topics, support: str) -> None:
    """A forked process would crash if its parent had a consumer, or if gRPC's fork support is off: nothing is
    sent, and the reason says why."""
    topic, environment = rocketmq.new(), os.environ | {"GRPC_ENABLE_FORK_SUPPORT": support}
    command = [sys.executable, "-c", FORK, f"rocketmq://{rocketmq.address}", topic, support]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    first, child = done.stdout.splitlines()
    assert first == "Accepted()"
    assert child.startswith('Unavailable(reason="not sent: this process was forked while its parent')
    assert len(rocketmq.stored(topic)) == 1


@pytest.mark.parametrize("forward", [True, False])
def test_a_lost_answer(rocketmq: Topics, proxy: RocketProxy, forward: bool) -> None:
    """When the connection breaks after a message was sent, the message is unknown. The next send sends it
    again, with the same id."""
    topic = rocketmq.new("FIFO")
    message = envelope(topic, HERE, key="k")
    with closing(sends(proxy)) as publisher:
        assert published(publisher, [envelope(topic, "first", key="k")]) == [Accepted()]
        proxy.cut_on(is_here, forward=forward)
        first, second = published(publisher, [message, envelope(topic, "behind it", key="k")])
        assert (type(first), type(second)) == (Unknown, Unavailable)
        assert proxy.was_cut.is_set()
        wait_until(lambda: published(publisher, [message]) == [Accepted()])
    stored = rocketmq.stored(topic)
    assert [each.body for each in stored] == [b"first", *[HERE] * (2 if forward else 1)]
    assert {each.properties["outbox-id"] for each in stored[1:]} == {message.id}


def test_an_answer_that_does_not_come(rocketmq: Topics, proxy: RocketProxy) -> None:
    """When the time limit is over, the message is unknown, and later messages of its key have not been sent.
    The next send uses a new connection."""
    topic = rocketmq.new("FIFO")
    message = envelope(topic, HERE, key="k")
    with closing(sends(proxy)) as publisher:
        proxy.stall_on(is_here)
        first, second = published(publisher, [message, envelope(topic, "behind it", key="k")])
        assert (type(first), type(second)) == (Unknown, Unavailable)
        wait_until(lambda: published(publisher, [message]) == [Accepted()])
    assert [each.body for each in rocketmq.stored(topic)] == [HERE] * 2
    assert proxy.opened > 1


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
