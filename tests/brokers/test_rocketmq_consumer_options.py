"""The options of RocketMQ's consumer, and how the handler sees a message."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from examples.embedded_postgres import free_port
from inbox import Decision, Delivery, Inbox, Outcome, Verdict
from inbox._consuming.rocketmq import proxies
from inbox._consuming.rocketmq.delivery import delivery_of
from inbox._consuming.rocketmq.held import HeldMessage
from inbox._consuming.rocketmq.link import Membership
from inbox._consuming.rocketmq.proxy import Source
from inbox.errors import InvalidOption
from inbox.rocketmq import AsyncRocketMQConsumer, RocketMQConsumer
from inbox_outbox_base.brokers.rocketmq.address import parse
from inbox_outbox_base.brokers.rocketmq.client import protocol
from inbox_outbox_base.brokers.rocketmq.message import message_of
from tests.support.brokers.consumers import SOON, payloads
from tests.support.brokers.rocketmq_consumers import consuming, send, send_raw, url_of
from tests.support.brokers.rocketmq_topics import Topics, envelope
from tests.support.processes import wait_until

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]

NEW = Outcome(Verdict.NEW)


def made_by_others(properties: dict[str, str], **system: Any) -> Any:
    """A message that no outbox has sent."""
    message = protocol.SendMessageRequest(messages=[{"topic": {"name": "orders"}, "body": b"x"}]).messages[0]
    message.user_properties.update(properties)
    message.system_properties.message_id = "0102FC00"
    message.system_properties.born_timestamp.FromDatetime(datetime(2026, 1, 2, tzinfo=UTC))
    for name, value in system.items():
        getattr(message.system_properties, name).extend(value) if name == "keys" else setattr(
            message.system_properties, name, value
        )
    return message


def test_messages_of_others() -> None:
    """The id is that of the CloudEvent, otherwise the one drawn by the producer's client; never the broker's,
    nor a key for searches, which several messages may have: that is a key. Properties of the broker are not
    headers, and what cannot be decoded is not changed."""
    event = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/shop"}
    keyed = delivery_of(made_by_others({"colour": "blue", "__SHARDINGKEY": "g"}, keys=["b", "a"]), 2)
    assert (keyed.id, keyed.headers, keyed.attempt) == ("0102FC00", {"colour": "blue"}, 2)
    assert keyed.created_at == datetime(2026, 1, 2, tzinfo=UTC)
    assert (keyed.topic, keyed.payload, keyed.key) == ("orders", b"x", "a")
    assert keyed.place == "orders [0] at 0"
    assert delivery_of(made_by_others(event, keys=["a"]), 1).id == '["/shop","1"]'
    bare = delivery_of(made_by_others({"outbox-created-at": "yesterday"}, message_group="g"), 1)
    assert (bare.id, bare.key) == ("0102FC00", "g")
    assert bare.created_at == datetime(2026, 1, 2, tzinfo=UTC)
    for unreadable in ("[1", "[" * 100_000):
        odd = made_by_others({"outbox-encoded": unreadable}, body_encoding=protocol.Encoding.GZIP)
        assert delivery_of(odd, 1).payload == b"x"
    text = delivery_of(
        made_by_others({"outbox-encoded": '{"outbox-key": "a\\u0000\\\\", "n": "\\ud800"}'}), 1
    )
    assert (text.key, text.headers) == ("a\\x00\\\\", {"n": "\\ud800"})


def test_invalid_options() -> None:
    """An invalid option is rejected by name when the consumer is created, without repeating a secret."""

    async def asynchronous(_: Delivery) -> Outcome:
        return NEW

    booked: Any = Inbox("orders").handler(lambda: None, key=str)  # type: ignore[arg-type, return-value]
    synchronous = booked(print)

    def make(**options: Any) -> Callable[[], RocketMQConsumer]:
        given = {"url": "rocketmq://h", "topic": "t", "group": "g", "handler": lambda _: NEW, **options}
        return lambda: RocketMQConsumer(**given)

    wrong = {
        "url": make(url="amqp://key:s3cr3t@h"),
        "topic=": make(topic="orders.dead"),
        "topic=\\[\\]": make(topic=[]),
        "topic='%RETRY%g'": make(topic=["t", "%RETRY%g"]),
        "group": make(group=""),
        "tag": make(tag=" "),
        "handler": make(handler=asynchronous),
        "prefetch": make(prefetch=0),
        "invisible=9": make(invisible=9),
        "invisible=10.5": make(invisible=10.5),
        "max_attempts": make(max_attempts=0),
        "dead_letter='t'": make(dead_letter="t"),
        "dead_letter=5": make(dead_letter=5),
        "concurrency": make(concurrency=0),
    }
    for option, mistake in wrong.items():
        with pytest.raises(InvalidOption, match=f"^{option}") as refused:
            mistake()
        assert "s3cr3t" not in str(refused.value)
    with pytest.raises(InvalidOption, match="expected an asynchronous function"):
        AsyncRocketMQConsumer("rocketmq://h", "t", synchronous, group="g")
    AsyncRocketMQConsumer("rocketmq://h", "t", lambda delivery: asynchronous(delivery), group="g")
    assert AsyncRocketMQConsumer("rocketmq://h", "t", asynchronous, group="g", concurrency=20).prefetch == 40


def test_what_does_not_exist(rocketmq: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer, a missing topic or group, and a group with a lower limit than
    `max_attempts` each raise one error, at the first connection."""
    monkeypatch.setattr("inbox._consuming.rocketmq.async_consumer.AsyncRocketMQConsumer._patience", 0)
    topic, group, few = rocketmq.new(), rocketmq.group(), rocketmq.group(retries=2)

    def run(url: str, topic: str, group: str, **options: Any) -> None:
        RocketMQConsumer(url, topic, lambda _: NEW, group=group, **options).run()

    url, port = url_of(rocketmq.address), free_port()
    with pytest.raises(ConnectionError, match=f"rocketmq://127.0.0.1:{port} does not answer") as away:
        run(f"rocketmq://key:s3cr3t@127.0.0.1:{port}", topic, group)
    assert "s3cr3t" not in str(away.value)
    with pytest.raises(InvalidOption, match=r"^topic='no-such': there is no such topic"):
        run(url, "no-such", group)
    with pytest.raises(InvalidOption, match=r"^dead_letter='no-such': there is no such topic"):
        run(url, topic, group, dead_letter="no-such")
    with pytest.raises(InvalidOption, match=r"^group='no-such'.*group not found"):
        run(url, topic, "no-such")
    with pytest.raises(InvalidOption, match=rf"^max_attempts=3: group '{few}' has retryMaxTimes=2"):
        run(url, topic, few, max_attempts=3)


