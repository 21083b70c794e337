"""A publisher for Redis Streams, and a server that is slow, loading, or demoted."""

import time

import pytest
import redis

from examples.embedded_postgres import free_port
from inbox_outbox_base.brokers.redis_streams import address
from inbox_outbox_base.brokers.redis_streams.client import text_of
from inbox_outbox_base.words.outgoing import ACCEPTED, Unavailable, Unknown
from outbox.errors import UnsafeBroker
from outbox.redis_streams import RedisStreamsPublisher
from tests.servers.redis import LocalRedis, program
from tests.support.answers import published
from tests.support.brokers.redis_groups import Streams
from tests.support.brokers.sqs_messages import envelope
from tests.support.present import present
from tests.support.proxy import TcpProxy

pytest_plugins = ["tests.support.brokers.redis_fixtures"]

TIMEOUT = 2.0


def test_what_redis_repeats_is_not_shown(streams: Streams) -> None:
    """It repeats a command that it does not know, such as a login where HELLO has another name."""
    with pytest.raises(redis.ResponseError, match="s3cr3t") as info:
        streams.client.execute_command("NOHELLO", "3", "AUTH", "default", "s3cr3t")
    assert text_of(info.value) == "ResponseError: unknown command 'NOHELLO'"


def test_settings_are_checked_without_topics(private_redis: LocalRedis) -> None:
    """Also by a user that may touch no other streams than its own."""
    with Streams(private_redis.url) as streams:
        streams.client.acl_setuser(
            "relay", enabled=True, passwords=["+s3cr3t"], keys="orders*", commands=["+xadd", "+config|get"]
        )
        streams.client.config_set("appendonly", "no")
        with pytest.raises(UnsafeBroker, match=r"^appendonly=no"):
            RedisStreamsPublisher(private_redis.url.replace("://", "://relay:s3cr3t@")).check(30)


def test_a_send_over_a_slow_network(streams: Streams) -> None:
    """It ends within `timeout`, although no single step takes long."""
    stream, place = streams.new(), address.parse(streams.url)
    with SlowProxy(place.host, place.port) as proxy:
        publisher = RedisStreamsPublisher(f"redis://127.0.0.1:{proxy.port}", timeout=TIMEOUT)
        began = time.monotonic()
        outcomes = published(publisher, [envelope(stream, bytes(60_000)) for _ in range(16)])
        assert time.monotonic() - began < TIMEOUT
        assert {type(each) for each in outcomes} == {Unknown}
        publisher.close()
    assert streams.entries(stream) == []


class SlowProxy(TcpProxy):
    """One that needs a quarter of a second for each 64 kB."""

    def before(self, link: object, chunk: str) -> tuple[bool, None]:
        """Passes the chunk late."""
        time.sleep(len(chunk) / 64_000 * 0.25)
        return True, None


def test_a_demoted_server(private_redis: LocalRedis) -> None:
    """A new connection is made after each refusal: it may lead to the new primary."""
    with Streams(private_redis.url) as streams:
        stream, publisher = streams.new(), RedisStreamsPublisher(private_redis.url, timeout=TIMEOUT)
        assert published(publisher, [envelope(stream)]) == [ACCEPTED]
        streams.client.replicaof("127.0.0.1", free_port())
        connected = []
        for _ in range(2):
            (refused,) = published(publisher, [envelope(stream)])
            assert isinstance(refused, Unavailable)
            assert "replica" in refused.reason
            connected.append(streams.client.info("stats")["total_connections_received"])
        assert connected[0] < connected[1]
        streams.client.replicaof("NO", "ONE")
        publisher.close()


class SlowRedis(LocalRedis):
    """One that reads its data slowly when it starts."""

    def _command(self) -> list[str]:
        slow = ("--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024")
        return [*super()._command(), *slow]


@pytest.mark.long
def test_a_server_that_is_loading() -> None:
    """It has certainly added nothing."""
    server = SlowRedis(present("redis", program()))
    try:
        with Streams(server.url) as streams:
            streams.client.mset({f"key-{number}": bytes(1_000) for number in range(800)})
            streams.client.bgrewriteaof()
            while streams.client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.05)
            server.restart()
            publisher = RedisStreamsPublisher(server.url)
            (refused,) = published(publisher, [envelope("orders")])
            assert isinstance(refused, Unavailable)
            assert "BusyLoadingError" in refused.reason
            publisher.close()
    finally:
        server.stop()
