"""Kafka partitions without a leader: everything else that a KafkaPublisher sends at the same time goes on."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inbox import Backoff
from outbox import Accepted, Envelope, Message, Outbox, Outcome, Relay, Unavailable, Unknown
from outbox.kafka import KafkaPublisher
from tests.servers.kafka import LocalKafka
from tests.support.answers import published
from tests.support.brokers.kafka_relaying import Relaying, kinds, written
from tests.support.brokers.kafka_topics import Topics, envelope, wait_until
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, count, left
from tests.support.relay.crashes import running

pytestmark = pytest.mark.long

pytest_plugins = ["tests.support.brokers.kafka_fixtures"]

KEYS = [f"key-{number}" for number in range(12)]
TIMEOUT = 4


@pytest.fixture
def second_broker(two_brokers: tuple[LocalKafka, LocalKafka]) -> LocalKafka:
    """The broker that a test may crash."""
    return two_brokers[1]


@pytest.fixture
def topics(two_brokers: tuple[LocalKafka, LocalKafka]) -> Iterator[Topics]:
    """Topics on two brokers; a test may crash the second."""
    with Topics(two_brokers[0].address) as topics:
        wait_until(lambda: topics.leaders(topics.new_on(2)) == {0: 2})
        yield topics


def sender_to(topics: Topics, timeout: float = TIMEOUT) -> KafkaPublisher:
    return KafkaPublisher({"bootstrap.servers": topics.address}, timeout=timeout)


def batch_of(topic: str, each: int = 20) -> list[Envelope]:
    return [envelope(topic, f"{number}", key) for number in range(each) for key in KEYS]


def test_one_of_two_partitions(topics: Topics, second_broker: LocalKafka) -> None:
    """While messages wait for the partition without a leader, those of the other partition are accepted, and
    reported. From then on the publisher quickly reports messages of the first partition as unavailable: they
    are certainly not written. Once there is a leader, they are sent again in order."""
    topic, sender = topics.new_on(1, 2), sender_to(topics)
    first, batch = batch_of(topic), batch_of(topic)
    assert set(published(sender, first)) == {Accepted()}
    second_broker.kill()
    try:
        wait_until(lambda: topics.leaders(topic)[1] == -1)
        begun = time.monotonic()
        arrived = {place: (outcome, time.monotonic() - begun) for place, outcome in sender.send(batch)}
        lost = [message for place, message in enumerate(batch) if arrived[place][0] != Accepted()]
        begun = time.monotonic()
        assert set(published(sender, lost)) == {Unavailable("partition 1 has no leader")}
        assert time.monotonic() - begun < TIMEOUT / 2
    finally:
        second_broker.start()
    assert all(after < TIMEOUT / 2 for outcome, after in arrived.values() if outcome == Accepted())
    outcomes = [arrived[place][0] for place in range(len(batch))]
    by_key: dict[str | None, set[type[Outcome]]] = {}
    for message, outcome in zip(batch, outcomes, strict=True):
        by_key.setdefault(message.key, set()).add(type(outcome))
    assert {frozenset(each) for each in by_key.values()} == {frozenset([Accepted]), frozenset([Unknown])}
    wait_until(lambda: set(published(sender, lost)) == {Accepted()})
    found = written(topics, topic)
    for key in KEYS:
        assert found[key] == [each.id for each in first + batch if each.key == key]


def test_a_leader_that_hangs(topics: Topics, second_broker: LocalKafka) -> None:
    """Several producers, one after the other, leave requests in the leader's connections. When it continues,
    no message overtakes an earlier one of its key."""
    sender, relaying = sender_to(topics, 0.4), Relaying(topics.new_on(2), keys=4)
    for _ in range(3):
        wait_until(lambda: set(kinds(relaying.turn(sender))) == {Accepted})
        second_broker.freeze()
        try:
            assert set(kinds(relaying.turn(sender))) == {Unknown}
            assert Accepted not in kinds(relaying.turn(sender))
        finally:
            second_broker.thaw()
    relaying.finish(sender, topics)


def test_too_few_replicas(topics: Topics, second_broker: LocalKafka) -> None:
    """While the leader rejects requests, nothing is accepted. Afterwards each key continues in order."""
    sender, relaying = sender_to(topics), Relaying(topics.new_on((1, 2), min_insync_replicas="2"), keys=4)
    wait_until(lambda: set(kinds(relaying.turn(sender))) == {Accepted})
    second_broker.kill()
    try:
        wait_until(lambda: "NOT_ENOUGH_REPLICAS:" in str(relaying.turn(sender)))
        assert Accepted not in kinds(relaying.turn(sender))
    finally:
        second_broker.start()
    relaying.finish(sender, topics)


def test_a_topic_beside_one_without_a_leader(topics: Topics, second_broker: LocalKafka) -> None:
    """Sends from another thread to a healthy topic are accepted and quick, while sends to the other topic
    keep failing."""
    bad, good, sender = topics.new_on(2), topics.new_on(1), sender_to(topics)
    assert set(published(sender, batch_of(bad))) == {Accepted()}
    others: list[Outcome] = []
    is_over = threading.Event()

    def fail() -> None:
        while not is_over.is_set():
            others.extend(published(sender, batch_of(bad)))

    failing = threading.Thread(target=fail)
    second_broker.kill()
    failing.start()
    try:
        took = []
        end = time.monotonic() + 2 * TIMEOUT
        while time.monotonic() < end:
            begun = time.monotonic()
            assert set(published(sender, batch_of(good))) == {Accepted()}
            took.append(time.monotonic() - begun)
        assert sorted(took)[len(took) // 2] < TIMEOUT / 4
    finally:
        is_over.set()
        failing.join()
        second_broker.start()
    # While a partition has lost its leader, the client waits for it; once a broker knows, nothing is sent.
    assert {type(each) for each in others} == {Unknown, Unavailable}
    wait_until(lambda: set(published(sender, batch_of(bad))) == {Accepted()})


@pytest.mark.long
def test_a_relay_beside_a_topic_without_a_leader(
    topics: Topics, second_broker: LocalKafka, postgres: Database
) -> None:
    """While one topic has no leader, messages to another topic are sent. The waiting messages are sent in
    order once there is a leader."""
    bad, good, engine = topics.new_on(2), topics.new_on(1), postgres.engine()
    ids: dict[str, dict[str, list[str]]] = {bad: {}, good: {}}

    def publish(topic: str) -> None:
        with engine.begin() as connection:
            for key in KEYS:
                drafts = [Message(topic, f"{number}", f"{topic}-{key}") for number in range(5)]
                drawn = Outbox().publish_many(connection, drafts)
                ids[topic].setdefault(f"{topic}-{key}", []).extend(drawn)

    options: dict[str, Any] = {"poll": 0.2, "backoff": Backoff(first=0.1, longest=0.5)}
    with running(Relay(engine, sender_to(topics, 2), **options)):
        publish(bad)
        publish(good)
        wait_until(lambda: count(engine, TABLES.message) == 0)
        second_broker.kill()
        try:
            for _ in range(4):
                publish(bad)
            slowest, rounds, end = 0.0, 0, time.monotonic() + 8
            while time.monotonic() < end:
                begun = time.monotonic()
                publish(good)
                wait_until(lambda: left(engine, good) == 0)
                slowest, rounds = max(slowest, time.monotonic() - begun), rounds + 1
            assert left(engine, bad) == 4 * 5 * len(KEYS)
        finally:
            second_broker.start()
        wait_until(lambda: count(engine, TABLES.message) == 0)
    print(f"{rounds * 5 * len(KEYS)} messages to the other topic, the slowest round took {slowest:.2f} s")
    for topic in (bad, good):
        assert written(topics, topic) == ids[topic]


def test_as_many_producers_as_sends(topics: Topics) -> None:
    """Each concurrent send has its own producer. Later sends reuse them, and `close` closes them all."""
    sender, names = sender_to(topics), [topics.new_on(1) for _ in range(6)]
    before = _clients()
    for _ in range(5):
        with ThreadPoolExecutor(len(names)) as pool:
            for outcomes in pool.map(partial(published, sender), map(batch_of, names)):
                assert set(outcomes) == {Accepted()}
        assert 1 <= _clients() - before <= len(names)
    sender.close()
    assert _clients() == before


def _clients() -> int:
    """The number of Kafka clients in this process: each has one such thread."""
    names = [each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm")]
    return names.count("rdk:main")
