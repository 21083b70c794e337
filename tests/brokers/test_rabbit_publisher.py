"""The publisher for RabbitMQ: what arrives, and what it reports about the rest."""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from outbox import Accepted, AsyncPublisher, Envelope, Outcome, Publisher, Refused, Unavailable, Unknown
from outbox.errors import InvalidOption, UnsafeBroker
from outbox.rabbitmq import AsyncRabbitPublisher, RabbitPublisher
from tests.support.answers import published, published_awaited
from tests.support.brokers.rabbit_queues import Queues, envelope

pytest_plugins = ["tests.support.brokers.rabbit_fixtures"]

Send = Callable[..., list[Outcome]]


def send_once(url: str, batch: Sequence[Envelope], **options: Any) -> list[Outcome]:
    """Send with a new publisher."""
    publisher = RabbitPublisher(url, **options)
    try:
        return published(publisher, batch)
    finally:
        publisher.close()


def send_once_awaited(url: str, batch: Sequence[Envelope], **options: Any) -> list[Outcome]:
    """Send with a new asynchronous publisher."""

    async def scenario() -> list[Outcome]:
        publisher = AsyncRabbitPublisher(url, **options)
        try:
            return await published_awaited(publisher, batch)
        finally:
            await publisher.close()

    return asyncio.run(scenario())


both_kinds = pytest.mark.parametrize("send", [send_once, send_once_awaited])


def kinds(outcomes: Sequence[Outcome]) -> list[type[Outcome]]:
    """The kind of each outcome, without the reasons."""
    return [type(outcome) for outcome in outcomes]


def reason(outcome: Outcome) -> str:
    """Why a message was not accepted."""
    assert not isinstance(outcome, Accepted)
    return outcome.reason


@both_kinds
def test_all_of_a_message_arrives(queues: Queues, send: Send) -> None:
    """The id, the key, the time, the content type and the user's headers are where consumers expect them, and
    the message is persistent."""
    queue = queues.new()
    sent = envelope(queue, "ä", key="order-42", colour="blue", ce_type="made")
    assert send(queues.url, [sent]) == [Accepted()]
    (message,) = queues.take(queue)
    properties = message.header.properties
    assert message.body == "ä".encode()
    assert properties.message_id == sent.id
    assert properties.content_type == "text/plain"
    assert properties.delivery_mode == 2
    assert properties.timestamp == sent.created_at.replace(microsecond=0)
    assert properties.headers == {
        "colour": "blue",
        "ce_type": "made",
        "outbox-key": "order-42",
        "outbox-created-at": sent.created_at.isoformat(),
        "x-deduplication-header": sent.id,
    }


def test_events_have_the_names_of_their_binding(queues: Queues) -> None:
    """Attributes of a CloudEvent have the names of the AMQP binding. A header that only looks like one keeps
    its name."""
    queue = queues.new()
    send_once(queues.url, [envelope(queue, "1", ce_specversion="1.0", ce_type="made", colour="blue")])
    (message,) = queues.take(queue)
    given = message.header.properties.headers or {}
    headers = {name: text for name, text in given.items() if "-" not in name}
    assert headers == {"cloudEvents_specversion": "1.0", "cloudEvents_type": "made", "colour": "blue"}


@both_kinds
def test_an_unroutable_message_waits(queues: Queues, send: Send) -> None:
    """A message for which no queue is bound is unavailable, with a reason that names the exchange and the
    routing key. Others go on, and once there is a queue the message is accepted."""
    queue, nowhere = queues.new(), f"nowhere-{uuid4()}"
    outcomes = send(queues.url, [envelope(queue, "1"), envelope(nowhere), envelope(queue, "2")])
    assert kinds(outcomes) == [Accepted, Unavailable, Accepted]
    assert reason(outcomes[1]) == f"exchange '', routing key {nowhere!r}: no queue is bound there"
    assert queues.bodies(queue) == ["1", "2"]
    queues.do(lambda channel: channel.queue_declare(nowhere, exclusive=False, auto_delete=True))
    try:
        assert send(queues.url, [envelope(nowhere)]) == [Accepted()]
    finally:
        queues.do(lambda channel: channel.queue_delete(nowhere))


