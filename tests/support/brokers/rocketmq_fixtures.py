"""Fixtures of the RocketMQ tests: one server for all of them, and one that tests may crash.

A test module names this one as its plugin.
"""

from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests import servers
from tests.servers import Missing
from tests.servers.rocketmq import LocalRocket, answers, program

from .rocketmq_topics import Topics


@pytest.fixture
def rocketmq() -> Iterator[Topics]:
    """Topics and groups of the test's own on the server that the tests share."""
    found = servers.find_rocket()
    if isinstance(found, Missing):
        _do_without(found)
    with Topics(found.address, found.broker) as topics:
        yield topics


@pytest.fixture
def private_rocketmq(rocketmq_to_crash: LocalRocket) -> Iterator[LocalRocket]:
    """A server that the test may crash; it keeps everything that it has acknowledged."""
    yield rocketmq_to_crash
    if not answers(rocketmq_to_crash.address):
        rocketmq_to_crash.restart()


@pytest.fixture(scope="session")
def rocketmq_to_crash() -> Iterator[LocalRocket]:
    """One such server for all tests, because it takes seconds to start."""
    found = program()
    if isinstance(found, Missing):
        _do_without(found)
    server = LocalRocket(found)
    yield server
    server.close()


def _do_without(missing: Missing) -> NoReturn:
    if servers.is_required("rocketmq"):
        pytest.fail(f"rocketmq is required: {missing.reason}")
    pytest.skip(f"rocketmq: {missing.reason}")
