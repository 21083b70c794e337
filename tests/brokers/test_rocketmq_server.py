"""The RocketMQ server of the tests, and the import of its client."""

import json
import re
import subprocess
import sys
from pathlib import Path

from inbox_outbox_base.brokers.rocketmq.client import rocketmq as client
from tests.servers.rocketmq import BROKER, PROXY
from tests.support.brokers.rocketmq_topics import Topics, event_loop
from tests.support.program import ROOT

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]

IMPORT = """
import logging, sys
handler = logging.FileHandler(sys.argv[1])
logging.getLogger().addHandler(handler)
stream = handler.stream
import inbox_outbox_base.brokers.rocketmq.client
print(handler.stream is stream)
"""


def test_the_server_ignores_a_namespace(rocketmq: Topics) -> None:
    """A client's namespace has no effect: the message is stored in the topic without a namespace."""
    topic = rocketmq.new(queues=1)
    other = rocketmq.new(queues=1, name=f"team%{topic}")
    message = client.Message()
    message.topic, message.body = topic, b"x"
    configuration = client.ClientConfiguration(rocketmq.address, client.Credentials(), "team", 10)
    with event_loop():
        producer = client.Producer(configuration)
        producer.startup()
        producer.send(message)
        producer.shutdown()
    assert (len(rocketmq.stored(topic)), rocketmq.stored(other)) == (1, [])


def test_the_import_leaves_the_home_and_the_log_alone(tmp_path: Path) -> None:
    """The package imports RocketMQ's client without its side effects: a folder in the home directory, and
    closed logging handlers."""
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


def test_the_server_in_a_container() -> None:
    """docker-compose.yml starts a RocketMQ with the settings that the tests want."""
    text = (ROOT / "docker-compose.yml").read_text()
    broker, proxy = (
        re.search(rf"^      {name}: \|\n((?: {{8}}.*\n)+)", text, re.MULTILINE)
        for name in ("BROKER", "PROXY")
    )
    assert broker
    assert proxy
    settings = dict(line.strip().split("=") for line in broker[1].splitlines())
    assert settings.items() >= {name: str(value) for name, value in BROKER.items()}.items()
    assert json.loads(proxy[1]).items() >= PROXY.items()
