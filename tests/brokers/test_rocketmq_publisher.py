"""The publisher for RocketMQ: what arrives, and what it reports about the rest."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from examples.embedded_postgres import free_port
from inbox_outbox_base.brokers.rocketmq import properties
from outbox import Accepted, AsyncPublisher, Envelope, Outcome, Publisher, Refused, Unavailable
from outbox.errors import InvalidOption, UnsafeBroker
from outbox.rocketmq import AsyncRocketMQPublisher, RocketMQPublisher
from tests.support.answers import published, published_awaited
from tests.support.brokers.rocketmq_topics import Topics, envelope
from tests.support.processes import wait_until
from tests.support.together import together

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]

Send = Callable[..., list[Outcome]]
STRANGE = {
    "plain": "é 日本 😀 '\"\\ ",
    "empty": "",
    "blank": " ",
    "control": "a\nb\x00c\x01d\x02e\x7ff\x85",
    "KEYS": "a name that RocketMQ uses",
    "__SHARDINGKEY": "another one",
    "outbox-encoded": "and one of ours",
    " ": "a blank name",
    "line\nbreak": "in a name",
    "größe": "1",
    "ce_type": "made",
}
"""Headers that RocketMQ does not take as they are, and some that it does."""


def send_once(url: str, batch: Sequence[Envelope]) -> list[Outcome]:
    """Send with a new publisher."""
    with closing(RocketMQPublisher(url)) as publisher:
        return published(publisher, batch)


def send_once_awaited(url: str, batch: Sequence[Envelope]) -> list[Outcome]:
    """Send with a new asynchronous publisher."""

    async def scenario() -> list[Outcome]:
        publisher = AsyncRocketMQPublisher(url)
        try:
            return await published_awaited(publisher, batch)
        finally:
            await publisher.close()

    return asyncio.run(scenario())


@pytest.fixture
def url(rocketmq: Topics) -> str:
    return f"rocketmq://{rocketmq.address}"


@pytest.fixture
def publisher(url: str) -> Iterator[RocketMQPublisher]:
    with closing(RocketMQPublisher(url)) as publisher:
        yield publisher


def reason(outcome: Outcome) -> str:
    """Why a message was not accepted."""
    assert not isinstance(outcome, Accepted)
    return outcome.reason


@pytest.mark.parametrize("send", [send_once, send_once_awaited])
@pytest.mark.parametrize("kind", ["NORMAL", "FIFO"])
def test_all_of_a_message_arrives(rocketmq: Topics, url: str, send: Send, kind: str) -> None:
    """The id is RocketMQ's message id and a key for searching. The key is a property, and in a FIFO topic the
    message group. Time, content type and headers are properties."""
    topic, group = rocketmq.new(kind), rocketmq.group(in_order=kind == "FIFO")
    sent = envelope(topic, b"\x00\xff", key="order-42", colour="blue")
    assert send(url, [sent]) == [Accepted()]
    (message,) = rocketmq.messages(topic, group, 1)
    assert (message.message_id, set(message.keys), message.body) == (sent.id, {sent.id}, b"\x00\xff")
    assert message.message_group == ("order-42" if kind == "FIFO" else None)
    assert message.properties.pop(properties.GROUP, None) == message.message_group
    assert message.properties == {
        "colour": "blue",
        "outbox-id": sent.id,
        "outbox-key": "order-42",
        "outbox-created-at": sent.created_at.isoformat(),
        "content-type": "text/plain",
    }


@pytest.mark.long(but_on="FIFO")
@pytest.mark.parametrize("kind", ["NORMAL", "FIFO"])
def test_everything_arrives_unchanged(rocketmq: Topics, publisher: RocketMQPublisher, kind: str) -> None:
    """RocketMQ accepts every key, header and payload, and a consumer with RocketMQ's own client can decode
    them. An empty payload is marked as such."""
    topic, group = rocketmq.new(kind), rocketmq.group(in_order=kind == "FIFO")
    many = {f"name-{number}": " " * (number % 2) for number in range(150)}
    sent = [
        envelope(topic, bytes(range(256)), key="Ä\n" * 100, **STRANGE),
        envelope(topic, b"", key=" ", **many),
        envelope(topic, b"\x00", key="k" * 63),
        envelope(topic, b"\xff" * 4 * 1024 * 1024),
        replace(envelope(topic), id='an id\'s "own" ~ text'),
    ]
    assert published(publisher, sent) == [Accepted()] * len(sent)
    received = {each.message_id: each for each in rocketmq.messages(topic, group, len(sent))}
    for one in sent:
        found = properties.decode(received[one.id].properties)
        own = {"outbox-id": one.id, "outbox-created-at": one.created_at.isoformat()}
        own |= {} if one.key is None else {"outbox-key": one.key}
        own |= {} if one.payload else {"outbox-empty": "true"}
        assert found == {**one.headers, **own, "content-type": "text/plain"}
        assert received[one.id].body == (one.payload or b"\x00")


def test_what_is_never_taken_is_refused(rocketmq: Topics, publisher: RocketMQPublisher) -> None:
    """A message that RocketMQ never accepts is refused, with RocketMQ's limit and the message's own size. Its
    neighbours are accepted."""
    topic = rocketmq.new()
    batch = [
        envelope(topic, "1"),
        envelope(topic, b"x" * (4 * 1024 * 1024 + 1)),
        envelope(topic, "2", colour="x" * 16_384),
        replace(envelope(topic), payload=None, content_type=""),
        envelope(topic, "3"),
    ]
    outcomes = published(publisher, batch)
    assert [type(each) for each in outcomes] == [Accepted, Refused, Refused, Refused, Accepted]
    assert "4194304" in reason(outcomes[1])
    assert "body 4194305 bytes" in reason(outcomes[1])
    size = sum(
        len(f"{name}{value}") for name, value in rocketmq.stored(topic)[0].properties.items() if "-" in name
    )
    assert "16384" in reason(outcomes[2])
    assert f"properties {size + 6 + 16_384} bytes" in reason(outcomes[2])
    assert "tombstone" in reason(outcomes[3])
    assert sorted(each.body for each in rocketmq.stored(topic)) == [b"1", b"3"]


@pytest.mark.parametrize("name", ["a.b", "a b", "a" * 128])
def test_a_topic_that_cannot_exist(publisher: RocketMQPublisher, name: str) -> None:
    """A message to an invalid topic name is refused."""
    (outcome,) = published(publisher, [envelope(name)])
    assert isinstance(outcome, Refused)
    assert outcome.reason.startswith("ILLEGAL_TOPIC")


def test_topics_that_an_operator_can_make(rocketmq: Topics, publisher: RocketMQPublisher) -> None:
    """Messages to a topic that is missing or has the wrong type are unavailable, and are accepted once the
    topic is created."""
    name = f"{rocketmq.new()}-later"
    (outcome,) = published(publisher, [envelope(name)])
    assert isinstance(outcome, Unavailable)
    assert "TOPIC_NOT_FOUND" in outcome.reason
    for kind in ("DELAY", "TRANSACTION"):
        (outcome,) = published(publisher, [envelope(rocketmq.new(kind))])
        assert isinstance(outcome, Unavailable)
        assert f"message.type is {kind}: expected NORMAL or FIFO" in outcome.reason
    rocketmq.new(name=name)
    wait_until(lambda: published(publisher, [envelope(name)]) == [Accepted()])


def test_a_topic_whose_type_is_changed(rocketmq: Topics, publisher: RocketMQPublisher) -> None:
    """RocketMQ rejects a message that is sent as the old type requires: it was not stored, and the next send
    succeeds."""
    topic = rocketmq.new("FIFO")
    assert published(publisher, [envelope(topic, "1", "k")]) == [Accepted()]
    rocketmq.new("NORMAL", name=topic)
    (outcome,) = published(publisher, [envelope(topic, "2", "k")])
    assert isinstance(outcome, Unavailable | Accepted)
    assert published(publisher, [envelope(topic, "3", "k")]) == [Accepted()]
    expected = {b"1", b"3"} | ({b"2"} if outcome == Accepted() else set())
    assert {each.body for each in rocketmq.stored(topic)} == expected


def test_the_order_of_keys_in_a_fifo_topic(rocketmq: Topics, publisher: RocketMQPublisher) -> None:
    """A batch with many messages of each key is stored in the batch's order, each key in one queue. After a
    refused message, no more messages of its key are sent; other keys, and messages without a key, go on."""
    topic = rocketmq.new("FIFO", queues=4)
    batch = [envelope(topic, f"{number}", key) for number in range(40) for key in ("a", "b", "c", None)]
    batch[20 * 4] = replace(batch[20 * 4], payload=b"x" * 5_000_000)
    outcomes = published(publisher, batch)
    assert isinstance(outcomes[20 * 4], Refused)
    assert {type(each) for each in outcomes[21 * 4 :: 4]} == {Unavailable}
    assert {type(each) for place, each in enumerate(outcomes) if place % 4 or place < 80} == {Accepted}
    stored = rocketmq.stored(topic)
    for key, count in (("a", 20), ("b", 40), ("c", 40)):
        own = [each for each in stored if each.properties.get("outbox-key") == key]
        assert [int(each.body) for each in own] == list(range(count))
        assert len({each.queue for each in own}) == 1
    assert len([each for each in stored if "outbox-key" not in each.properties]) == 40
    assert len({each.queue for each in stored if "outbox-key" not in each.properties}) == 4


def test_sends_at_the_same_time(rocketmq: Topics, publisher: RocketMQPublisher) -> None:
    """Several threads send to two topics: each gets the outcomes of its own messages, even if one is
    refused."""
    topics = [rocketmq.new(), rocketmq.new("FIFO")]

    def send(number: int) -> list[Outcome]:
        batch = [envelope(topics[number % 2], f"{number}-{each}", f"{number}-{each}") for each in range(50)]
        batch[number] = replace(batch[number], payload=None)
        return published(publisher, batch)

    found = together([partial(send, number) for number in range(6)])
    for number, outcomes in enumerate(found):
        assert isinstance(outcomes.pop(number), Refused)
        assert outcomes == [Accepted()] * 49
    assert [len(rocketmq.stored(topic)) for topic in topics] == [3 * 49] * 2


def test_an_abandoned_batch(rocketmq: Topics, publisher: RocketMQPublisher) -> None:
    """Closing the iterator ends the send: the remaining messages of a key are not sent."""
    topic = rocketmq.new("FIFO")
    answers = publisher.send([envelope(topic, f"{number}", "k") for number in range(500)])
    assert next(answers) == (0, Accepted())
    answers.close()
    threads = threading.active_count()
    publisher.close()
    assert threading.active_count() <= threads
    stored = rocketmq.stored(topic)
    assert len(stored) <= 3
    assert published(publisher, [envelope(topic, "last", "k")]) == [Accepted()]
    assert [each.body for each in rocketmq.stored(topic)] == [*(each.body for each in stored), b"last"]


def test_checks(rocketmq: Topics, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The lease and the named topics are checked before the first send. A relay also starts while RocketMQ is
    away."""
    good, delay = [rocketmq.new(), rocketmq.new("FIFO")], rocketmq.new("DELAY")
    with closing(RocketMQPublisher(url, topics=good, timeout=5)) as publisher:
        publisher.check(5.1)
        with pytest.raises(UnsafeBroker, match="timeout=5: expected less than the lease of 5 s"):
            publisher.check(5)
    for topic, why in ((delay, "message.type is DELAY"), (f"{delay}-none", "TOPIC_NOT_FOUND")):
        refused = pytest.raises(UnsafeBroker, match=f"topics='{topic}': .*{why}")
        with closing(RocketMQPublisher(url, topics=[*good, topic])) as publisher, refused:
            publisher.check(30)
    away = f"rocketmq://key:secret@127.0.0.1:{free_port()}"
    with closing(RocketMQPublisher(away, topics=good)) as publisher, caplog.at_level(logging.WARNING):
        publisher.check(30)
        (outcome,) = published(publisher, [envelope(good[0])])
    assert "does not answer" in reason(outcome)
    assert "not checked, because RocketMQ cannot be reached" in caplog.text
    assert "secret" not in caplog.text


