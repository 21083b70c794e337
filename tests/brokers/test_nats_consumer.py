"""What a consumer for NATS gets, and what it does with a stream, a durable consumer and their settings."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from examples.embedded_postgres import free_port
from inbox import Delivery, Outcome, Verdict
from inbox._consuming.nats.delivery import OURS, delivery_of
from inbox._consuming.nats.options import subjects
from inbox.errors import GiveUp, InvalidOption
from inbox.nats import AsyncNatsConsumer, NatsConsumer
from inbox_outbox_base.brokers.nats.address import parse
from inbox_outbox_base.brokers.nats.message import size_of
from inbox_outbox_base.words.outgoing import ACCEPTED, Unavailable, Unknown
from outbox.nats import NatsPublisher
from tests.servers.nats import LocalNats
from tests.support.answers import published
from tests.support.brokers.consumers import SOON, payloads, running, taking
from tests.support.brokers.nats_streams import NatsStreams, envelope
from tests.support.processes import wait_until
from tests.support.proxy import TcpProxy

pytest_plugins = ["tests.support.brokers.nats_fixtures"]

LIMIT = 1_048_576


def consumer(url: str, stream: str, handler: Any, **options: Any) -> NatsConsumer:
    """One that stores dead letters nowhere, and retries soon."""
    given = {"backoff": SOON, "ack_wait": 2, "durable": "test", "dead_letter": lambda *_: None, **options}
    return NatsConsumer(url, stream, handler, **given)


def test_messages_of_others() -> None:
    """The id is that of the CloudEvent, otherwise the Nats-Msg-Id, otherwise the place and the time, which a
    stream that is made again does not repeat. What is broken stays as it is."""

    def made(headers: dict[str, str] | None, sequence: int = 7, microsecond: int = 0) -> Delivery:
        reply = f"$JS.ACK.ORDERS.d.2.{sequence}.9.{1_767_312_000_000_000 + microsecond}000.0"
        client: Any = None
        message = Msg(client, subject="orders.new", reply=reply, data=b"x", headers=headers)
        return delivery_of(message, 2)

    plain = made({"colour": "blue", "content-type": "text/plain"})
    assert (plain.id, plain.topic, plain.key) == ("ORDERS-7-2026-01-02T00:00:00+00:00", "orders.new", None)
    assert (plain.payload, plain.content_type, plain.attempt) == (b"x", "text/plain", 2)
    assert plain.headers == {"colour": "blue", "content-type": "text/plain"}
    assert (f"{plain.created_at}", plain.place) == ("2026-01-02 00:00:00+00:00", "ORDERS, sequence 7")
    ids = {made(None).id, made(None, 8).id, made(None, 7, 1).id}
    assert len(ids) == 3
    assert made({"Nats-Msg-Id": "mine"}).id == "mine"
    event = made({"ce-specversion": "1.0", "Ce-Id": "a%20b", "ce-source": "/%C3%A9", "Nats-Msg-Id": "mine"})
    assert event.id == '["/é","a b"]'
    assert event.headers["ce_id"] == "a b"
    for odd in ("[1", "[]", '{"id": ""}', '{"id": 1}', "[" * 100_000):
        found = made({"Outbox": odd, "Nats-Msg-Id": "mine"})
        assert (found.id, found.headers["Outbox"]) == ("mine", odd)
    strange = {"id": "1", "key": "\ud800", "headers": [1], "created": "yesterday"}
    found = made({"Outbox": json.dumps(strange)})
    assert (found.id, found.key, found.headers) == ("1", "\\ud800", {})


@pytest.mark.parametrize(
    ("given", "is_one"),
    [
        ("a.b", True),
        ("*", True),
        (">", True),
        ("a.*.c.>", True),
        ("a.>.c", False),
        ("a*", False),
        ("a.b*", False),
        ("a..b", False),
        ("", False),
        ("$JS.API.>", False),
    ],
)
def test_subjects(given: str, is_one: bool) -> None:
    """A wildcard stands for whole words, and > for all that follow."""
    if is_one:
        assert subjects(given) == [given]
    else:
        with pytest.raises(InvalidOption, match=r"^subjects="):
            subjects(given)


def test_invalid_options() -> None:
    """An invalid option is rejected by name when the consumer is created, without repeating a password."""

    async def asynchronous(_: Delivery) -> Outcome:
        return Outcome(Verdict.NEW)

    def make(**options: Any) -> Callable[[], NatsConsumer]:
        given: dict[str, Any] = {"durable": "d", "dead_letter": "x", "handler": payloads([])}
        return lambda: NatsConsumer(**{"url": "nats://h", "stream": "s", **given, **options})

    wrong = {
        "url": make(url="amqp://key:s3cr3t@h"),
        "stream='orders.new'": make(stream="orders.new"),
        "durable='a b'": make(durable="a b"),
        "handler": make(handler=asynchronous),
        "subjects='a..b'": make(subjects=["a", "a..b"]),
        "prefetch": make(prefetch=0),
        "ack_wait=1": make(ack_wait=1),
        "ack_wait=10.5": make(ack_wait=10.5),
        "max_attempts": make(max_attempts=0),
        "dead_letter=None": make(dead_letter=None),
        "dead_letter='a.*'": make(dead_letter="a.*"),
        "dead_letter=5": make(dead_letter=5),
        "concurrency": make(concurrency=0),
    }
    for option, mistake in wrong.items():
        with pytest.raises(InvalidOption, match=f"^{option}") as refused:
            mistake()
        assert "s3cr3t" not in str(refused.value)
    with pytest.raises(InvalidOption, match=r"^handler"):
        AsyncNatsConsumer("nats://h", "s", 5, durable="d", dead_letter="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="colour"):
        make(colour="blue")()


def test_what_does_not_go_with_the_stream(nats: NatsStreams, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer refuses to start, and names the option."""
    monkeypatch.setattr(AsyncNatsConsumer, "_patience", 0)
    stream, queue = nats.new(), nats.new(retention="workqueue")
    settings: dict[str, dict[str, Any]] = {
        "pushes": {"deliver_subject": "somewhere"},
        "none": {"ack_policy": AckPolicy.NONE},
        "headers": {"headers_only": True},
        "backoff": {"backoff": [1.0, 2.0], "max_deliver": 5},
        "short": {"ack_wait": 1.0},
        "buries": {"max_deliver": 16},
        "some": {"filter_subject": stream},
    }
    for durable, each in settings.items():
        config = ConsumerConfig(durable_name=durable, **each)
        nats.run(lambda js, config=config: js.add_consumer(stream, config))
    nats.run(lambda js: js.add_consumer(queue, ConsumerConfig(durable_name="first")))
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("missing", {}, "^stream='missing'"),
        (stream, {"dead_letter": "missing"}, "^dead_letter='missing': no stream"),
        (stream, {"dead_letter": stream}, f"^dead_letter='{stream}': stream '{stream}' takes it"),
        (stream, {"durable": "pushes"}, "^durable='pushes'.*deliver_subject='somewhere'"),
        (stream, {"durable": "none"}, "^durable='none'.*ack_policy=none"),
        (stream, {"durable": "headers"}, "^durable='headers'.*headers_only=true"),
        (stream, {"durable": "backoff"}, "^durable='backoff'.*backoff="),
        (stream, {"durable": "short"}, "^durable='short'.*ack_wait=1 s"),
        (stream, {"durable": "buries"}, "^max_attempts=16.*max_deliver=16"),
        (stream, {"durable": "buries", "max_attempts": None}, "^max_attempts=None.*max_deliver=16"),
        (stream, {"durable": "some", "subjects": "other"}, "^subjects=.'other'.*'some' takes"),
        (queue, {"durable": "second"}, "^durable='second': the consumer cannot be made"),
    ]
    for place, options, why in cases:
        with pytest.raises(InvalidOption, match=why):
            consumer(nats.url, place, payloads([]), **options).run()
    with pytest.raises(ConnectionError):
        consumer(f"nats://me:secret@127.0.0.1:{free_port()}", stream, payloads([])).run()


