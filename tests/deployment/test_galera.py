"""Galera: three nodes that take writes, and faults of them. `make matrix` runs these tests."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

import inbox
import outbox
from inbox import Inbox, Outcome, Verdict
from inbox.errors import CommitLost
from outbox import Outbox, Relay
from tests.support.cluster import Cluster
from tests.support.outbox_publishers import Recorder

pytestmark = pytest.mark.matrix

KEYS = [f"key-{number}" for number in range(40)]
EFFECTS = "SELECT message FROM effect ORDER BY message"


def write(connection: Connection, message: str) -> None:
    """The business row of a message."""
    connection.execute(
        text("INSERT INTO effect (message, node) VALUES (:message, @@port)"), {"message": message}
    )


def deliver(engines: Iterable[Engine], consumer: str, keys: Sequence[str]) -> list[Outcome]:
    """Deliver all keys to each of these engines, at the same time."""

    def work(engine: Engine) -> list[Outcome]:
        handle = Inbox(consumer).handler(engine, key=str)(write)
        return [handle(key) for key in keys]

    with ThreadPoolExecutor(8) as threads:
        return [outcome for each in list(threads.map(work, engines)) for outcome in each]


def test_galera_takes_each_key_once(cluster: Cluster) -> None:
    """Every node passes the check; keys that are delivered to all nodes at once take effect once each."""
    for engine in cluster.engines:
        assert inbox.check(engine).is_safe
        assert outbox.check(engine).is_safe
    outcomes = deliver([*cluster.engines, *cluster.engines], "billing", KEYS)
    assert Counter(each.verdict for each in outcomes)[Verdict.NEW] == len(KEYS)
    assert not any(each.is_failure for each in outcomes)
    assert cluster.rows(EFFECTS) == sorted(KEYS)


def test_a_batch_at_several_nodes_at_once(cluster: Cluster) -> None:
    """`accept_many` with the same keys, in different orders, at all nodes: each key takes effect once."""
    inbox_ = Inbox("batches")

    def take(place: int) -> None:
        keys = KEYS[place:] + KEYS[:place]

        def once() -> None:
            with cluster.engines[place % 3].begin() as connection:
                for key, verdict in zip(keys, inbox_.accept_many(connection, keys), strict=True):
                    if verdict is Verdict.NEW:
                        write(connection, key)

        until_taken(once)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(take, range(6)))
    assert cluster.rows(EFFECTS) == sorted(KEYS)


def until_taken(once: Callable[[], Any]) -> None:
    """Try again as long as others cause the error."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            once()
        except Exception as error:
            if not inbox.is_transient(error):
                raise
            time.sleep(0.05)
        else:
            return
    pytest.fail("it was never taken")


def test_a_partition_during_commit(cluster: Cluster) -> None:
    """Two nodes stand still while the third one commits. It answers 1180, although the others apply some of
    these transactions: nothing is lost, doubled, or counted against a message."""
    found: list[Outcome] = []
    started, stopped = threading.Barrier(7), threading.Event()

    def body(connection: Connection, message: str) -> None:
        write(connection, message)
        if not stopped.is_set():
            started.wait(30)
            stopped.wait(30)

    def work(key: str) -> None:
        handle = Inbox("parted").handler(cluster.spread(0, 1, 2, pool_size=1), key=str)(body)
        found.append(handle(key))

    threads = [threading.Thread(target=work, args=[key]) for key in KEYS[:6]]
    for thread in threads:
        thread.start()
    started.wait(30)
    with cluster.parted(1, 2):
        stopped.set()
        threads[0].join(8)  # longer than it takes the third node to miss them
    for thread in threads:
        thread.join()
    assert not [each for each in found if each.is_failure]
    done = [each for each in found if each.error is None]
    assert len(cluster.rows(EFFECTS)) >= len(done)
    assert all(isinstance(each.error, CommitLost) for each in found if each.error is not None)
    deliver([cluster.engines[2]], "parted", KEYS[:6])
    for node in range(3):
        assert cluster.rows(EFFECTS, node) == sorted(KEYS[:6])


def test_a_killed_node(cluster: Cluster) -> None:
    """A node is killed with SIGKILL while others and its own clients commit: nothing is lost, doubled, or
    counted against a message."""
    engines = [cluster.spread(place, 0, 1) for place in (2, 2, 2, 0)]
    killer = threading.Timer(0.2, cluster.nodes[2].kill)
    killer.start()
    keys = [f"killed-{number}" for number in range(300)]
    try:
        outcomes = deliver(engines, "killed", keys)
    finally:
        killer.join()
        cluster.nodes[2].start()
    assert not [each for each in outcomes if each.is_failure]
    deliver([cluster.engines[0]], "killed", keys)
    for node in range(3):
        assert cluster.rows(EFFECTS, node) == sorted(keys)


def test_galera_says_that_order_is_not_kept(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A relay sends every message, and its start warns that a key needs one node."""
    for number in range(30):
        with cluster.engines[number % 3].begin() as connection:
            Outbox().publish(connection, "orders", str(number), key="k")
    publisher = Recorder()
    with caplog.at_level(logging.WARNING, "outbox.relay"):
        relay = Relay(cluster.engines[1], publisher)
        cluster.rows("SELECT count(*) FROM outbox_message", node=1)
        relay.run_once()
    assert sorted(int(message.payload) for message in publisher.accepted) == [*range(30)]
    assert "Galera: wsrep_on=ON" in caplog.text
    said = {each.result for each in outbox.check(cluster.engines[0]).findings if each.what == "Galera"}
    assert "said" in said
