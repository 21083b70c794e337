"""Fixtures of the SQS tests: one server for all of them, and one that tests may crash.

A test module names this one as its plugin.
"""

from collections.abc import Callable, Iterator

import pytest

from inbox._consuming.sqs import link
from tests import servers
from tests.servers.elasticmq import LocalElasticMQ, program
from tests.support.present import present

from .sqs_queues import SQSQueues


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[SQSQueues]:
    """Queues of the test's own on the server that the tests share. A consumer's stop takes half as long."""
    monkeypatch.setattr(link, "_WAIT", 1)
    with SQSQueues(present("elasticmq", servers.find_elasticmq()).url) as queues:
        yield queues


@pytest.fixture
def private_elasticmq(
    request: pytest.FixtureRequest, elasticmq_to_crash: Callable[[bool], LocalElasticMQ]
) -> Iterator[LocalElasticMQ]:
    """A server that the test may freeze. A test marked `long` may also kill it: there it keeps everything
    that it has confirmed, which takes it several times as long."""
    server = elasticmq_to_crash(request.node.get_closest_marker("long") is not None)
    yield server
    if not server.ready():
        server.restart()


@pytest.fixture(scope="session")
def elasticmq_to_crash() -> Iterator[Callable[[bool], LocalElasticMQ]]:
    """Such servers for all tests, because each takes seconds to start: by whether they write to the disk."""
    made: dict[bool, LocalElasticMQ] = {}

    def server(on_disk: bool) -> LocalElasticMQ:
        if on_disk not in made:
            made[on_disk] = LocalElasticMQ(present("elasticmq", program()), on_disk=on_disk)
        return made[on_disk]

    yield server
    for each in made.values():
        each.stop()