def test_a_durable_consumer(nats: NatsStreams) -> None:
    """It is made, from the first message on, and shared by programs of the same name; another one gets all
    messages again, or those with its subjects."""
    stream = nats.new(subjects=["a", "b.*"])
    nats.change(stream, subjects=[f"{stream}.a", f"{stream}.b.*"])
    for name in ("a", "b.1", "b.2"):
        nats.put(f"{stream}.{name}", name.encode())
    seen, again, some = list[bytes](), list[bytes](), list[bytes]()
    with running(consumer(nats.url, stream, payloads(seen))):
        wait_until(lambda: len(seen) >= 3 and nats.left(stream, "test") == 0)
    with (
        running(consumer(nats.url, stream, payloads(again), durable="again")),
        running(consumer(nats.url, stream, payloads(seen))),
        running(consumer(nats.url, stream, payloads(some), durable="some", subjects=f"{stream}.b.*")),
    ):
        wait_until(lambda: len(again) >= 3 and len(some) >= 2)
    assert [sorted(each) for each in (seen, again, some)] == [[b"a", b"b.1", b"b.2"]] * 2 + [[b"b.1", b"b.2"]]


def test_retries(nats: NatsStreams) -> None:
    """A failed message is delivered again by NATS, as a later attempt; one that the database could not take
    stays, and costs no delivery."""
    stream, seen, deliveries = nats.new(), list[tuple[bytes, int]](), Counter[bytes]()

    def handle(message: Delivery) -> Outcome:
        seen.append((message.payload, message.attempt))
        deliveries[message.payload] = message.raw.metadata.num_delivered
        if message.payload == b"fails" and message.attempt == 1:
            return Outcome(Verdict.NEW, error=ValueError("no"))
        if message.payload == b"waits" and message.attempt == 1:
            return Outcome(Verdict.NEW, error=ConnectionError("no"), is_answered=True)
        return Outcome(Verdict.NEW)

    for payload in (b"fails", b"waits", b"good"):
        nats.put(stream, payload)
    with running(consumer(nats.url, stream, handle)):
        wait_until(lambda: len(seen) >= 5 and nats.left(stream, "test") == 0)
    assert sorted(seen) == [(b"fails", 1), (b"fails", 2), (b"good", 1), (b"waits", 1), (b"waits", 2)]
    assert deliveries == {b"fails": 2, b"waits": 1, b"good": 1}


