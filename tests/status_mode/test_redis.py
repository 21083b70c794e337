"""What only the Redis store has: scripts, clusters, and keys with any characters."""

import signal
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any, NoReturn

import pytest
import redis

from examples.embedded_postgres import ServerProcess, free_port
from inbox import RedisStore, Status, StatusInbox, Verdict
from inbox._status_mode.stores import HeldRecord
from tests.servers.redis import LocalRedis, program
from tests.support.interrupted import TimeLimit
from tests.support.present import present

SLOTS = 16_384


@pytest.fixture
def cluster_client(tmp_path: Any) -> Iterator["redis.RedisCluster"]:
    """A client of a one-node cluster, which rejects commands that touch two slots as any cluster does."""
    port = free_port()
    command = [present("redis", program()), "--port", str(port), "--dir", str(tmp_path)]
    node: Any = redis.Redis(port=port)
    command += ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    server = ServerProcess(command, tmp_path, user=None, is_ready=lambda: _answers(node))
    try:
        node.execute_command("CLUSTER ADDSLOTS", *range(SLOTS))
        while node.cluster("INFO")["cluster_state"] != "ok":
            time.sleep(0.02)
        client = redis.RedisCluster(host="127.0.0.1", port=port)
        yield client
        client.close()
    finally:
        node.close()
        server.stop(signal.SIGTERM)


@pytest.fixture
def client(private_redis: LocalRedis) -> Iterator["redis.Redis"]:
    """A client of the test's private Redis."""
    with redis.Redis.from_url(private_redis.url) as client:
        yield client


def test_a_call_that_a_signal_handler_interrupts(
    client: "redis.Redis", private_redis: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a signal handler raises between a command and its answer, no other command gets that answer."""
    inbox = StatusInbox("orders", store=RedisStore(client))
    with inbox.claim("before"):
        pass
    send: Any = redis.connection.AbstractConnection.send_command

    def interrupted(self: Any, *arguments: Any, **options: Any) -> NoReturn:
        send(self, *arguments, **options)
        raise TimeLimit

    with redis.Redis.from_url(private_redis.url) as other:
        other.client_pause(100)  # the answer comes after the connection has returned to its pool
    with monkeypatch.context() as patched, pytest.raises(TimeLimit):  # noqa: PT012
        patched.setattr(redis.connection.AbstractConnection, "send_command", interrupted)
        RedisStore(client).find("orders", "before")
    assert RedisStore(client).find("orders", "unknown") is None


def test_a_cluster_keeps_records_on_all_its_slots(cluster_client: "redis.RedisCluster") -> None:
    """Claims, steps and lists work through a cluster client, whichever slots the keys fall on."""
    store = RedisStore(cluster_client)
    inbox = StatusInbox("orders", store=store)
    keys = [f"order-{number}" for number in range(20)]
    for key in keys:
        with inbox.claim(key) as claim:
            claim.result = claim.step("count", lambda: 1)
    with inbox.claim("x") as one, inbox.claim("y") as two:
        claims = [HeldRecord("orders", each.key, each.token) for each in (one, two)]
        assert list(store.renew(claims, 60.0, 60.0, 1.0)) == [(held, 60.0) for held in claims]
    keys += ["x", "y"]
    for key in keys[:-2]:
        with inbox.claim(key) as claim:
            assert (claim.verdict, claim.result) == (Verdict.DUPLICATE, 1)
    assert sorted(record.key for record in store.list("orders", Status.CONSUMED, 100)) == sorted(keys)


def test_scripts_that_redis_has_forgotten(client: "redis.Redis") -> None:
    """Scripts that Redis no longer has are sent again, even in the middle of a claim and for a heartbeat."""
    store = RedisStore(client)
    inbox = StatusInbox("orders", store=store)
    with inbox.claim("a") as claim, inbox.claim("b") as other:
        client.script_flush()
        claim.step("one", lambda: 1)
        client.script_flush()
        claims = [HeldRecord("orders", each.key, each.token) for each in (claim, other)]
        lost = HeldRecord("orders", "a", claim.token - 1)
        assert list(store.renew([*claims, lost], 60.0, 60.0, 1.0)) == [
            *((held, 60.0) for held in claims),
            (lost, None),
        ]
    with inbox.claim("a") as claim:
        assert claim.verdict is Verdict.DUPLICATE


def test_a_late_end_is_kept_for_the_whole_retention(client: "redis.Redis") -> None:
    """The retention counts from the end of the message, even if its lease is over by then."""
    inbox = StatusInbox("orders", store=RedisStore(client), lease=0.1, retention=60, heartbeat=False)
    with inbox.claim("a"):
        client.pexpire("inbox:6:orders:a", 5_000)  # as if the handler had taken a long time
        time.sleep(0.2)
    assert client.pttl("inbox:6:orders:a") > 55_000


def test_names_are_no_patterns(client: "redis.Redis") -> None:
    """`list` returns only the consumer's own messages, even if its name contains wildcards."""
    store = RedisStore(client, prefix="in[box]*")
    names = ["*", "a?", "[ab]", "a\\", "a:b", "ü", "12:a", "a", "ab", "b"]
    for name in names:
        with StatusInbox(name, store=store).claim(f"key of {name}"):
            pass
    with StatusInbox("a", store=RedisStore(client, prefix="inbox")).claim("of another prefix"):
        pass
    for name in names:
        assert [record.key for record in store.list(name, None, 100)] == [f"key of {name}"]
    assert {record.consumer for record in store.list(None, None, 100)} == set(names)


def test_names_of_other_programs(client: "redis.Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    """`list` leaves out what only begins like a name of the store, and names no message twice."""
    store = RedisStore(client)
    for prefix in ("inbox", "inbox:eu", "inbox:3"):
        with StatusInbox("orders", store=RedisStore(client, prefix=prefix)).claim("a"):
            pass
    for name in ("inbox:lock", "inbox:6:orde", "inbox:1:ab", b"inbox:2:\xff\xff:a"):
        client.set(name, "1")
    scan = client.scan_iter
    monkeypatch.setattr(client, "scan_iter", lambda **given: chain(scan(**given), scan(**given)))
    assert [(record.consumer, record.key) for record in store.list(None, None, 100)] == [("orders", "a")]


def _answers(node: Any) -> bool:
    try:
        return bool(node.ping())
    except redis.ConnectionError:
        return False
