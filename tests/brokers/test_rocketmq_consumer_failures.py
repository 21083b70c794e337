"""RocketMQ's consumer with killed processes, and with a server that is killed, hangs or is away."""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing

import pytest

from inbox import Backoff, Delivery, Event, EventKind, Outcome, Verdict
from inbox.rocketmq import RocketMQConsumer
from outbox import Relay
from outbox.rocketmq import RocketMQPublisher
from tests.servers.rocketmq import LocalRocket
from tests.support import accounts
from tests.support.brokers.consumers import bookkeeping, payloads
from tests.support.brokers.rocketmq_consumers import consuming, send, url_of
from tests.support.brokers.rocketmq_proxy import RocketProxy
from tests.support.brokers.rocketmq_topics import Topics, envelope
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, count, publish
from tests.support.processes import wait_until
from tests.support.program import ROOT, run
from tests.support.together import Task

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]

NAMES = [f"account-{number}" for number in range(6)]
FORK = """
import os, sys, threading
from inbox import Outcome, Verdict
from inbox.errors import InboxError
from inbox.rocketmq import RocketMQConsumer
url, topic, group = sys.argv[1:]
seen = threading.Event()
def handle(message):
    seen.set()
    return Outcome(Verdict.NEW)
consumer = RocketMQConsumer(url, topic, handler=handle, group=group)
threading.Thread(target=consumer.run).start()
seen.wait(60)
if os.fork() == 0:
    try:
        RocketMQConsumer(url, topic, handler=handle, group=group).run()
    except InboxError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
consumer.stop()
"""


@pytest.mark.parametrize(
    ("point", "kind"), [("after accept", "FIFO"), ("before commit", "NORMAL"), ("after commit", "NORMAL")]
)
@pytest.mark.long(but_on="after commit-NORMAL")
def test_a_consumer_that_is_killed(rocketmq: Topics, postgres: Database, point: str, kind: str) -> None:
    """A consumer is killed with kill -9 between the inbox row and the handler, before COMMIT, or between
    COMMIT and the acknowledgement. Another consumer takes the rest, and every message takes effect once."""
    topic, group = rocketmq.new(kind), rocketmq.group(in_order=kind == "FIFO")
    accounts.make(postgres.engine(), NAMES)
    batch = [envelope(topic, NAMES[number % 6], key=str(number % 4)) for number in range(18)]
    send(rocketmq.address, batch, is_fifo=kind == "FIFO")
    worker = "tests.support.brokers.rocketmq_worker"
    command = [sys.executable, "-W", "error", "-m", worker, rocketmq.address, topic, group, point]
    url = postgres.url.render_as_string(hide_password=False)
    assert (
        subprocess.run(command, cwd=ROOT, input=f"{url}\n", text=True, timeout=60).returncode
        == -signal.SIGKILL
    )
    came, handler = set[str](), bookkeeping(postgres.engine())

    def note(message: Delivery) -> Outcome:
        outcome = handler(message)
        came.add(message.id)
        return outcome

    with consuming(rocketmq.address, topic, group, note, concurrency=2):
        wait_until(lambda: len(came) == 18)
    assert accounts.totals(postgres.engine()) == dict.fromkeys(NAMES, 3)
    assert rocketmq.dead(group) == []