def test_an_exchange_routes_by_topic(queues: Queues) -> None:
    """With an exchange, the topic is the routing key."""
    queue, exchange = queues.new(), f"test-{uuid4()}"
    queues.do(lambda channel: channel.exchange_declare(exchange, exchange_type="topic"))
    try:
        queues.do(lambda channel: channel.queue_bind(queue, exchange, "orders.*"))
        batch = [envelope("orders.made"), envelope("bills.made")]
        assert kinds(send_once(queues.url, batch, exchange=exchange)) == [Accepted, Unavailable]
        assert queues.count(queue) == 1
    finally:
        queues.do(lambda channel: channel.exchange_delete(exchange))


def test_a_full_queue_makes_messages_wait(queues: Queues) -> None:
    """A message that a full queue rejects (basic.nack) was not taken, and is unavailable."""
    queue = queues.new(x_max_length=2, x_overflow="reject-publish")
    outcomes = send_once(queues.url, [envelope(queue, str(number)) for number in range(8)])
    assert kinds(outcomes) == [Accepted] * 2 + [Unavailable] * 6
    assert queues.bodies(queue) == ["0", "1"]


def test_a_missing_exchange(queues: Queues) -> None:
    """The check names a missing exchange. Without the check no message is reported as accepted or refused,
    and once the exchange exists the same publisher continues."""
    queue, exchange = queues.new(), f"test-{uuid4()}"
    publisher = RabbitPublisher(queues.url, exchange=exchange)
    try:
        with pytest.raises(UnsafeBroker, match=f"exchange='{exchange}': there is no such exchange"):
            publisher.check(60)
        assert kinds(published(publisher, [envelope("a")])) == [Unavailable]
        assert kinds(published(publisher, [envelope("a"), envelope("b")])) == [Unknown] * 2
        queues.do(lambda channel: channel.exchange_declare(exchange))
        queues.do(lambda channel: channel.queue_bind(queue, exchange, "a"))
        publisher.check(60)
        assert published(publisher, [envelope("a")]) == [Accepted()]
    finally:
        publisher.close()
        queues.do(lambda channel: channel.exchange_delete(exchange))
    assert queues.count(queue) == 1


def test_what_amqp_cannot_say_is_refused(queues: Queues) -> None:
    """A message with a header name that is too long for the protocol is refused, and so is a tombstone, with
    the reason that RabbitMQ has none; others are accepted."""
    queue = queues.new()
    tombstone = replace(envelope(queue, "1"), payload=None, content_type="")
    batch = [envelope(queue, "1", **{"x" * 300: ""}), tombstone, envelope(queue, "2")]
    outcomes = send_once(queues.url, batch)
    assert kinds(outcomes) == [Refused, Refused, Accepted]
    assert "tombstone" in reason(outcomes[1])
    assert queues.bodies(queue) == ["2"]


def test_a_wrong_password(queues: Queues) -> None:
    """With a wrong password the check raises an error that names the address but not the password, and a send
    reports that nothing was taken. A missing virtual host is reported in the same way."""
    place = urlsplit(queues.url)
    publisher = RabbitPublisher(f"amqp://guest:secret@{place.hostname}:{place.port}/")
    try:
        with pytest.raises(
            UnsafeBroker, match=f"url='amqp://guest@127.0.0.1:{place.port}/': .*ACCESS_REFUSED"
        ) as told:
            publisher.check(60)
        (outcome,) = published(publisher, [envelope("a")])
        assert isinstance(outcome, Unavailable)
        for text in (repr(publisher), str(told.value), outcome.reason):
            assert "secret" not in text
    finally:
        publisher.close()
    elsewhere = RabbitPublisher(f"amqp://guest:guest@{place.hostname}:{place.port}/none")
    with pytest.raises(UnsafeBroker, match=r"/none': RabbitMQ refuses .*virtual host does not exist"):
        elsewhere.check(60)
    elsewhere.close()