def test_a_limit_of_deliveries(nats: NatsStreams) -> None:
    """Where the durable consumer has one, the last delivery is kept until it is settled: NATS would forget
    the message."""
    stream, seen = nats.new(), list[tuple[int, int]]()
    config = ConsumerConfig(durable_name="test", ack_wait=2, max_deliver=2)
    nats.run(lambda js: js.add_consumer(stream, config))

    def handle(message: Delivery) -> Outcome:
        seen.append((message.attempt, message.raw.metadata.num_delivered))
        return Outcome(Verdict.NEW if message.attempt == 4 else Verdict.IN_FLIGHT)

    nats.put(stream)
    with running(consumer(nats.url, stream, handle, max_attempts=1)):
        wait_until(lambda: nats.left(stream, "test") == 0)
    assert seen == [(1, 1), (2, 2), (3, 2), (4, 2)]


def test_dead_letters(nats: NatsStreams) -> None:
    """They go to another stream, whole and with the reason, also those of others; they are read as they were
    first. One that is stored twice is stored once."""
    stream, dead, seen = nats.new(), nats.new(), list[Delivery]()

    def give_up(message: Delivery) -> Outcome:
        seen.append(message)
        return Outcome(Verdict.DEAD, error=GiveUp("no\nway é"))

    theirs = {"colour": "blue", "Nats-Msg-Id": "mine", "Nats-Expected-Stream": stream}
    publisher = NatsPublisher(nats.url)
    assert published(publisher, [envelope(stream, b"\0", "k", a="ü")]) == [ACCEPTED]
    publisher.close()
    nats.put(stream, b"\xff", theirs)
    nats.put(stream, b"")
    with running(consumer(nats.url, stream, give_up, dead_letter=dead)):
        wait_until(lambda: nats.left(stream, "test") == 0 and len(seen) == 3)
    with running(consumer(nats.url, stream, give_up, dead_letter=dead, durable="again")):
        wait_until(lambda: nats.left(stream, "again") == 0 and len(seen) == 6)
    letters = nats.taken(dead, 3)
    assert len(letters) == 3
    for letter, first in zip(letters, sorted(seen[:3], key=lambda each: f"{each.place}"), strict=True):
        said = json.loads((letter.headers or {})[OURS])
        assert "no way é" in said["reason"]
        assert (said["attempt"], said["stream"], said["subject"]) == (1, stream, stream)
        again = delivery_of(letter, 1)
        for name in ("id", "topic", "key", "payload", "content_type", "created_at"):
            assert getattr(again, name) == getattr(first, name), name
    assert (letters[1].headers or {}).keys() == {"colour", "Nats-Msg-Id", OURS}


