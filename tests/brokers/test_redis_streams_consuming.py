"""What a consumer of Redis Streams does about entries that are gone, full servers, and outages of the
database."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from examples.embedded_postgres import free_port
from inbox import Backoff, Delivery, Outcome, Verdict
from inbox._consuming.leased.batches import RequestBatches
from inbox._consuming.redis_streams import scripts
from inbox._consuming.redis_streams.link import GroupLink
from inbox.redis_streams import RedisStreamsConsumer
from inbox_outbox_base.brokers.redis_streams import address
from tests.servers.redis import LocalRedis
from tests.support.brokers.consumers import SOON, payloads, running
from tests.support.brokers.redis_groups import GROUP, Streams
from tests.support.processes import wait_until
from tests.support.proxy import TcpProxy

pytest_plugins = ["tests.support.brokers.redis_fixtures"]

PAGE = Path(__file__).parents[2] / "docs" / "redis-streams.md"
HOUR = 60 * 60
FAILED = Outcome(Verdict.NEW, error=ValueError("no"))
AWAY = Outcome(Verdict.NEW, error=OperationalError("SELECT 1", {}, Exception("gone")))


@asynccontextmanager
async def linked(url: str, stream: str, *, group: str = GROUP, lease: int = 30) -> AsyncIterator[GroupLink]:
    """A consumer's requests, without a consumer."""
    link = GroupLink(address.parse(url), stream, group, "one", lease)
    await link.open(declare=True)
    try:
        yield link
    finally:
        await link.close()


