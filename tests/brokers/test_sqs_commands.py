"""`inbox-outbox outbox drain` with a real queue, and the code of the page about SQS."""

import json
from pathlib import Path

import pytest

from tests.support.brokers.sqs_queues import SQSQueues
from tests.support.cli import inbox_outbox
from tests.support.database import Database
from tests.support.documented_code import name, pages_that_need, run_on_broker
from tests.support.outbox_publishers import publish

pytest_plugins = ["tests.support.brokers.sqs_fixtures"]


def test_drain(postgres: Database, sqs: SQSQueues) -> None:
    """An sqs+http:// URL names the server. Its secret is not printed."""
    topic = sqs.new(fifo=True)
    publish(postgres.engine(), "a1", "a2", topic=topic)
    to = sqs.url.replace("key:secret", "key:s3cr3t")
    done = inbox_outbox("outbox", "drain", "--to", to, "--json", url=postgres.url)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["sent"], found["left"]) == (2, 0)
    assert "s3cr3t" not in done.stdout + done.stderr
    assert [each["Body"] for each in sqs.taken(topic, 2)] == ["a1", "a2"]


@pytest.mark.parametrize("page", pages_that_need("sqs"), ids=name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqs: SQSQueues
) -> None:
    """One code block of the page publishes messages, the next one sends them, and the last one consumes
    them."""
    for queue in ("orders.fifo", "orders-dead.fifo"):
        sqs.new(queue)
    run_on_broker(page, tmp_path, monkeypatch, "sqs", {"sqs://sqs.eu-west-1.amazonaws.com": sqs.url})
