"""What is particular to Redis Streams: settings, entries that wait, trimming, dead letters, the commands."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from examples.embedded_postgres import free_port
from inbox import Backoff, Delivery, Outcome, Verdict
from inbox._consuming.redis_streams import scripts
from inbox._consuming.redis_streams.delivery import delivery_of, said_in
from inbox._consuming.redis_streams.link import GroupLink
from inbox.errors import InvalidOption
from inbox.redis_streams import AsyncRedisStreamsConsumer, RedisStreamsConsumer, Redriven, redrive
from inbox_outbox_base.brokers.redis_streams import address
from inbox_outbox_base.words.outgoing import ACCEPTED, Refused, Unavailable, Unknown
from outbox.errors import InvalidOption as InvalidPublisherOption
from outbox.errors import UnsafeBroker
from outbox.redis_streams import RedisStreamsPublisher
from tests.servers.redis import LocalRedis
from tests.support.answers import published
from tests.support.brokers.consumers import SOON, payloads, running, taking
from tests.support.brokers.redis_groups import GROUP, Streams
from tests.support.brokers.sqs_messages import envelope
from tests.support.cli import inbox_outbox
from tests.support.database import Database
from tests.support.documented_code import name, pages_that_need, run_on_broker
from tests.support.outbox_publishers import publish
from tests.support.processes import wait_until
from tests.support.proxy import TcpProxy

pytest_plugins = ["tests.support.brokers.redis_fixtures"]

REFUSED = (InvalidOption, InvalidPublisherOption)
FAILED = Outcome(Verdict.NEW, error=ValueError("no"))


def consumer(url: str, stream: str, handler: Any, **options: Any) -> RedisStreamsConsumer:
    """One that retries soon."""
    return RedisStreamsConsumer(
        url, stream, handler, **{"group": GROUP, "backoff": SOON, "idle": 1, **options}
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("rediss://u:s3%40cr3t@h:1/2?ssl_ca_certs=/ca", "rediss://h:1/2"),
        ("redis://:s3cr3t@[::1]:7", "redis://[::1]:7/0"),
    ],
)
def test_addresses(url: str, shown: str) -> None:
    """A login is read, and never shown."""
    found = address.parse(url)
    assert str(found) == shown
    assert "s3" not in repr(found)
    assert found.password in (None, "s3@cr3t", "s3cr3t")


@pytest.mark.parametrize(
    "url", ["amqp://h", "redis://", "redis://u:s3cr3t@h/x", "redis://h?a=s3cr3t", "redis://:s3cr3t@h:0", 7]
)
def test_wrong_addresses(url: Any) -> None:
    """A wrong address is refused, and not repeated: it may hold a secret."""
    for refuse in (lambda: RedisStreamsPublisher(url), lambda: consumer(url, "s", payloads([]))):
        with pytest.raises(REFUSED, match=r"^url: expected") as info:
            refuse()
        assert "s3cr3t" not in str(info.value)


def test_invalid_options(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid option is refused by name; what the server lacks, when the consumer starts."""

    def make(**options: Any) -> Callable[[], object]:
        given = {"url": "redis://h", "stream": "s", "handler": payloads([]), "group": "g", **options}
        return lambda: RedisStreamsConsumer(**given)

    wrong = {
        "stream": make(stream=""),
        "group": make(group=7),
        "idle": make(idle=0.5),
        "declare": make(declare=1),
        "trim": make(trim="yes"),
        "prefetch": make(prefetch=0),
        "dead_letter": make(dead_letter="s"),
        "handler": make(handler=7),
        "largest": lambda: RedisStreamsPublisher("redis://h", largest=0),
        "durable": lambda: RedisStreamsPublisher("redis://h", durable=cast("Any", 1)),
        "topics": lambda: RedisStreamsPublisher("redis://h", topics="orders"),
    }
    for option, refuse in wrong.items():
        with pytest.raises(REFUSED, match=f"^{option}="):
            refuse()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(AsyncRedisStreamsConsumer, "_patience", 0)
    stream, secret = streams.new(), streams.url.replace("redis://", "redis://nobody:s3cr3t@")
    for url, place, group, why in (
        (streams.url, "missing", GROUP, "there is no such stream or group"),
        (streams.url, stream, "missing", "there is no such stream or group"),
        (secret, stream, GROUP, "^url: Redis refuses the login"),
    ):
        with pytest.raises(InvalidOption, match=why) as info:
            consumer(url, place, payloads([]), group=group).run()
        assert "s3cr3t" not in str(info.value)


