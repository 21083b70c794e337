"""The example for users of RocketMQDedupListener."""

import os
import subprocess
import sys

import pytest

from tests import servers
from tests.servers import Missing
from tests.support.database import Database
from tests.support.program import ROOT
from tests.support.rocketmq_topics import Topics

pytest_plugins = ["tests.support.rocketmq_fixtures"]


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
