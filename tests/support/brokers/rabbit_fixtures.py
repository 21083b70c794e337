"""Fixtures of the RabbitMQ tests: one server for all of them, and one that tests may crash.

A test module names this one as its plugin.
"""

from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests import servers
from tests.servers import Missing
from tests.servers.rabbitmq import LocalRabbit, RabbitServer, program, start_local

from .rabbit_queues import Queues


@pytest.fixture(scope="session")
def rabbitmq() -> RabbitServer:
    """The server that the tests share, started for the first test that needs it."""
    found = servers.find_rabbit()
    return _do_without(found) if isinstance(found, Missing) else found


@pytest.fixture
def queues(rabbitmq: RabbitServer) -> Iterator[Queues]:
    """Queues of the test's own."""
    with Queues(rabbitmq.url) as queues:
        yield queues


@pytest.fixture
def private_rabbitmq(rabbitmq_to_crash: LocalRabbit) -> Iterator[LocalRabbit]:
    """A server that the test may crash; it keeps everything that it has confirmed."""
    yield rabbitmq_to_crash
    if not rabbitmq_to_crash.answers():
        rabbitmq_to_crash.restart()


@pytest.fixture(scope="session")
def rabbitmq_to_crash() -> Iterator[LocalRabbit]:
    """One such server for all tests, because it takes seconds to start."""
    found = program()
    if isinstance(found, Missing):
        _do_without(found)
    server = start_local()
    yield server
    server.close()


def _do_without(missing: Missing) -> NoReturn:
    if servers.is_required("rabbitmq"):
        pytest.fail(f"rabbitmq is required: {missing.reason}")
    pytest.skip(f"rabbitmq: {missing.reason}")