@pytest.mark.long
@pytest.mark.parametrize("outage", ["kill", "freeze"])
def test_a_consumer_outlives_the_server(
    private_rocketmq: LocalRocket, postgres: Database, outage: str
) -> None:
    """The server is killed with kill -9 and restarted while messages are consumed, or hangs for longer than
    their invisible time. The consumer continues by itself, and every message takes effect once. Meanwhile it
    is live and not ready."""
    events: list[Event] = []
    engine, runs = postgres.engine(), Counter[str]()
    handler = bookkeeping(engine)

    def slowly(message: Delivery) -> Outcome:
        runs[message.id] += 1
        threading.Event().wait(0.02)
        return handler(message)

    with Topics(private_rocketmq.address, private_rocketmq.broker) as topics:
        topic, group = topics.new(), topics.group()
        accounts.make(engine, NAMES)
        send(topics.address, [envelope(topic, NAMES[number % 6]) for number in range(300)])
        options = {"concurrency": 2, "on_event": events.append}
        with consuming(topics.address, topic, group, slowly, **options) as consumer:
            wait_until(lambda: sum(accounts.totals(engine).values()) > 30)
            assert consumer.probe().is_ready
            if outage == "kill":
                private_rocketmq.kill()
                wait_until(lambda: not consumer.probe().is_ready)
                assert consumer.probe().is_live
                private_rocketmq.start()
            else:
                private_rocketmq.freeze()
                threading.Event().wait(12)
                private_rocketmq.thaw()
            wait_until(lambda: len(runs) == 300, timeout=120)
            wait_until(lambda: sum(accounts.totals(engine).values()) >= 300)
            send(topics.address, [envelope(topic, NAMES[number]) for number in range(6)])
            wait_until(lambda: len(runs) == 306)
        assert topics.dead(group) == []
    assert accounts.totals(engine) == dict.fromkeys(NAMES, 51)
    assert events[0].kind is EventKind.STARTED
    assert outage != "kill" or [each.kind.value for each in events[1:3]] == ["disconnected", "reconnected"]
    assert not consumer.probe().is_live


