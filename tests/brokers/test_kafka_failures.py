"""Kafka and its connections fail while messages are published: every outcome stays true."""

import threading
import time

import pytest

from inbox import Delivery, Event, Verdict
from inbox import Outcome as Taken
from inbox.kafka import KafkaConsumer
from outbox import Accepted, Outcome, Unavailable, Unknown
from outbox.kafka import KafkaPublisher
from tests.servers.kafka import LocalKafka
from tests.support.answers import published
from tests.support.brokers.consumers import running
from tests.support.brokers.kafka_consumers import consumer
from tests.support.brokers.kafka_topics import WAIT, Topics, envelope, id_of, values, wait_until
from tests.support.proxy import TcpProxy

pytest_plugins = ["tests.support.brokers.kafka_fixtures"]

ONCE = {"enable.idempotence": False, "max.in.flight": 1, "retries": 0}
"""Settings with which the client sends everything once."""


def publisher(address: str, timeout: float = 10, **settings: object) -> KafkaPublisher:
    config = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaPublisher({"bootstrap.servers": address, **config}, timeout=timeout)


def kinds(outcomes: list[Outcome]) -> set[type[Outcome]]:
    return {type(each) for each in outcomes}


def test_the_broker_is_away_when_a_relay_starts(private_kafka: LocalKafka) -> None:
    """Messages sent while no broker answers are never written. Once one answers, new messages are
    accepted."""
    with Topics(private_kafka.address) as topics:
        topic = topics.new()
        private_kafka.kill()
        sender = publisher(private_kafka.address, 2)
        sender.check(30)
        for value in "ab":
            assert kinds(published(sender, [envelope(topic, value)])) == {Unavailable}
        private_kafka.start()
        wait_until(lambda: published(sender, [envelope(topic, "c")]) == [Accepted()])
        assert values(topics.log(topic)) == ["c"]


def test_the_broker_hangs(private_kafka: LocalKafka) -> None:
    """While the broker hangs, `send` returns: messages already sent are unknown, and later ones are certainly
    not written. When the broker continues, no message that was given up is sent."""
    with Topics(private_kafka.address) as topics:
        topic = topics.new()
        # One message a request, and one request at a time: the others wait inside the client.
        waiting = {"max_in_flight": 1, "batch_num_messages": 1}
        sender = publisher(private_kafka.address, 2, **waiting)
        assert published(sender, [envelope(topic, "before")]) == [Accepted()]
        private_kafka.freeze()
        try:
            outcomes = [
                published(sender, [envelope(topic, f"{n}-{i}", f"{i}") for i in range(9)]) for n in range(3)
            ]
        finally:
            private_kafka.thaw()
        assert [kinds(each) for each in outcomes] == [{Unknown}, {Unavailable}, {Unavailable}]
        wait_until(lambda: published(sender, [envelope(topic, "after")]) == [Accepted()])
        written = values(topics.log(topic))
        assert {"before", "after"} <= set(written) <= {"before", "0-0", "after"}


def test_nothing_leaves_after_its_answer(private_kafka: LocalKafka) -> None:
    """A message reported as unknown is not sent later, even if the caller reads the answers slowly."""
    with Topics(private_kafka.address) as topics:
        topic = topics.new()
        sender = publisher(private_kafka.address, 2, max_in_flight=1, batch_num_messages=1)
        assert published(sender, [envelope(topic, "before")]) == [Accepted()]
        private_kafka.freeze()
        try:
            answers = sender.send([envelope(topic, f"{number}", f"{number}") for number in range(9)])
            assert isinstance(next(answers)[1], Unknown)
        finally:
            private_kafka.thaw()
        wait_until(lambda: len(topics.log(topic)) > 1)
        time.sleep(0.5)  # for messages that must not arrive
        assert kinds([outcome for _, outcome in answers]) == {Unknown}
        assert values(topics.log(topic)) == ["before", "0"]