def test_settings(private_redis: LocalRedis, caplog: pytest.LogCaptureFixture) -> None:
    """A server that may lose what it has confirmed is refused by the setting, unless that is wanted."""
    with Streams(private_redis.url) as streams:
        publisher = RedisStreamsPublisher(private_redis.url, timeout=2)
        publisher.check(30)
        assert not caplog.text
        streams.client.config_set("appendfsync", "everysec")
        publisher.check(30)
        assert "appendfsync=everysec" in caplog.text
        streams.client.config_set("maxmemory", "100mb")
        streams.client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(UnsafeBroker, match=r"^maxmemory-policy=allkeys-lru"):
            publisher.check(30)
        streams.client.config_set("appendonly", "no")
        with pytest.raises(UnsafeBroker, match=r"^appendonly=no"):
            publisher.check(30)
        RedisStreamsPublisher(private_redis.url, durable=False).check(30)
        with pytest.raises(UnsafeBroker, match=r"^timeout=2"):
            publisher.check(2)
        streams.client.acl_setuser(
            "writer", enabled=True, passwords=["+s3cr3t"], keys="*", commands=["+xadd", "+type"]
        )
        caplog.clear()
        RedisStreamsPublisher(private_redis.url.replace("://", "://writer:s3cr3t@")).check(30)
        assert "its settings are not checked" in caplog.text
        with pytest.raises(UnsafeBroker, match="refuses the login") as info:
            RedisStreamsPublisher(private_redis.url.replace("://", "://writer:wr0ng@")).check(30)
        assert "wr0ng" not in str(info.value) + caplog.text
        with pytest.raises(UnsafeBroker, match=r"^topics='missing': there is no such stream"):
            RedisStreamsPublisher(private_redis.url, topics=["missing"]).check(30)


def test_what_is_not_added(streams: Streams) -> None:
    """After a message that is refused, no later one of its key is sent; a key that is no stream and a server
    that is away take nothing."""
    stream, text = streams.new(), f"{streams.new()}.text"
    publisher = RedisStreamsPublisher(streams.url, largest=1_000)
    batch = [envelope(stream, b"1", "a"), envelope(stream, bytes(1_001), "a"), envelope(stream, b"2", "a")]
    batch.append(envelope(stream, None, "b"))
    outcomes = published(publisher, batch)
    assert [type(each) for each in outcomes] == [type(ACCEPTED), Refused, Unavailable, type(ACCEPTED)]
    assert "largest=1000" in str(outcomes[1])
    found = [delivery_of(stream, "1-1", fields, 1) for fields in streams.entries(stream)]
    assert [(each.key, each.payload) for each in found] == [("a", b"1"), ("b", None)]
    streams.client.set(text, "x")
    (wrong,) = published(publisher, [envelope(text)])
    assert isinstance(wrong, Unavailable)
    away = RedisStreamsPublisher(f"redis://127.0.0.1:{free_port()}", timeout=1)
    (unsent,) = published(away, [envelope(stream)])
    assert isinstance(unsent, Unavailable)
    publisher.close()


def test_a_full_server(private_redis: LocalRedis) -> None:
    """Nothing of a transaction is added, and the publisher goes on when there is room."""
    with Streams(private_redis.url) as streams:
        stream, publisher = streams.new(), RedisStreamsPublisher(private_redis.url, timeout=2)
        streams.client.config_set("maxmemory", "1")
        batch = [envelope(stream, b"1", "a"), envelope(stream, b"2", "b")]
        assert {type(each) for each in published(publisher, batch)} == {Unavailable}
        streams.client.config_set("maxmemory", "0")
        assert published(publisher, batch) == [ACCEPTED, ACCEPTED]
        assert len(streams.entries(stream)) == 2


def test_a_lost_answer(streams: Streams) -> None:
    """The outcome is unknown, the next send brings the same id, and the next connection is sound."""
    stream = streams.new()
    place = address.parse(streams.url)
    with TcpProxy(place.host, place.port) as proxy:
        publisher = RedisStreamsPublisher(f"redis://127.0.0.1:{proxy.port}", timeout=3)
        proxy.cut_on(lambda chunk: b"XADD" in chunk, forward=True)
        message = envelope(stream, b"1", "a")
        (unknown,) = published(publisher, [message])
        assert isinstance(unknown, Unknown)
        assert published(publisher, [message]) == [ACCEPTED]
        publisher.close()
    found = [delivery_of(stream, "1-1", fields, 1).id for fields in streams.entries(stream)]
    assert set(found) == {message.id}


def test_a_message_waits_for_longer_than_the_lease(streams: Streams) -> None:
    """Beside others that go on. A second consumer does not take it before its time."""
    stream, seen = streams.new(), list[tuple[bytes, int, float]]()

    def handle(message: Delivery) -> Outcome:
        seen.append((message.payload, message.attempt, time.monotonic()))
        return FAILED if message.payload == b"waits" and message.attempt == 1 else Outcome(Verdict.NEW)

    slow = {"backoff": Backoff(first=4, longest=4)}
    with (
        running(consumer(streams.url, stream, handle, **slow)),
        running(consumer(streams.url, stream, handle)),
    ):
        streams.put(stream, {"payload": "waits"})
        wait_until(lambda: seen)
        streams.put(stream, {"payload": "goes on"})
        wait_until(lambda: streams.is_done(stream))
    waits = [(attempt, at) for payload, attempt, at in seen if payload == b"waits"]
    assert [attempt for attempt, _ in waits] == [1, 2]
    assert [payload for payload, *_ in seen] == [b"waits", b"goes on", b"waits"]