@pytest.mark.long  # the proxy and the name server need time to know a topic
def test_a_server_that_comes_back_empty(
    private_rocketmq: LocalRocket, postgres: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """While RocketMQ's topics and groups are missing, unsent messages stay in the outbox, and the consumer
    says what is missing. Once they are created again, relay and consumer continue by themselves, and every
    message that was still in the outbox takes effect once."""
    engine, address = postgres.engine(), private_rocketmq.address
    accounts.make(engine, NAMES)
    publisher = RocketMQPublisher(url_of(address), timeout=5)
    relay = Relay(engine, publisher, backoff=Backoff(longest=1))
    with Topics(address, private_rocketmq.broker) as topics, closing(publisher):
        topic, group = topics.new("FIFO"), topics.group(in_order=True)
        relaying = Task(relay.run)
        publish(engine, *NAMES, topic=topic)
        with consuming(address, topic, group, bookkeeping(engine)):
            wait_until(lambda: accounts.totals(engine) == dict.fromkeys(NAMES, 1))
            private_rocketmq.restart_empty()
            publish(engine, *NAMES, topic=topic)
            wait_until(lambda: "group not found" in caplog.text)
            wait_until(lambda: "TOPIC_NOT_FOUND" in caplog.text)
            topics.new("FIFO", name=topic)
            topics.group(in_order=True, name=group)
            wait_until(lambda: accounts.totals(engine) == dict.fromkeys(NAMES, 2), timeout=120)
        relay.stop()
        relaying.result()
    assert (count(engine, TABLES.message), count(engine, TABLES.dead)) == (0, 0)


def test_a_connection_that_ends_under_an_acknowledgement(rocketmq: Topics) -> None:
    """A message whose acknowledgement is interrupted is acknowledged on the next connection, and the waiting
    messages of its key run."""
    topic, group = rocketmq.new(queues=1), rocketmq.group()
    batch = [envelope(topic, key="k") for _ in range(3)]
    send(rocketmq.address, batch)
    runs, go = Counter[str](), threading.Event()

    def handle(message: Delivery) -> Outcome:
        runs[message.id] += 1
        go.wait(60)
        return Outcome(Verdict.NEW)

    with (
        RocketProxy(rocketmq.address) as proxy,
        consuming(f"127.0.0.1:{proxy.port}", topic, group, handle),
    ):
        wait_until(lambda: runs)
        proxy.stall_on(lambda chunk: next(iter(runs)).encode() in chunk)
        go.set()
        assert proxy.was_cut.wait(60)
        proxy.end_first_calls()
        wait_until(lambda: len(runs) == 3)


@pytest.mark.long
def test_a_topic_that_is_deleted(
    rocketmq: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When a topic is deleted, the consumer says so, and continues to receive from its other topic on the
    same connection. When the topic is created again, its messages are consumed, too."""
    monkeypatch.setattr("inbox._consuming.leased.consumer._REFRESH", 3_600)
    topic, other, group, seen = rocketmq.new(), rocketmq.new(), rocketmq.group(), list[bytes]()

    with (
        RocketProxy(rocketmq.address) as proxy,
        consuming(f"127.0.0.1:{proxy.port}", [topic, other], group, payloads(seen)),
    ):
        send(rocketmq.address, [envelope(topic, "1"), envelope(other, "2")])
        wait_until(lambda: len(seen) == 2)
        rocketmq.delete(topic)
        refused = f"cannot receive from topic {topic}"
        wait_until(lambda: refused in caplog.text)
        opened = proxy.opened
        wait_until(lambda: caplog.text.count(refused) > 4)
        send(rocketmq.address, [envelope(other, "3")])
        wait_until(lambda: seen[2:] == [b"3"])
        assert proxy.opened == opened
        rocketmq.new(name=topic)
        send(rocketmq.address, [envelope(topic, "4")])
        wait_until(lambda: seen[3:] == [b"4"])


def test_a_connection_without_answers(rocketmq: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a connection gives no answers, the consumer reconnects even if it cannot hold more messages:
    otherwise the invisible time of its messages would end."""
    module = "inbox._consuming.rocketmq"
    monkeypatch.setattr("inbox._consuming.leased.consumer._REFRESH", 3_600)
    monkeypatch.setattr(f"{module}.link._BEAT", 0.1)
    topic, group, runs, go = rocketmq.new(), rocketmq.group(), list[str](), threading.Event()
    send(rocketmq.address, [envelope(topic)])

    def handle(message: Delivery) -> Outcome:
        runs.append(message.id)
        go.wait(120)
        return Outcome(Verdict.NEW)

    with (
        RocketProxy(rocketmq.address) as proxy,
        consuming(f"127.0.0.1:{proxy.port}", topic, group, handle, prefetch=1, invisible=120),
    ):
        wait_until(lambda: runs)
        opened = proxy.opened
        proxy.stall_on(lambda _: True)
        wait_until(lambda: proxy.opened > opened)
        go.set()


def test_a_fork(rocketmq: Topics) -> None:
    """A process that was forked while its parent was connected gets an error that says so, instead of
    crashing. With gRPC's fork support it could crash even earlier."""
    topic, group = rocketmq.new(), rocketmq.group()
    send(rocketmq.address, [envelope(topic)])
    without = ["env", "GRPC_ENABLE_FORK_SUPPORT=0"]
    done = run([*without, sys.executable, "-c", FORK, url_of(rocketmq.address), topic, group])
    assert "was forked while its parent was connected to RocketMQ" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize("dead_letter", [True, False], ids=["a topic", "the group's own"])
def test_a_damaged_message(rocketmq: Topics, caplog: pytest.LogCaptureFixture, dead_letter: bool) -> None:
    """What a killed broker has left of a message that it was writing does not run, under whatever id: it goes
    to the group's dead letters. The message itself comes, since its publisher sends it again."""
    topic, group, runs = rocketmq.new(), rocketmq.group(), list[str]()

    def handle(message: Delivery) -> Outcome:
        runs.append(message.id)
        return Outcome(Verdict.NEW)

    message = envelope(topic, "cash")
    rocketmq.put_damaged(topic, message)
    send(rocketmq.address, [message])
    options = {"dead_letter": rocketmq.new()} if dead_letter else {}
    with consuming(rocketmq.address, topic, group, handle, **options):
        wait_until(lambda: runs and rocketmq.dead(group))
    assert runs == [message.id]
    (letter,) = rocketmq.dead(group)
    assert letter.body == b"cash"
    assert "damaged" in caplog.text


@pytest.mark.long
def test_a_proxy_that_is_gone(
    rocketmq: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two addresses one does not answer any more: the consumer receives from the other one, says so, and
    tries the first one no more."""
    monkeypatch.setattr("inbox._consuming.leased.consumer._REFRESH", 1)
    topic, group, seen = rocketmq.new(), rocketmq.group(), list[bytes]()

    with ExitStack() as one, ExitStack() as other:
        proxies = {stack: stack.enter_context(RocketProxy(rocketmq.address)) for stack in (one, other)}
        going = min(proxies, key=lambda stack: str(proxies[stack].port))  # the client sorts them
        addresses = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies.values())
        with consuming(addresses, topic, group, payloads(seen)):
            send(rocketmq.address, [envelope(topic, "1")])
            wait_until(lambda: seen == [b"1"])
            going.close()
            send(rocketmq.address, [envelope(topic, "2")])
            wait_until(lambda: seen[1:] == [b"2"])
            wait_until(lambda: f"{proxies[going].port} is gone" in caplog.text)
            failures = caplog.text.count("cannot connect")
            send(rocketmq.address, [envelope(topic, "3")])
            wait_until(lambda: seen[2:] == [b"3"])
            time.sleep(3)  # for tries that must not be made
            assert caplog.text.count("cannot connect") == failures


def test_a_limit_that_is_lowered(
    rocketmq: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer logs an error, once, when an operator makes the group's limit smaller than its own, and
    goes on."""
    monkeypatch.setattr("inbox._consuming.leased.consumer._REFRESH", 0.5)
    topic, group, seen = rocketmq.new(), rocketmq.group(), list[bytes]()

    with consuming(rocketmq.address, topic, group, payloads(seen), max_attempts=3):
        send(rocketmq.address, [envelope(topic, "1")])
        wait_until(lambda: seen == [b"1"])
        assert "retryMaxTimes" not in caplog.text
        rocketmq.group(name=group, retries=2)
        wait_until(lambda: f"group {group!r} has retryMaxTimes=2" in caplog.text)
        send(rocketmq.address, [envelope(topic, "2")])
        wait_until(lambda: seen[1:] == [b"2"])
    assert caplog.text.count("has retryMaxTimes=2") == 1


@pytest.mark.long
def test_a_stop_while_the_server_hangs(private_rocketmq: LocalRocket) -> None:
    """`run` returns although RocketMQ answers nothing; what it could not acknowledge comes again."""
    runs, go = list[str](), threading.Event()

    def handle(message: Delivery) -> Outcome:
        runs.append(message.id)
        go.wait(60)
        return Outcome(Verdict.NEW)

    with Topics(private_rocketmq.address, private_rocketmq.broker) as topics:
        topic, group = topics.new(), topics.group()
        message = envelope(topic)
        send(topics.address, [message])
        consumer = RocketMQConsumer(url_of(topics.address), topic, handle, group=group, grace=1, invisible=10)
        running = Task(consumer.run)
        wait_until(lambda: runs)
        private_rocketmq.freeze()
        try:
            go.set()
            consumer.stop()
            running.result()
        finally:
            private_rocketmq.thaw()
        with consuming(topics.address, topic, group, handle):
            wait_until(lambda: runs == [message.id] * 2)


def test_a_handler_that_fails_after_the_stop(rocketmq: Topics, caplog: pytest.LogCaptureFixture) -> None:
    """What a handler does after its grace is logged, and not taken for an error of the consumer."""
    begun, go = threading.Event(), threading.Event()

    def handle(_: Delivery) -> Outcome:
        begun.set()
        go.wait(60)
        raise ValueError("too late")

    topic, group = rocketmq.new(), rocketmq.group()
    send(rocketmq.address, [envelope(topic)])
    with consuming(rocketmq.address, topic, group, handle, grace=0.1):
        assert begun.wait(60)
    go.set()
    wait_until(lambda: "its handler ended after the message was given back" in caplog.text)
    assert "raised an error" not in caplog.text
