"""Galera: claims, relays and purges on nodes that are behind, or whose clocks differ. `make matrix` runs
these tests."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event

import inbox
import outbox
from inbox import Inbox, SqlStore, StatusInbox, Verdict
from inbox.errors import LeaseLost, MessageInFlight
from outbox import Outbox, Relay
from tests.support.cluster import Cluster
from tests.support.outbox_publishers import Recorder
from tests.support.processes import wait_until

from .test_galera import EFFECTS, KEYS, until_taken, write

pytestmark = pytest.mark.matrix

STEP = 1.0
"""Seconds for which a node is behind."""


def status_inbox(engine: Engine, consumer: str, **options: Any) -> StatusInbox:
    """An inbox that has looked at the tables."""
    made = StatusInbox(consumer, store=SqlStore(engine), heartbeat=False, **({"lease": 60} | options))
    with made.claim("first"):
        pass
    return made


def test_a_claim_at_a_node_that_is_behind(cluster: Cluster) -> None:
    """A claim that was made at one node is renewed, used and completed at another one that does not have it
    yet: it waits for it, and does not take the claim for lost."""
    to = [1]
    status = status_inbox(cluster.led(to), "behind")
    to[0] = 0
    with cluster.behind(1) as let_go, status.claim("k") as claim:
        assert claim.is_new
        to[0] = 1
        threading.Timer(STEP, let_go).start()
        claim.heartbeat()
        claim.transact("book", lambda connection: write(connection, "k"), source=cluster.led(to))
    with cluster.behind(2) as let_go, status.claim("l") as claim:
        assert claim.is_new
        to[0] = 2
        threading.Timer(STEP, let_go).start()
        claim.transact("book", lambda connection: write(connection, "l"), source=cluster.led(to))
    assert cluster.rows(EFFECTS) == ["k", "l"]
    assert cluster.rows("SELECT status FROM inbox_status WHERE consumer = 'behind'") == ["consumed"] * 3


def test_one_claim_at_several_nodes(cluster: Cluster) -> None:
    """A message that is delivered to all nodes at once is claimed at one of them; the others are told that it
    is in flight, or done."""
    inboxes = [status_inbox(engine, "claims") for engine in cluster.engines]

    def work(place: int) -> None:
        for key in KEYS:

            def once(key: str = key) -> None:
                with inboxes[place % 3].claim(key) as claim:
                    if claim.is_new:
                        claim.transact("book", lambda connection: write(connection, key))
                    assert claim.verdict in (Verdict.NEW, Verdict.DUPLICATE, Verdict.IN_FLIGHT)

            until_taken(once)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert cluster.rows(EFFECTS) == sorted(KEYS)


def test_a_lost_answer_is_looked_up_at_a_node_that_is_behind(cluster: Cluster) -> None:
    """The connection breaks after the COMMIT, and the next one leads to a node that has not applied it: it
    waits for it, and the message was taken once."""
    to, runs, is_lost = [0], list[str](), threading.Event()
    engine = cluster.led(to)

    @event.listens_for(engine, "commit")
    def lose(connection: Connection) -> None:
        if runs and not is_lost.is_set():
            is_lost.set()
            driver: Any = connection.connection.driver_connection
            driver.commit()
            to[0] = 1
            driver._sock.shutdown(socket.SHUT_RDWR)

    def body(connection: Connection, message: str) -> None:
        runs.append(message)
        write(connection, message)

    handle = Inbox("answers").handler(engine, key=str)
    handle(lambda connection, message: None)("first")
    with cluster.behind(1) as let_go:
        threading.Timer(STEP, let_go).start()
        outcome = handle(body)("k")
    assert is_lost.is_set()
    assert (outcome.verdict, outcome.error, runs) == (Verdict.NEW, None, ["k"])
    assert cluster.rows(EFFECTS) == ["k"]


def test_relays_and_publishers_on_all_nodes(cluster: Cluster) -> None:
    """Messages of 30 keys, each published on one node, leave in order by relays on all nodes, while one node
    applies nothing for a while: none is lost, and those that are sent again have the same id."""
    sent = Recorder()
    relays = [Relay(engine, sent, lease=5, poll=0.2) for engine in cluster.engines]
    running = [threading.Thread(target=relay.run) for relay in relays]
    for thread in running:
        thread.start()

    def publish(place: int) -> None:
        for number in range(10):
            for key in range(place, 30, 3):

                def once(name: str = f"{key}.{number}", key: int = key) -> None:
                    with cluster.engines[place].begin() as connection:
                        write(connection, name)
                        Outbox().publish(connection, "orders", name, key=str(key))

                until_taken(once)

    with ThreadPoolExecutor(3) as threads:
        published = [threads.submit(publish, place) for place in range(3)]
        with cluster.behind(2):
            time.sleep(STEP)
        for each in published:
            each.result()
    try:
        wait_until(lambda: len({each.id for each in sent.accepted}) >= 300)
    finally:
        for relay in relays:
            relay.stop()
        for thread in running:
            thread.join()
    names = list(dict.fromkeys(bytes(each.payload or b"").decode() for each in sent.accepted))
    assert sorted(names) == cluster.rows(EFFECTS)
    for key in range(30):
        own = [name for name in names if name.startswith(f"{key}.")]
        assert own == [f"{key}.{number}" for number in range(10)]
    assert cluster.rows("SELECT count(*) FROM outbox_message") == [0]


def test_purges_on_all_nodes(cluster: Cluster) -> None:
    """Purges that run on all nodes at once, beside deliveries, delete only what is old."""
    for key in KEYS:
        with cluster.engines[0].begin() as connection:
            Inbox("old").accept(connection, key)
    cluster.run("UPDATE inbox_message SET accepted_at = accepted_at - INTERVAL 9 DAY WHERE consumer = 'old'")
    with ThreadPoolExecutor(4) as threads:
        taking = threads.submit(_deliver_new, cluster)

        def purge(engine: Engine) -> None:
            until_taken(
                lambda: inbox.purge(engine, consumer="old", retention=timedelta(days=8), override=True)
            )

        list(threads.map(purge, cluster.engines))
        taking.result()
    assert cluster.rows("SELECT count(*) FROM inbox_message WHERE consumer = 'old'") == [len(KEYS)]
    assert cluster.rows(EFFECTS) == sorted(f"new-{key}" for key in KEYS)


def _deliver_new(cluster: Cluster) -> None:
    handle = Inbox("old").handler(cluster.engines[1], key=str)(write)
    for key in KEYS:
        handle(f"new-{key}")


def astray(cluster: Cluster, node: int, seconds: float) -> Engine:
    """An engine to a node whose clock is ahead by some seconds, for this engine's sessions."""
    ahead = f"SET timestamp = {time.time() + seconds:.6f}"
    return create_engine(cluster.engines[node].url, connect_args={"init_command": ahead})