@pytest.mark.parametrize("room", [0, 250, 1_500])
def test_a_dead_letter_without_room(nats: NatsStreams, room: int) -> None:
    """The reason is cut, or left out, if the message would be too large with it."""
    stream, dead = nats.new(), nats.new()

    def give_up(_: Delivery) -> Outcome:
        return Outcome(Verdict.DEAD, error=GiveUp("é" * 1_000))

    headers = {"Nats-Msg-Id": uuid4().hex + "0" * 16}
    nats.put(stream, b"a" * (LIMIT - size_of(headers) - room), headers)
    with running(consumer(nats.url, stream, give_up, dead_letter=dead)):
        wait_until(lambda: nats.left(stream, "test") == 0 and nats.count(dead))
    (letter,) = nats.taken(dead, 1)
    said = json.loads((letter.headers or {}).get(OURS, "{}"))
    assert ("reason" in said) == (room > 0)
    assert len(said.get("reason", "")) < 1_000


def test_a_full_stream_of_dead_letters(nats: NatsStreams) -> None:
    """Nothing is acknowledged until there is room."""
    stream, dead, seen = nats.new(), nats.new(max_msgs=1, discard="new"), Counter[bytes]()

    def give_up(message: Delivery) -> Outcome:
        seen[message.payload] += 1
        return Outcome(Verdict.DEAD, error=GiveUp("no way"))

    for payload in (b"1", b"2"):
        nats.put(stream, payload)
    with running(consumer(nats.url, stream, give_up, dead_letter=dead)):
        wait_until(lambda: len(seen) == 2 and nats.count(dead) == 1)
        assert nats.left(stream, "test") == 1
        nats.run(lambda js: js.purge_stream(dead))
        wait_until(lambda: nats.left(stream, "test") == 0)
    assert nats.count(dead) == 1
    assert seen == {b"1": 1, b"2": 1}


def test_a_stop_gives_back_what_was_pulled(nats: NatsStreams) -> None:
    """The messages behind a busy key go back at once, and are delivered to the next consumer."""
    stream, seen, goes_on = nats.new(), list[bytes](), threading.Event()

    def handle(message: Delivery) -> Outcome:
        seen.append(message.payload)
        goes_on.wait(20)
        return Outcome(Verdict.NEW)

    for number in range(50):
        nats.put(stream, b"%d" % number)
    first = consumer(nats.url, stream, handle, key=lambda _: "k", ack_wait=600, durable="test")
    with running(first):
        wait_until(lambda: seen)
        first.stop()
        goes_on.set()
    rest = list[bytes]()
    with running(consumer(nats.url, stream, payloads(rest), ack_wait=600)):
        wait_until(lambda: len(rest) >= 49)
    assert sorted({*seen, *rest}, key=int) == [b"%d" % number for number in range(50)]
    assert len(seen) + len(rest) == 50


def test_a_stream_that_is_made_again(nats: NatsStreams) -> None:
    """The consumer says that it is not ready, makes its durable consumer again, and goes on."""
    stream, seen = nats.new(), list[bytes]()
    with running(consumer(nats.url, stream, payloads(seen))) as one:
        nats.put(stream, b"1")
        wait_until(lambda: seen == [b"1"])
        nats.delete(stream)
        wait_until(lambda: not one.probe().is_ready)
        nats.new(stream)
        nats.put(stream, b"2")
        wait_until(lambda: seen == [b"1", b"2"] and one.probe().is_ready)


def test_a_server_that_has_lost_all(private_nats: LocalNats) -> None:
    """After a crash, and after a restart without streams, the consumer and the publisher go on by themselves,
    once the stream is there again. Sequences that come again make no duplicates."""
    seen = list[Delivery]()
    with NatsStreams(private_nats.url) as streams:
        stream = streams.new()
        with running(consumer(private_nats.url, stream, taking(seen.append))) as one:
            streams.put(stream, b"1")
            wait_until(lambda: len(seen) == 1)
            private_nats.restart()
            streams.put(stream, b"2")
            wait_until(lambda: len(seen) == 2 and one.probe().is_ready)
            private_nats.restart_empty()
            wait_until(lambda: not one.probe().is_ready)
            streams.new(stream)
            streams.put(stream, b"3")
            wait_until(lambda: len(seen) == 3 and one.probe().is_ready)
    assert len({each.id for each in seen}) == 3


