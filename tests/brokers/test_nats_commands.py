"""`inbox-outbox outbox drain` with a real NATS."""

import json

import pytest

from tests.support.brokers.nats_streams import NatsStreams
from tests.support.cli import inbox_outbox
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, count, publish

pytest_plugins = ["tests.support.brokers.nats_fixtures"]


def test_drain(postgres: Database, nats: NatsStreams) -> None:
    """A nats:// URL names the server. Its password is not printed."""
    topic = nats.new()
    publish(postgres.engine(), "a1", "a2", topic=topic)
    to = nats.url.replace("://", "://me:s3cr3t@")
    done = inbox_outbox("outbox", "drain", "--to", to, "--json", url=postgres.url)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["sent"], found["left"]) == (2, 0)
    assert "s3cr3t" not in done.stdout + done.stderr
    assert [each.data for each in nats.taken(topic, 2)] == [b"a1", b"a2"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--to", "nats://key:s3cr3t@host:port"], "--to: expected nats://"),
        (["--to", "tls://s3cr3t@host", "--exchange", "e"], "only RabbitMQ has exchanges"),
    ],
)
def test_wrong_arguments(postgres: Database, arguments: list[str], why: str) -> None:
    """A wrong argument is reported in one line that names the option, without the password, and nothing is
    sent."""
    publish(postgres.engine(), "a1")
    done = inbox_outbox("outbox", "drain", *arguments, url=postgres.url)
    assert done.returncode == 2
    assert why in done.stderr
    assert "s3cr3t" not in done.stdout + done.stderr
    assert count(postgres.engine(), TABLES.message) == 1
