"""`inbox-outbox outbox drain` with a real NATS, and the code of the page about it."""

import json
from pathlib import Path

import pytest

from tests.support.brokers.nats_streams import NatsStreams
from tests.support.cli import inbox_outbox
from tests.support.database import Database
from tests.support.documented_code import name, pages_that_need, run_on_broker
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


@pytest.mark.parametrize("page", pages_that_need("nats"), ids=name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nats: NatsStreams
) -> None:
    """One code block of the page publishes messages, the next one sends them, and the last one consumes
    them."""
    for stream in ("orders", "orders-dead"):
        nats.new(stream)
    run_on_broker(page, tmp_path, monkeypatch, "nats", {"nats://nats.example.com:4222": nats.url})