def test_an_outage_of_the_database_is_no_failure(streams: Streams) -> None:
    """A message has all its attempts after one that was longer than they."""
    stream, outage, attempts = streams.new(), iter(range(9)), list[int]()

    def handle(message: Delivery) -> Outcome:
        if next(outage, None) is not None:
            return AWAY
        attempts.append(message.attempt)
        return FAILED

    streams.put(stream, {"payload": "1"})
    brief = Backoff(first=0.01, longest=0.02)
    one = RedisStreamsConsumer(streams.url, stream, handle, group=GROUP, backoff=brief, max_attempts=3)
    with running(one):
        wait_until(lambda: streams.entries(f"{stream}.dead"))
    assert len(attempts) == 3


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(0, id="at once"),
        pytest.param(0.8, id="after a renewal", marks=pytest.mark.long),
    ],
)
def test_an_entry_that_is_deleted_while_its_handler_runs(
    streams: Streams, caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    """If the handler fails, the log says that the message is gone."""
    stream, began, may_end = streams.new(), threading.Event(), threading.Event()

    def handle(message: Delivery) -> Outcome:
        began.set()
        may_end.wait()
        return FAILED

    (entry,) = streams.put(stream, {"payload": "1"})
    with running(RedisStreamsConsumer(streams.url, stream, handle, group=GROUP, backoff=SOON, idle=1)):
        began.wait()
        streams.client.xtrim(stream, maxlen=0)
        time.sleep(seconds)
        may_end.set()
        wait_until(lambda: f"{stream} at {entry}: somebody has deleted it" in caplog.text)
    assert streams.pending(stream) == []


def test_another_entry_in_the_same_place(streams: Streams) -> None:
    """A message of a stream that was deleted and made again does not acknowledge the new one."""
    stream, seen, may_end = streams.new(), list[bytes](), threading.Event()

    def handle(message: Delivery) -> Outcome:
        seen.append(message.payload)
        if message.payload == b"new":
            may_end.wait()
            return FAILED if message.attempt == 1 else Outcome(Verdict.NEW)
        wait_until(lambda: b"new" in seen)
        return Outcome(Verdict.NEW)

    streams.client.xadd(stream, {"payload": "old"}, id="1-1")
    one = RedisStreamsConsumer(streams.url, stream, handle, group=GROUP, backoff=SOON, concurrency=2)
    with running(one):
        wait_until(lambda: seen)
        streams.client.delete(stream)
        streams.client.xgroup_create(stream, GROUP, id="0", mkstream=True)
        streams.client.xadd(stream, {"payload": "new"}, id="1-1")
        wait_until(lambda: b"new" in seen)
        time.sleep(0.3)  # the old one's handler ends
        may_end.set()
        wait_until(lambda: seen.count(b"new") == 2)


def test_what_waits(streams: Streams) -> None:
    """Two groups do not have one sorted set, whatever their names are. A message that waits for more than a
    day is not taken earlier, but one that the set does not have is. What somebody else has claimed is
    his."""
    stream = streams.new()

    async def scenario() -> None:
        other = linked(streams.url, f"{stream}:x", group="y")
        async with linked(streams.url, stream, group="x:y") as link, other as stranger:
            first, second, third = streams.put(stream, {"a": "1"}, {"a": "2"}, {"a": "3"})
            assert len(await link.new(10)) == 3
            assert await link.wait(first, 0, 1) == scripts.HELD
            assert await stranger.taken(10) == ([], [])
            assert [each.entry for each in (await link.taken(10))[0]] == [first]
            for each in (first, second):
                assert await link.wait(each, 72 * HOUR, 1) == scripts.HELD
            day = [scripts.LATER, 0, [first, second, third]]
            streams.client.xclaim(stream, "x:y", *day, idle=25 * HOUR * 1_000, justid=True)
            assert [each.entry for each in (await link.taken(10))[0]] == [third]
            assert await link.wait(third, 0, 1) == scripts.HELD
            streams.client.xclaim(stream, "x:y", "somebody", 0, [third])
            assert await link.taken(10) == ([], [])

    asyncio.run(scenario())


@pytest.mark.long
def test_what_is_lost_on_its_way(streams: Streams) -> None:
    """A consumer asks again for what Redis has given to it, before it takes anything newer."""
    stream, seen, place = streams.new(), list[tuple[bytes, int]](), address.parse(streams.url)

    def handle(message: Delivery) -> Outcome:
        seen.append((message.payload, message.attempt))
        return Outcome(Verdict.NEW)

    with TcpProxy(place.host, place.port) as proxy:
        one = RedisStreamsConsumer(f"redis://127.0.0.1:{proxy.port}", stream, handle, group=GROUP)
        with running(one):
            wait_until(lambda: one.probe().is_ready)
            proxy.cut_on(lambda chunk: b"XREADGROUP" in chunk, forward=True)
            wait_until(proxy.was_cut.is_set)  # with an answer that nothing is there
            proxy.cut_on(lambda chunk: b"XREADGROUP" in chunk, forward=True)
            for number in range(20):
                streams.put(stream, {"payload": f"{number}"})
                time.sleep(0.1)
            wait_until(lambda: len(seen) == 20)
            assert proxy.was_cut.is_set()
    assert [payload for payload, _ in seen] == [b"%d" % number for number in range(20)]
    assert {attempt for _, attempt in seen} == {1, 2}


def test_the_rights_of_the_page_suffice(private_redis: LocalRedis, caplog: pytest.LogCaptureFixture) -> None:
    """For a message that fails, waits and becomes a dead letter."""
    (row,) = [line for line in PAGE.read_text().splitlines() if "rights of the consumer" in line]
    rights = row.partition("`")[2].partition("`")[0].replace("\\|", "|").split()
    with Streams(private_redis.url) as streams:
        stream = streams.new()
        user = ["SETUSER", "worker", "on", ">s3cr3t", f"~{stream}*", *rights]
        streams.client.execute_command("ACL", *user)
        url = private_redis.url.replace("://", "://worker:s3cr3t@")
        streams.put(stream, {"payload": "1"})
        waits: Any = {"group": GROUP, "backoff": SOON, "max_attempts": 2, "trim": True}
        with running(RedisStreamsConsumer(url, stream, lambda _: FAILED, **waits)):
            wait_until(lambda: streams.entries(f"{stream}.dead") or "cannot receive" in caplog.text)
    assert not re.search("can't run|no permissions", caplog.text)


def test_giving_back_to_a_full_server(private_redis: LocalRedis) -> None:
    """It takes a message back, also if it takes no new ones."""
    with Streams(private_redis.url) as streams:
        stream = streams.new()
        (entry,) = streams.put(stream, {"a": "1"})

        async def scenario() -> bytes:
            async with linked(streams.url, stream) as link:
                assert await link.new(1)
                streams.client.config_set("maxmemory", "1")
                return await link.wait(entry, 0, 0)

        assert asyncio.run(scenario()) == scripts.HELD
        assert streams.pending(stream) == [(scripts.LATER, 0)]


@pytest.mark.long
def test_a_server_that_was_demoted(private_redis: LocalRedis, caplog: pytest.LogCaptureFixture) -> None:
    """The consumer makes new connections: they may lead to the new primary."""
    seen = list[bytes]()
    with Streams(private_redis.url) as streams:
        stream = streams.new()

        def connected() -> int:
            return int(streams.client.info("stats")["total_connections_received"])

        with running(RedisStreamsConsumer(private_redis.url, stream, payloads(seen), group=GROUP)) as one:
            wait_until(lambda: one.probe().is_ready)
            streams.client.replicaof("127.0.0.1", free_port())
            wait_until(lambda: "read only replica" in caplog.text)
            before = connected()
            wait_until(lambda: connected() > before)
            streams.client.replicaof("NO", "ONE")
            streams.put(stream, {"payload": "1"})
            wait_until(lambda: seen == [b"1"])


def test_a_request_that_fails_in_an_unknown_way() -> None:
    """Nobody waits for its answer for ever."""

    async def fail(about: list[str]) -> list[int]:
        raise LookupError(*about)

    async def scenario() -> None:
        batches = RequestBatches[int](fail, 10)
        with pytest.raises(LookupError):
            await asyncio.wait_for(batches.add("a"), 5)

    asyncio.run(scenario())
