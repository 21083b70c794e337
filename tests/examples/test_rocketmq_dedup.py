"""For users of RocketMQDedupListener: the example, and the change over of docs/rocketmq-dedup.md."""

import os
import subprocess
import sys

import pytest
from sqlalchemy import Connection

from inbox import Delivery, Inbox, message_id
from tests import servers
from tests.servers import Missing
from tests.support import accounts
from tests.support.brokers.rocketmq_consumers import consuming, send
from tests.support.brokers.rocketmq_topics import Topics, envelope
from tests.support.database import Database
from tests.support.processes import wait_until
from tests.support.program import ROOT

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]


@pytest.mark.long
def test_everything_takes_effect_once(rocketmq: Topics, postgres: Database) -> None:
    """Each order is stored once, the service is called once, and the poison message becomes a dead letter
    after its attempts; the program says so."""
    found = servers.find_rocket()
    assert not isinstance(found, Missing)
    there = f"rocketmq://{found.address}?broker={found.broker.rpartition(':')[2]}"
    url = postgres.url.render_as_string(hide_password=False)
    done = subprocess.run(
        [sys.executable, "-m", "examples.rocketmq_dedup", "--url", url],
        cwd=ROOT,
        env={**os.environ, "INBOX_OUTBOX_TEST_ROCKETMQ_URL": there, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 new, 1 duplicate" in done.stdout
    assert "16 failed" in done.stdout


@pytest.mark.long
def test_the_change_over(rocketmq: Topics, postgres: Database) -> None:
    """A new consumer goes on where the old one of its group has ended. Keys that were copied from the old
    one's records are duplicates, and a message that is sent again is taken once."""
    engine = postgres.engine()
    accounts.make(engine, ["a", "b", "c", "d"])
    topic, group = rocketmq.new(queues=1), rocketmq.group()
    consumed, copied, new, retried = (envelope(topic, name) for name in "abcd")
    send(rocketmq.address, [consumed, copied, retried, retried, new])
    rocketmq.settle(group, topic, 1)
    inbox, seen = Inbox("billing"), list[bytes]()
    with engine.begin() as connection:
        inbox.accept_many(connection, [copied.id])

    @inbox.handler(engine, key=message_id)
    def bill(connection: Connection, message: Delivery) -> None:
        accounts.add(connection, message.payload.decode())
        seen.append(message.payload)

    with consuming(rocketmq.address, topic, group, bill):
        wait_until(lambda: seen == [b"d", b"c"])
    assert accounts.totals(engine) == {"a": 0, "b": 0, "c": 1, "d": 1}
