"""Fixtures of the RabbitMQ tests: one server for all of them, and one that tests may crash.

A test module names this one as its plugin.
"""

from collections.abc import Iterator

import pytest

from tests import servers
from tests.servers import Service
from tests.servers.rabbitmq import LocalRabbit, program, start_local
from tests.support.present import present

from .rabbit_queues import Queues


@pytest.fixture(scope="session")
def rabbitmq() -> Service:
    """The server that the tests share, started for the first test that needs it."""
    return present("rabbitmq", servers.find_rabbit())


@pytest.fixture
def queues(rabbitmq: Service) -> Iterator[Queues]:
    """Queues of the test's own."""
    with Queues(rabbitmq.url) as queues:
        yield queues


@pytest.fixture
def private_rabbitmq(rabbitmq_to_crash: LocalRabbit) -> Iterator[LocalRabbit]:
    """A server that the test may crash; it keeps everything that it has confirmed."""
    yield rabbitmq_to_crash
    if not rabbitmq_to_crash.ready():
        rabbitmq_to_crash.restart()


@pytest.fixture(scope="session")
def rabbitmq_to_crash() -> Iterator[LocalRabbit]:
    """One such server for all tests, because it takes seconds to start."""
    present("rabbitmq", program())
    server = start_local()
    yield server
    server.stop()