def test_what_was_not_run_costs_no_delivery(streams: Streams) -> None:
    """What a consumer gives back when it stops has its number; so has what the database did not let run."""
    stream, began, attempts = streams.new(), threading.Event(), list[int]()

    def block(message: Delivery) -> Outcome:
        began.set()
        time.sleep(0.3)
        return Outcome(Verdict.NEW)

    streams.put(stream, *({"payload": f"{number}"} for number in range(5)))
    with running(consumer(streams.url, stream, block, concurrency=1, grace=5)):
        wait_until(began.is_set)
    assert {held for held, _ in streams.pending(stream)} == {"inbox-later"}
    with running(consumer(streams.url, stream, taking(lambda each: attempts.append(each.attempt)))):
        wait_until(lambda: streams.is_done(stream))
    assert attempts == [1] * len(attempts)
    assert attempts


def test_what_a_dead_consumer_had(streams: Streams) -> None:
    """It is taken after `idle`, as a second delivery; also what waits, although the sorted set is gone."""
    stream, seen = streams.new(), Counter[tuple[bytes, int]]()
    first, second = streams.put(stream, {"payload": "1"}, {"payload": "2"})
    streams.client.xreadgroup(GROUP, "dead", {stream: ">"})
    day = 25 * 60 * 60 * 1_000
    streams.client.xclaim(stream, GROUP, "inbox-later", 0, [second], idle=day, justid=True)

    def handle(message: Delivery) -> Outcome:
        seen[message.payload, message.attempt] += 1
        return Outcome(Verdict.NEW)

    with running(consumer(streams.url, stream, handle)):
        wait_until(lambda: streams.is_done(stream))
    assert seen == {(b"1", 2): 1, (b"2", 2): 1}
    assert first


def test_one_that_was_overtaken_changes_nothing(streams: Streams) -> None:
    """What another consumer has taken is neither renewed, nor acknowledged, nor given back."""
    import asyncio

    stream = streams.new()
    (entry,) = streams.put(stream, {"payload": "1"})

    async def scenario() -> list[bytes]:
        link = GroupLink(address.parse(streams.url), stream, GROUP, "old", 1)
        await link.open(declare=False)
        await link.new(1)
        streams.client.xclaim(stream, GROUP, "new", 0, [entry])
        try:
            return [
                await link.renew(entry),
                await link.acknowledge(entry),
                await link.wait(entry, 0, 1),
            ]
        finally:
            await link.close()

    assert asyncio.run(scenario()) == [scripts.LOST] * 3
    assert streams.pending(stream) == [("new", 2)]


