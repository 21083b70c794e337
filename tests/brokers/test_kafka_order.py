"""A KafkaPublisher's batch can contain many messages of a key: whatever fails, no message is written before
an earlier one of its key."""

import logging
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from outbox import Accepted, Envelope, Refused, Unavailable
from outbox._publishers.kafka.parts import parts_of
from outbox._publishers.kafka.producer_settings import filled_in, limits
from outbox.kafka import AsyncKafkaPublisher, KafkaPublisher
from tests.servers.kafka import LocalKafka
from tests.support.answers import published
from tests.support.brokers.kafka_relaying import Relaying, kinds, written
from tests.support.brokers.kafka_topics import Topics, envelope, wait_until
from tests.support.proxy import TcpProxy

pytest_plugins = ["tests.support.brokers.kafka_fixtures"]

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
MANY = 300


def publisher(address: str, timeout: float = 10, **settings: object) -> KafkaPublisher:
    """A publisher; the settings have underscores instead of dots."""
    return KafkaPublisher({"bootstrap.servers": address, **dotted(settings)}, timeout=timeout)


def dotted(settings: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def batch_of(topic: str, keys: Sequence[str | None], size: int = 20) -> list[Envelope]:
    return [envelope(topic, f"{number}".ljust(size), key) for number, key in enumerate(keys)]


def test_it_says_so() -> None:
    """A publisher with idempotence is `ordered`, so a batch may contain many messages of a key. Without
    idempotence it is not, and a batch contains only one."""
    for kind in (KafkaPublisher, AsyncKafkaPublisher):
        assert kind(NOWHERE).ordered
        assert kind({**NOWHERE, "enable.idempotence": "true"}).ordered
        assert not kind({**NOWHERE, "enable.idempotence": False, "max.in.flight": 1}).ordered


@pytest.mark.parametrize("settings", [{}, {"batch_num_messages": 7}, {"batch_size": 2_000}], ids=str)
def test_many_of_a_key(topics: Topics, settings: dict[str, Any]) -> None:
    """All messages are written once and in order, in however many requests."""
    topic = topics.new(partitions=3)
    batch = batch_of(topic, ["a", "b", None, "a", "c"] * (MANY // 5))
    assert set(kinds(published(publisher(topics.address, **settings), batch))) == {Accepted}
    expected: dict[str, list[str]] = {}
    for each in batch:
        expected.setdefault(each.key or "", []).append(each.id)
    found = written(topics, topic)
    assert sorted(found.pop("")) == sorted(expected.pop(""))
    assert found == expected
    assert len(topics.log(topic)) == MANY


@pytest.mark.parametrize(
    "settings", [{}, {"batch_num_messages": 13}, {"batch_size": 3_000}, {"message_max_bytes": 5_000}], ids=str
)
def test_a_part_is_one_request(
    topics: Topics, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    """According to its own log, the client sends each part of a batch in one request, which Kafka writes as a
    whole or not at all."""
    topic, rnd = topics.new(), random.Random(1)
    batch = [
        envelope(
            topic,
            "x" * rnd.choice([0, 40, 3_500]),
            rnd.choice(["a", "ключ" * 20]),
            headers={f"ü{number}": "日本" * number for number in range(rnd.randint(0, 9))},
            content_type="c" * rnd.randint(0, 100),
        )
        for _ in range(MANY)
    ]
    sender = publisher(topics.address, debug="msg", **settings)
    with caplog.at_level(logging.DEBUG, "outbox.kafka"):
        assert set(kinds(published(sender, batch))) == {Accepted}
        sender.close()
    requests = re.findall(r"MessageSet with (\d+) message\(s\) \(\d+ bytes", caplog.text)
    parts = parts_of(batch, limits(filled_in(dotted(settings), 10)))
    assert [int(each) for each in requests] == [len(part) for part in parts]


@pytest.mark.parametrize("first", [0, 1, 120, MANY - 1])
def test_one_is_refused_by_the_broker(topics: Topics, first: int) -> None:
    """The broker rejects a message: earlier ones are written, later ones of its key are not, and other keys
    go on."""
    topic = topics.new(max_message_bytes="20000")
    batch = batch_of(topic, ["a"] * MANY + ["b"] * 3)
    batch[first] = envelope(topic, "x" * 30_000, "a")
    outcomes = published(publisher(topics.address, batch_num_messages=100), batch)
    assert kinds(outcomes[:first]) == [Accepted] * first
    refused = outcomes[first]
    assert isinstance(refused, Refused)
    assert "MSG_SIZE_TOO_LARGE" in refused.reason
    assert kinds(outcomes[first + 1 : MANY]) == [Unavailable] * (MANY - first - 1)
    assert kinds(outcomes[MANY:]) == [Accepted] * 3
    expected = {"a": [each.id for each in batch[:first]], "b": [each.id for each in batch[MANY:]]}
    assert written(topics, topic) == {key: ids for key, ids in expected.items() if ids}


def test_only_together_too_large(topics: Topics) -> None:
    """If a topic accepts far less than a full request, all messages are still written, once and in order."""
    topic = topics.new(max_message_bytes="1000")
    batch = batch_of(topic, ["a", "b"] * 50)
    assert set(kinds(published(publisher(topics.address), batch))) == {Accepted}
    assert len(topics.log(topic)) == len(batch)
    assert written(topics, topic)["a"] == [each.id for each in batch[::2]]


def test_an_invalid_record_among_them(topics: Topics) -> None:
    """A compacted topic rejects messages without a key: only that message is refused."""
    topic = topics.new(cleanup_policy="compact", min_cleanable_dirty_ratio="1")
    batch = batch_of(topic, ["a"] * 10 + [None] + ["a"] * 10)
    outcomes = published(publisher(topics.address), batch)
    assert kinds(outcomes) == [Accepted] * 10 + [Refused] + [Accepted] * 10
    assert written(topics, topic)["a"] == [each.id for each in batch if each.key]


def test_one_is_too_large_for_the_client(topics: Topics) -> None:
    """A message that is too large for the client is refused. Earlier messages are written, and later ones of
    its key are not."""
    topic = topics.new()
    batch = batch_of(topic, ["a"] * 20 + ["b"])
    batch[10] = envelope(topic, "x" * 2_000_000, "a")
    outcomes = published(publisher(topics.address), batch)
    assert kinds(outcomes) == [Accepted] * 10 + [Refused] + [Unavailable] * 9 + [Accepted]
    assert written(topics, topic)["a"] == [each.id for each in batch[:10]]


def test_the_client_s_queue_is_full(topics: Topics) -> None:
    """The messages that fit into the client's queue are written. None of the others is, even if there is room
    again meanwhile."""
    topic, count = topics.new(), 10
    outcomes = published(
        publisher(topics.address, queue_buffering_max_messages=count), batch_of(topic, ["a"] * 30)
    )
    assert kinds(outcomes) == [Accepted] * count + [Unavailable] * 20
    assert len(topics.log(topic)) == count


@pytest.mark.parametrize("missing", ["deleted-topic", "no topic: name", "long" * 200])
def test_a_topic_that_takes_nothing(topics: Topics, missing: str) -> None:
    """All messages of a batch get the same outcome, soon and without being sent. Another topic goes on."""
    sender, is_refused = publisher(topics.address), "-" not in missing
    begun = time.monotonic()
    outcomes = published(sender, batch_of(missing, ["a"] * 5 + [None]))
    assert set(kinds(outcomes)) == {Refused if is_refused else Unavailable}
    assert time.monotonic() - begun < 4
    assert published(sender, batch_of(topics.new(), ["a"])) == [Accepted()]


def test_without_a_key_all_partitions_are_used(topics: Topics) -> None:
    """Messages without a key do not all go to one partition."""
    topic, sender = topics.new(partitions=3), publisher(topics.address)

    def partitions() -> set[int | None]:
        published(sender, batch_of(topic, [None] * 20))
        time.sleep(0.02)
        return {record.partition() for record in topics.log(topic)}

    wait_until(lambda: len(partitions()) == 3)


@pytest.mark.parametrize("forward", [True, False])
def test_the_connection_breaks_under_a_request(proxied_kafka: tuple[Topics, TcpProxy], forward: bool) -> None:
    """The client sends the request again, and all messages are written once and in order."""
    topics, proxy = proxied_kafka
    topic, sender = topics.new(partitions=2), publisher(topics.address, 5)
    batch = batch_of(topic, ["a", "b", "c"] * 100)
    wait_until(lambda: published(sender, batch[:3]) == [Accepted()] * 3)
    proxy.cut_on(lambda chunk: batch[200].id.encode() in chunk, forward=forward)
    assert set(kinds(published(sender, batch[3:]))) == {Accepted}
    assert proxy.was_cut.is_set()
    assert len(topics.log(topic)) == len(batch)
    for place, key in enumerate("abc"):
        assert written(topics, topic)[key] == [each.id for each in batch[place::3]]


@pytest.mark.long
def test_the_broker_is_killed(private_kafka: LocalKafka) -> None:
    """The broker is killed repeatedly while batches with many messages of each key are sent in several
    requests: each key keeps its order."""
    with Topics(private_kafka.address) as topics:
        sender = publisher(private_kafka.address, 2, batch_num_messages=40, retries=1)
        relaying, is_over = Relaying(topics.new(partitions=2), keys=6), threading.Event()

        def relay() -> None:
            while not is_over.is_set():
                relaying.turn(sender)

        thread = threading.Thread(target=relay)
        thread.start()
        for _ in range(3):
            before = relaying.accepted
            wait_until(lambda: relaying.accepted > before + 1_000)  # noqa: B023 - ends within the turn
            private_kafka.restart()
        is_over.set()
        thread.join()
        relaying.finish(sender, topics)


@pytest.mark.long
def test_the_broker_hangs(private_kafka: LocalKafka) -> None:
    """When the broker continues, requests that are still in an old connection overtake nothing."""
    with Topics(private_kafka.address) as topics:
        sender = publisher(private_kafka.address, 1, batch_num_messages=40)
        relaying = Relaying(topics.new(partitions=2), keys=6)
        for _ in range(3):
            wait_until(lambda: set(kinds(relaying.turn(sender))) == {Accepted})
            freezing = threading.Timer(0.02, private_kafka.freeze)
            freezing.start()
            while set(kinds(relaying.turn(sender))) <= {Accepted}:
                pass
            freezing.join()
            private_kafka.thaw()
        relaying.finish(sender, topics)