def test_the_check_and_the_lease(queues: Queues, caplog: pytest.LogCaptureFixture) -> None:
    """A time limit that is not shorter than the lease is rejected. A broker that is away does not stop a
    relay from starting, and the log says what was not checked; of a message that is sent all the same, the
    outcome names the address."""
    publisher, port = RabbitPublisher(queues.url, timeout=timedelta(seconds=5)), free_port()
    away = RabbitPublisher(f"amqp://127.0.0.1:{port}/")
    try:
        assert publisher.timeout == 5
        publisher.check(5.1)
        with pytest.raises(UnsafeBroker, match="timeout=5: expected less than the lease of 5 s"):
            publisher.check(5)
        away.check(60)
        assert "not checked, because RabbitMQ cannot be reached" in caplog.text
        (outcome,) = published(away, [envelope("a")])
        assert str(port) in reason(outcome)
    finally:
        publisher.close()
        away.close()


def test_the_checks_of_the_asynchronous_publisher(queues: Queues) -> None:
    """The asynchronous publisher checks the lease and the exchange in the same way; its check is awaited."""
    exchange = f"test-{uuid4()}"

    async def scenario() -> None:
        publisher = AsyncRabbitPublisher(queues.url, exchange=exchange, timeout=5)
        with pytest.raises(UnsafeBroker, match="timeout=5"):
            await publisher.check(5)
        with pytest.raises(UnsafeBroker, match=f"exchange='{exchange}'"):
            await publisher.check(6)
        await publisher.close()

    asyncio.run(scenario())


@pytest.mark.long
def test_a_fork_has_a_connection_of_its_own(queues: Queues) -> None:
    """A forked process can send, and so can its parent afterwards."""
    queue = queues.new()
    publisher = RabbitPublisher(queues.url)
    assert published(publisher, [envelope(queue, "before")]) == [Accepted()]
    child = os.fork()
    if child == 0:
        accepted = published(publisher, [envelope(queue, "child")]) == [Accepted()]
        os._exit(0 if accepted else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert published(publisher, [envelope(queue, "after")]) == [Accepted()]
    publisher.close()
    assert queues.bodies(queue) == ["before", "child", "after"]


def test_what_a_publisher_is_made_of() -> None:
    """Both classes implement their protocols. Unusable addresses and options are named, but passwords are not
    shown."""
    assert isinstance(RabbitPublisher("amqp://localhost"), Publisher)
    assert isinstance(AsyncRabbitPublisher("amqp://localhost"), AsyncPublisher)
    shown = repr(RabbitPublisher("amqp://me:secret@there:1/v?name=x", exchange="e"))
    assert shown == "RabbitPublisher('amqp://me@there:1/v', exchange='e')"
    for url in ("http://me:secret@there", "", "amqp://", "amqp://me:secret@there:notaport", None):
        with pytest.raises(InvalidOption, match="url: expected") as told:
            RabbitPublisher(url)  # type: ignore[arg-type]
        assert "secret" not in str(told.value)
    for url in ("amqp://me:1/secret@there", "amqp://me:1#secret@there", "amqp://me:1?secret@there/v"):
        with pytest.raises(InvalidOption, match="url: write / ") as told:
            RabbitPublisher(url)
        assert "secret" not in str(told.value)
    escaped = RabbitPublisher("amqp://me:1%2Fsec%23ret%40@there/v%40#secret")
    assert "sec" not in repr(escaped)
    assert "me@there/v" in repr(escaped)
    with pytest.raises(InvalidOption, match="exchange=None"):
        RabbitPublisher("amqp://localhost", exchange=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="timeout=-1"):
        RabbitPublisher("amqp://localhost", timeout=-1)
