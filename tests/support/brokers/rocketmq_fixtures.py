"""Fixtures of the RocketMQ tests: one server for all of them, and one that tests may crash.

A test module names this one as its plugin.
"""

from collections.abc import Iterator

import pytest

from tests import servers
from tests.servers.rocketmq import LocalRocket, program
from tests.support.present import present

from .rocketmq_topics import Topics


@pytest.fixture
def rocketmq() -> Iterator[Topics]:
    """Topics and groups of the test's own on the server that the tests share."""
    found = present("rocketmq", servers.find_rocket())
    with Topics(found.address, found.broker) as topics:
        yield topics


@pytest.fixture
def private_rocketmq(rocketmq_to_crash: LocalRocket) -> Iterator[LocalRocket]:
    """A server that the test may crash; it keeps everything that it has acknowledged."""
    yield rocketmq_to_crash
    if not rocketmq_to_crash.ready():
        rocketmq_to_crash.restart()


@pytest.fixture(scope="session")
def rocketmq_to_crash() -> Iterator[LocalRocket]:
    """One such server for all tests, because it takes seconds to start."""
    server = LocalRocket(present("rocketmq", program()))
    yield server
    server.stop()