@pytest.mark.parametrize("timeout", [0.5, 3])
def test_how_long_a_send_takes(private_kafka: LocalKafka, timeout: float) -> None:
    """`send` returns within its time limit whatever the broker does, so a lease can be longer."""
    with Topics(private_kafka.address) as topics:
        topic, sender = topics.new(), publisher(private_kafka.address, timeout)
        wait_until(lambda: published(sender, [envelope(topic, "before")]) == [Accepted()])
        private_kafka.freeze()
        try:
            for _ in range(2):
                send = threading.Thread(target=published, args=(sender, [envelope(topic, "a")]))
                send.start()
                send.join(timeout + 2)  # two seconds for a machine that is busy
                assert not send.is_alive()
        finally:
            private_kafka.thaw()


@pytest.mark.parametrize(
    ("settings", "forward", "outcome", "copies"),
    [
        ({}, True, Accepted, 1),
        ({}, False, Accepted, 1),
        (ONCE, True, Unknown, 1),
        (ONCE, False, Unknown, 0),
    ],
)
def test_the_answer_gets_lost(
    proxied_kafka: tuple[Topics, TcpProxy],
    settings: dict[str, object],
    forward: bool,
    outcome: type[Outcome],
    copies: int,
) -> None:
    """When the connection breaks while a message is sent, the idempotent producer sends it again, and it is
    written once. A client that sends only once reports the message as unknown. When the caller sends it
    again, it is accepted."""
    topics, proxy = proxied_kafka
    topic, sender = topics.new(), publisher(topics.address, 5, **settings)
    wait_until(lambda: published(sender, [envelope(topic, "before")]) == [Accepted()])
    message = envelope(topic, "the message")
    proxy.cut_on(lambda chunk: message.id.encode() in chunk, forward=forward)
    assert kinds(published(sender, [message])) == {outcome}
    assert proxy.was_cut.is_set()
    assert _ids(topics, topic).count(message.id) == copies
    wait_until(lambda: published(sender, [message]) == [Accepted()])
    assert _ids(topics, topic).count(message.id) == copies + 1


def test_a_consumer_is_stopped_while_the_broker_hangs(private_kafka: LocalKafka) -> None:
    """The consumer stops after `grace` and does not wait for a broker that does not answer its commit."""
    with Topics(private_kafka.address) as topics:
        topic, taken = topics.new(), threading.Event()
        topics.put(topic, *map(str, range(1_000)))

        def take(delivery: Delivery) -> Taken:
            time.sleep(0.01)
            taken.set()
            return Taken(Verdict.NEW)

        stopping = consumer(private_kafka.address, topic, take, batch=2, grace=1)
        thread = threading.Thread(target=stopping.run)
        thread.start()
        assert taken.wait(WAIT)
        private_kafka.freeze()
        try:
            time.sleep(0.5)  # for commits that get no answer
            stopping.stop()
            thread.join(WAIT)
            assert not thread.is_alive()
        finally:
            private_kafka.thaw()
        wait_until(lambda: "inbox kafka leaves" not in [each.name for each in threading.enumerate()])


def test_a_consumer_that_loses_the_broker(private_kafka: LocalKafka) -> None:
    """While no broker answers it is live and not ready, and afterwards it is ready again, without a message;
    the caller's own `error_cb` is called as well."""
    events: list[Event] = []
    errors: list[object] = []
    with Topics(private_kafka.address) as topics:
        topic = topics.new()
        config = {
            "bootstrap.servers": private_kafka.address,
            "group.id": "lost",
            "error_cb": errors.append,
            "reconnect.backoff.max.ms": 500,
        }
        with running(KafkaConsumer(config, topic, take, on_event=events.append)) as losing:
            wait_until(lambda: losing.probe().is_ready)
            private_kafka.kill()
            wait_until(lambda: not losing.probe().is_ready)
            assert losing.probe().is_live
            private_kafka.start()
            wait_until(lambda: losing.probe().is_ready)
    assert not losing.probe().is_live
    kinds = [each.kind.value for each in events if each.topic == topic]
    assert kinds[:3] == ["started", "disconnected", "reconnected"]
    assert errors


def take(_: object) -> Taken:
    return Taken(Verdict.NEW)


def _ids(topics: Topics, topic: str) -> list[str]:
    return [id_of(record) for record in topics.log(topic)]
