"""The RocketMQ that the tests use, and how its client is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from inbox_outbox_base.brokers.rocketmq.client import rocketmq as client
from tests.support.program import ROOT
from tests.support.rocketmq_topics import Topics

pytest_plugins = ["tests.support.rocketmq_fixtures"]

IMPORT = """
import logging, sys
handler = logging.FileHandler(sys.argv[1])
logging.getLogger().addHandler(handler)
stream = handler.stream
import inbox_outbox_base.brokers.rocketmq.client
print(handler.stream is stream)
"""


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO"])
def test_what_the_client_sends_is_stored_and_received(rocketmq: Topics, kind: str) -> None:
    """A message that was sent to a topic of the test's own is in the broker, and a group of its own gets
    it."""
    topic, group = rocketmq.new(kind), rocketmq.group(in_order=kind == "FIFO")
    message = client.Message()
    message.topic, message.body = topic, b"\x00\xff"
    if kind == "FIFO":
        message.message_group = "a"
    configuration = client.ClientConfiguration(rocketmq.address, client.Credentials(), request_timeout=10)
    producer = client.Producer(configuration)
    producer.startup()
    producer.send(message)
    producer.shutdown()
    (stored,) = rocketmq.stored(topic)
    assert (stored.body, stored.properties.get("__SHARDINGKEY")) == (b"\x00\xff", message.message_group)
    assert rocketmq.received(topic, group, 1) == [b"\x00\xff"]
    assert rocketmq.dead(group) == []


def test_the_import_leaves_the_home_and_the_log_alone(tmp_path: Path) -> None:
    """The client's own import makes a folder in the home and closes the handlers of logging."""
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT, str(tmp_path / "log")],
        env={"HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, list(home.iterdir())) == ("True\n", "", [])
