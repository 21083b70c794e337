"""Galera: claims and relays while nodes are lost. `make matrix` runs these tests."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection

from inbox import SqlStore, StatusInbox
from outbox import Outbox, Relay
from tests.support.cluster import Cluster
from tests.support.outbox_publishers import Recorder
from tests.support.processes import wait_until

from .test_galera import EFFECTS, until_taken, write

pytestmark = pytest.mark.matrix

KEYS = [f"k{number}" for number in range(60)]


def parted(cluster: Cluster) -> None:
    """Two nodes stand still until the third one has left the cluster."""
    with cluster.parted(1, 2):
        wait_until(lambda: not cluster.takes_writes(0))
        time.sleep(0.5)


def killed(cluster: Cluster) -> None:
    """A node is killed, and joins again."""
    cluster.nodes[1].kill()
    time.sleep(0.5)
    cluster.nodes[1].start()


@pytest.mark.parametrize("fault", [parted, killed])
def test_nodes_that_are_lost_at_work(cluster: Cluster, fault: Callable[[Cluster], None]) -> None:
    """Messages are claimed, written and published behind a load balancer, and relayed, while nodes are lost:
    each takes effect once, all leave, and none is counted as failed, dead or unanswered."""
    consumer, topic = f"outage-{fault.__name__}", fault.__name__
    work = cluster.spread(0, 1, 2)
    status = StatusInbox(consumer, store=SqlStore(work), lease=60, max_attempts=2)
    sent = Recorder()
    relay = Relay(cluster.spread(1 if fault is killed else 0, 2), sent, lease=60, poll=0.2)
    running = threading.Thread(target=relay.run)
    running.start()

    def handle(key: str) -> None:
        def once() -> None:
            with status.claim(key) as claim:
                if claim.is_new:
                    claim.transact("book", lambda connection: publish(connection, key))

        until_taken(once)

    def publish(connection: Connection, key: str) -> None:
        write(connection, key)
        Outbox().publish(connection, topic, key, key=key)

    with ThreadPoolExecutor(4) as threads:
        handled = [threads.submit(handle, key) for key in KEYS]
        assert not all(each.done() for each in handled)
        fault(cluster)
        for each in handled:
            each.result()
    try:
        wait_until(lambda: len({each.id for each in sent.accepted}) >= len(KEYS))
        wait_until(lambda: cluster.rows("SELECT count(*) FROM outbox_message", 2) == [0])
    finally:
        relay.stop()
        running.join()
    for node in range(3):
        assert cluster.rows(EFFECTS, node) == sorted(KEYS)
    assert sorted({str(each.key) for each in sent.accepted}) == sorted(KEYS)
    assert {each.attempt for each in sent.accepted} == {1}
    statuses = f"SELECT DISTINCT status FROM inbox_status WHERE consumer = '{consumer}'"
    assert cluster.rows(statuses) == ["consumed"]
    assert cluster.rows("SELECT count(*) FROM outbox_dead") == [0]