def test_the_checks_of_the_asynchronous_publisher(url: str) -> None:
    """The asynchronous publisher checks the same; its check is awaited."""

    async def scenario() -> None:
        publisher = AsyncRocketMQPublisher(url, topics=["a.b"], timeout=5)
        with pytest.raises(UnsafeBroker, match="timeout=5"):
            await publisher.check(5)
        with pytest.raises(UnsafeBroker, match=r"topics='a\.b': ILLEGAL_TOPIC"):
            await publisher.check(6)
        await publisher.close()

    asyncio.run(scenario())


@pytest.mark.long
def test_a_fork_has_a_connection_of_its_own(rocketmq: Topics, publisher: RocketMQPublisher) -> None:
    """A forked process can send, and so can its parent afterwards."""
    topic = rocketmq.new("FIFO")
    assert published(publisher, [envelope(topic, "before", "k")]) == [Accepted()]
    child = os.fork()
    if child == 0:
        accepted = published(publisher, [envelope(topic, "child", "k")]) == [Accepted()]
        os._exit(0 if accepted else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert published(publisher, [envelope(topic, "after", "k")]) == [Accepted()]
    assert [each.body for each in rocketmq.stored(topic)] == [b"before", b"child", b"after"]


def test_what_a_publisher_is_made_of() -> None:
    """Both classes implement their protocols. Unusable arguments are named, but no secret is shown."""
    assert isinstance(RocketMQPublisher("rocketmq://mq"), Publisher)
    assert isinstance(AsyncRocketMQPublisher("rocketmq://mq"), AsyncPublisher)
    assert repr(RocketMQPublisher("rocketmq://me:hidden@mq")) == "RocketMQPublisher('rocketmq://mq:8081')"
    assert repr(AsyncRocketMQPublisher("rocketmqs://me:hidden@mq")).startswith(
        "AsyncRocketMQPublisher('rocke"
    )
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"url": "amqp://me:hidden@mq"}, "url: expected rocketmq://"),
        ({"topics": "orders"}, "topics='orders': expected a sequence"),
        ({"topics": [7]}, r"topics=\[7\]"),
        ({"timeout": -1}, "timeout=-1"),
    ]
    for arguments, why in wrong:
        with pytest.raises(InvalidOption, match=why) as refused:
            RocketMQPublisher(**{"url": "rocketmq://mq", **arguments})
        assert "hidden" not in str(refused.value)