def test_trimming_and_entries_that_are_gone(
    streams: Streams, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all groups have acknowledged is deleted, and nothing else. What somebody else deletes is named in
    the log."""
    monkeypatch.setattr("inbox._consuming.leased.consumer._REFRESH", 0.1)
    stream, seen = streams.new(), list[bytes]()
    streams.client.xgroup_create(stream, "slow", id="0")
    streams.put(stream, *({"payload": f"{number}"} for number in range(4)))
    with running(consumer(streams.url, stream, payloads(seen), trim=True)):
        wait_until(lambda: streams.is_done(stream))
        time.sleep(0.3)
        assert streams.client.xlen(stream) == 4
        ((_, entries),) = streams.client.xreadgroup("slow", "me", {stream: ">"}, count=3)
        streams.client.xack(stream, "slow", entries[0][0], entries[2][0])
        wait_until(lambda: streams.client.xlen(stream) == 3)  # the second one is not acknowledged
    ((_, entries),) = streams.client.xreadgroup("slow", "me", {stream: ">"})
    gone = entries[0][0].decode()
    streams.client.xdel(stream, gone)
    with running(consumer(streams.url, stream, payloads(seen), group="slow")):
        wait_until(lambda: gone in caplog.text)
    assert seen[:4] == [b"0", b"1", b"2", b"3"]


def test_a_group_that_is_gone(streams: Streams) -> None:
    """With `declare` it is made again, from the first entry."""
    stream, seen = f"{streams.new()}:declared", list[bytes]()
    with running(consumer(streams.url, stream, payloads(seen), declare=True)) as one:
        wait_until(lambda: one.probe().is_ready)
        streams.put(stream, {"payload": "1"})
        wait_until(lambda: seen == [b"1"])
        streams.client.delete(stream)
        streams.put(stream, {"payload": "2"})
        wait_until(lambda: seen == [b"1", b"2"])


def test_dead_letters_go_back(streams: Streams, postgres: Database) -> None:
    """With their id, key and payload, by the function and by the command; a choice leaves the others. Entries
    of other programs keep the identity of their first place."""
    stream = streams.new()
    own = envelope(stream, b"\x00\xff", "k", colour="blue")
    publisher = RedisStreamsPublisher(streams.url)
    assert published(publisher, [own]) == [ACCEPTED]
    streams.put(stream, {b"\xff": b"\xfe", "payload": "foreign"})
    seen: list[Delivery] = []

    def refuse(message: Delivery) -> Outcome:
        seen.append(message)
        return FAILED

    with running(consumer(streams.url, stream, refuse, max_attempts=1)):
        wait_until(lambda: streams.is_done(stream))
    dead = f"{stream}.dead"
    assert all("ValueError: no" in said_in(fields)["reason"] for fields in streams.entries(dead))
    with pytest.raises(InvalidOption, match=r"^to='missing'"):
        redrive(streams.url, dead, to="missing")
    strange = streams.new()
    streams.put(strange, {"payload": "1", "inbox": json.dumps({"stream": "\ud800"})})
    with pytest.raises(InvalidOption, match=r"\\ud800': there is no such stream"):
        redrive(streams.url, strange)
    only = lambda message: message.key == "k"  # noqa: E731
    assert redrive(streams.url, dead, only=only, dry_run=True) == Redriven(1, 1, 0)
    assert redrive(streams.url, dead, only=only) == Redriven(1, 1, 0)
    done = inbox_outbox("redrive", dead, "--broker", streams.url, "--json", url=postgres.url)
    assert (done.returncode, json.loads(done.stdout)["moved"]) == (0, 1), done.stderr
    assert streams.entries(dead) == []
    again: list[Delivery] = []
    with running(consumer(streams.url, stream, taking(again.append))):
        wait_until(lambda: streams.is_done(stream))

    def known(each: Delivery) -> tuple[Any, ...]:
        return (each.id, each.key, each.payload, each.headers, each.created_at, each.topic)

    assert sorted(map(known, again), key=str) == sorted(map(known, seen), key=str)
    assert seen[0].headers == {"colour": "blue"}


def test_a_server_that_hangs_and_one_that_was_emptied(private_redis: LocalRedis) -> None:
    """The consumer and the publisher say so, and go on by themselves."""
    seen = list[bytes]()
    with Streams(private_redis.url) as streams:
        stream, publisher = streams.new(), RedisStreamsPublisher(private_redis.url, timeout=2)

        def send(body: bytes) -> list[Any]:
            return published(publisher, [envelope(stream, body)])

        with running(consumer(private_redis.url, stream, payloads(seen), declare=True)) as one:
            assert send(b"1") == [ACCEPTED]
            wait_until(lambda: seen == [b"1"])
            private_redis.freeze()
            try:
                assert {type(each) for each in send(b"frozen")} <= {Unavailable, Unknown}
                wait_until(lambda: not one.probe().is_ready)
            finally:
                private_redis.thaw()
            wait_until(lambda: send(b"2") == [ACCEPTED])
            wait_until(lambda: b"2" in seen and one.probe().is_ready)
            streams.client.flushall()
            wait_until(lambda: send(b"3") == [ACCEPTED])
            wait_until(lambda: b"3" in seen)
        publisher.close()


def test_drain(postgres: Database, streams: Streams) -> None:
    """A redis:// URL names the server. Its secret is not printed."""
    stream = streams.new()
    publish(postgres.engine(), "a1", "a2", topic=stream)
    wrong = streams.url.replace("://", "://nobody:s3cr3t@")
    for arguments, code, why in (
        (["--to", wrong], 1, "Redis refuses the login"),
        (["--to", "redis://:s3cr3t@h/x"], 2, "--to: expected the number of a database"),
        (["--to", wrong, "--exchange", "e"], 2, "only RabbitMQ has exchanges"),
        (["--to", streams.url], 0, ""),
    ):
        done = inbox_outbox("outbox", "drain", *arguments, url=postgres.url)
        assert (done.returncode, why in done.stderr) == (code, True), done.stderr
        assert "s3cr3t" not in done.stdout + done.stderr
    assert [fields[b"payload"] for fields in streams.entries(stream)] == [b"a1", b"a2"]


@pytest.mark.parametrize("page", pages_that_need("redis"), ids=name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private_redis: LocalRedis
) -> None:
    """One code block of the page publishes messages and sends them, and the last one consumes them."""
    with Streams(private_redis.url) as streams:
        streams.client.xgroup_create("orders", "billing", id="0", mkstream=True)
        run_on_broker(page, tmp_path, monkeypatch, "redis", {"redis://localhost:6379": private_redis.url})