@pytest.mark.long  # longer than a request for messages may take
def test_a_server_that_hangs(private_nats: LocalNats) -> None:
    """After SIGSTOP for longer than a request may take, the consumer and the publisher go on."""
    seen = list[bytes]()
    with NatsStreams(private_nats.url) as streams:
        stream = streams.new()
        publisher = NatsPublisher(private_nats.url, timeout=2)
        with running(consumer(private_nats.url, stream, payloads(seen))) as one:
            assert published(publisher, [envelope(stream, b"1")]) == [ACCEPTED]
            wait_until(lambda: seen == [b"1"])
            private_nats.freeze()
            try:
                wait_until(lambda: not one.probe().is_ready)
                outcomes = published(publisher, [envelope(stream, b"frozen")])
                assert {type(each) for each in outcomes} <= {Unavailable, Unknown}
            finally:
                private_nats.thaw()
            wait_until(lambda: published(publisher, [envelope(stream, b"2")]) == [ACCEPTED])
            wait_until(lambda: b"2" in seen and one.probe().is_ready)
        publisher.close()


def test_a_lost_acknowledgement(nats: NatsStreams) -> None:
    """If its answer is lost, it is repeated on a new connection, and the message does not come again."""
    stream, seen = nats.new(), list[bytes]()
    host, _, port = parse(nats.url).hosts[0].rpartition(":")
    with TcpProxy(host, int(port)) as proxy:
        proxy.cut_on(lambda chunk: b"+ACK" in chunk, forward=True)
        with running(consumer(f"nats://127.0.0.1:{proxy.port}", stream, payloads(seen), ack_wait=600)):
            nats.put(stream, b"1")
            wait_until(lambda: seen and proxy.was_cut.is_set())
            nats.put(stream, b"2")
            wait_until(lambda: nats.left(stream, "test") == 0)
    assert seen == [b"1", b"2"]


@pytest.mark.long  # the database is away for as long as NATS would need for all its deliveries
def test_the_database_is_away_for_long(nats: NatsStreams) -> None:
    """Longer than the durable consumer's limit of deliveries allows: nothing is among the dead letters, and
    everything is taken afterwards."""
    stream, dead, seen, is_away = nats.new(), nats.new(), list[bytes](), threading.Event()
    is_away.set()
    nats.run(
        lambda js: js.add_consumer(stream, ConsumerConfig(durable_name="test", ack_wait=2, max_deliver=3))
    )

    def handle(message: Delivery) -> Outcome:
        if is_away.is_set():
            return Outcome(Verdict.NEW, error=ConnectionError("no database"), is_answered=True)
        seen.append(message.payload)
        return Outcome(Verdict.NEW)

    for number in range(30):
        nats.put(stream, b"%d" % number)
    with running(consumer(nats.url, stream, handle, max_attempts=2, dead_letter=dead)):
        time.sleep(8)
        is_away.clear()
        wait_until(lambda: len({*seen}) >= 30 and nats.left(stream, "test") == 0)
    assert nats.count(dead) == 0


CONSUMERS_RIGHTS = """
maker = ["$JS.ACK.>", "$JS.API.CONSUMER.*.>", "$JS.API.STREAM.NAMES", "dead"]
reader = ["$JS.ACK.>", "$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.MSG.NEXT.>"]
authorization {
  users = [
    { user: all, password: secret }
    { user: maker, password: secret, permissions: { publish: $maker, subscribe: "_INBOX.>" } }
    { user: reader, password: secret, permissions: { publish: $reader, subscribe: "_INBOX.>" } }
  ]
}
"""


def test_rights(private_nats: LocalNats) -> None:
    """What the page says about the rights of a consumer is enough; one that may not make its durable consumer
    takes what another one has made."""
    private_nats.configure(CONSUMERS_RIGHTS)
    host, seen, again = private_nats.url.removeprefix("nats://"), list[bytes](), list[bytes]()
    with NatsStreams(f"nats://all:secret@{host}") as streams:
        stream, dead = streams.new(), streams.new("dead")

        def give_up(message: Delivery) -> Outcome:
            seen.append(message.payload)
            return Outcome(Verdict.DEAD, error=GiveUp("no way"))

        streams.put(stream, b"1")
        with running(consumer(f"nats://maker:secret@{host}", stream, give_up, dead_letter=dead)):
            wait_until(lambda: streams.count(dead) == 1 and streams.left(stream, "test") == 0)
        streams.put(stream, b"2")
        with running(consumer(f"nats://reader:secret@{host}", stream, payloads(again))):
            wait_until(lambda: streams.left(stream, "test") == 0)
        for login, why in (("maker:wrong", "refuses the login"), ("", "refuses the login")):
            with pytest.raises(InvalidOption, match=f"^url: NATS {why}"):
                consumer(f"nats://{login}{'@' * bool(login)}{host}", stream, payloads([])).run()
    assert (seen, again) == ([b"1"], [b"2"])
