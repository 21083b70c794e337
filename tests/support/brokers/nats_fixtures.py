"""Fixtures of the NATS tests: one server for all of them, and one that tests may crash.

A test module names this one as its plugin.
"""

from collections.abc import Iterator

import pytest

from tests import servers
from tests.servers.nats import LocalNats, program
from tests.support.present import present

from .nats_streams import NatsStreams


@pytest.fixture
def nats() -> Iterator[NatsStreams]:
    """Streams of the test's own on the server that the tests share."""
    with NatsStreams(present("nats", servers.find_nats()).url) as streams:
        yield streams


@pytest.fixture
def private_nats() -> Iterator[LocalNats]:
    """A server that the test may freeze, kill and configure; it starts in a moment."""
    server = LocalNats(present("nats", program()))
    yield server
    server.stop()