def test_a_topic_that_is_not_known_yet(rocketmq: Topics, caplog: pytest.LogCaptureFixture) -> None:
    """A consumer that starts before RocketMQ knows its topic, as after a restart, waits for it."""
    group, seen = rocketmq.group(), list[bytes]()

    with consuming(rocketmq.address, group, group, payloads(seen)):
        wait_until(lambda: "there is no such topic yet" in caplog.text)
        rocketmq.new(name=group)
        send(rocketmq.address, [envelope(group, "1")])
        wait_until(lambda: seen == [b"1"])


def test_a_broker_that_is_new(rocketmq: Topics) -> None:
    """Messages in a place that becomes known later are received on the same connection, and messages that
    were received before are not lost."""
    first, second, group = rocketmq.new(), rocketmq.new(), rocketmq.group()
    send(rocketmq.address, [envelope(first, "1")])
    send(rocketmq.address, [envelope(second, "2")])

    async def receive() -> list[bytes]:
        member = Membership(parse(url_of(rocketmq.address)), group, {first: "*", second: "*"})
        ((endpoints, queues),) = (await proxies.find(member)).values()
        by_topic = {queue.topic.name: queue for queue in queues}
        received: asyncio.Queue[HeldMessage] = asyncio.Queue()
        stopping = asyncio.Event()
        source = Source(
            member,
            endpoints,
            [by_topic[first]],
            limit=8,
            hidden=60,
            take=received.put_nowait,
            tell=lambda _: None,
            stopping=stopping,
        )
        running = asyncio.create_task(source.run())
        held = [await asyncio.wait_for(received.get(), 60)]
        source.cover([by_topic[second]])
        held.append(await asyncio.wait_for(received.get(), 60))
        for each in held:
            await each.acknowledge()
        stopping.set()
        await running
        await source.close()
        return [each.delivery.payload for each in held]

    assert asyncio.run(receive()) == [b"1", b"2"]


def test_a_dead_letter_function_that_is_cancelled(rocketmq: Topics) -> None:
    """If something that the dead-letter function waits for is cancelled, the function is called again, and
    the next message of that key runs."""
    topic, group, runs, stored = rocketmq.new(queues=1), rocketmq.group(), list[str](), list[str]()
    batch = [envelope(topic, key="k") for _ in range(2)]
    send(rocketmq.address, batch)

    async def give_up(message: Delivery) -> Outcome:
        runs.append(message.id)
        if len(runs) == 2:
            consumer.stop()
        return Outcome(Verdict.DEAD)

    async def store(message: Delivery, _: Decision) -> None:
        stored.append(message.id)
        if len(stored) == 1:
            raise asyncio.CancelledError

    url = url_of(rocketmq.address)
    consumer = AsyncRocketMQConsumer(url, topic, give_up, group=group, dead_letter=store, backoff=SOON)
    asyncio.run(asyncio.wait_for(consumer.run(), 60))
    assert len({*runs}) == 2
    assert stored[:2] == runs[:1] * 2


def test_a_handler_without_an_outcome(rocketmq: Topics) -> None:
    """A function that does not return an outcome ends the consumer with an error."""
    topic, group = rocketmq.new(), rocketmq.group()
    send(rocketmq.address, [envelope(topic)])
    consumer = RocketMQConsumer(url_of(rocketmq.address), topic, lambda _: "done", group=group)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidOption, match=r"expected an inbox\.Outcome"):
        consumer.run()


def test_a_tag(rocketmq: Topics) -> None:
    """A consumer with tags takes the messages that have one of them, and no others; handlers see the tag."""
    topic, group, seen = rocketmq.new(), rocketmq.group(), list[bytes]()

    def handle(message: Delivery) -> Outcome:
        assert message.raw.system_properties.tag == message.payload.decode()
        seen.append(message.payload)
        return NEW

    messages = [message_of(envelope(topic, tag), is_fifo=False) for tag in "abc"]
    for message in messages:
        message.system_properties.tag = message.body.decode()
    with consuming(rocketmq.address, topic, group, handle, tag="a || c"):
        send_raw(rocketmq.address, messages)
        wait_until(lambda: len(seen) == 2)
    assert sorted(seen) == [b"a", b"c"]