def test_clocks_that_differ(cluster: Cluster) -> None:
    """`check` says by how much a node's clock differs from this machine's. A node whose clock is ahead keeps
    off a claim as long as it is ahead by less than what is left of the lease; beyond that it takes the claim
    over, and the holder is told so. A relay does not start at a node whose clock is behind that of another
    relay's node by a third of a lease."""
    for report in (inbox.check, outbox.check):
        for seconds, said in ((20, "ahead of"), (-20, "behind")):
            findings = report(astray(cluster, 1, seconds)).findings
            assert any(f"s {said} this machine's" in each.why for each in findings)
        assert not any("this machine's" in each.why for each in report(cluster.engines[1]).findings)
    with suppress(LeaseLost), status_inbox(cluster.engines[0], "clocks", lease=10).claim("k") as claim:
        for seconds, verdict in ((6, Verdict.IN_FLIGHT), (14, Verdict.NEW)):
            ahead = status_inbox(astray(cluster, 1, seconds), "clocks", lease=10)
            with suppress(MessageInFlight), ahead.claim("k") as other:
                assert other.verdict is verdict
        with pytest.raises(LeaseLost):
            claim.heartbeat()
    early = Relay(astray(cluster, 1, 20), Recorder(), lease=30)
    running = threading.Thread(target=early.run)
    running.start()
    try:
        wait_until(lambda: cluster.rows("SELECT count(*) FROM outbox_relay") == [1])
        with pytest.raises(outbox.errors.UnsafeDatabase, match="in the future"):
            Relay(cluster.engines[0], Recorder(), lease=30).run_once()
    finally:
        early.stop()
        running.join()
