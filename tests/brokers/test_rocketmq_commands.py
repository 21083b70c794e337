"""`inbox-outbox outbox relay` and `drain` with a real RocketMQ, and the code of RocketMQ's page."""

import json
from pathlib import Path

import pytest

from tests.support.brokers.rocketmq_topics import Topics
from tests.support.cli import inbox_outbox
from tests.support.database import Database
from tests.support.documented_code import name, pages_that_need, run_on_broker
from tests.support.outbox_publishers import publish

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]


def test_drain(postgres: Database, rocketmq: Topics) -> None:
    """A rocketmq:// URL names the proxy. Its secret is not printed."""
    topic = rocketmq.new("FIFO")
    publish(postgres.engine(), "a1", "a2", topic=topic)
    to = f"rocketmq://key:s3cr3t@{rocketmq.address}"
    done = inbox_outbox("outbox", "drain", "--to", to, "--json", url=postgres.url)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["sent"], found["left"]) == (2, 0)
    assert "s3cr3t" not in done.stdout + done.stderr
    assert [each.body for each in rocketmq.stored(topic)] == [b"a1", b"a2"]


@pytest.mark.parametrize("page", pages_that_need("rocketmq"), ids=name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rocketmq: Topics
) -> None:
    """One code block of the page publishes messages, the next one sends them, and the last one consumes
    them."""
    rocketmq.new("FIFO", name="orders")
    rocketmq.group(in_order=True, name="billing")
    run_on_broker(page, tmp_path, monkeypatch, "rocketmq", {"rocketmq:8081": rocketmq.address})
