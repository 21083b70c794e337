"""Fixtures of the Kafka tests: one broker for all of them, and one that tests may crash.

A test module names this one as its plugin.
"""

from collections.abc import Iterator

import pytest

from examples.embedded_postgres import free_port
from tests import servers
from tests.servers.kafka import LocalKafka, program
from tests.support.present import present
from tests.support.proxy import TcpProxy

from .kafka_topics import Topics


@pytest.fixture
def topics() -> Iterator[Topics]:
    """Topics of the test's own on the broker that the tests share."""
    with Topics(present("kafka", servers.find_kafka()).address) as topics:
        yield topics


@pytest.fixture
def private_kafka(kafka_to_crash: LocalKafka) -> Iterator[LocalKafka]:
    """A broker that the test may crash; it keeps everything that it has acknowledged."""
    yield kafka_to_crash
    if not kafka_to_crash.ready():
        kafka_to_crash.restart()


@pytest.fixture(scope="session")
def kafka_to_crash() -> Iterator[LocalKafka]:
    """One such broker for all tests, because it takes seconds to start."""
    server = LocalKafka(present("kafka", program()))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def two_brokers() -> Iterator[tuple[LocalKafka, LocalKafka]]:
    """A cluster of two, for tests that crash only the second broker."""
    first = LocalKafka(present("kafka", program()))
    try:
        second = LocalKafka(present("kafka", program()), joins=first)
        yield first, second
        second.stop()
    finally:
        first.stop()


@pytest.fixture(scope="module")
def proxied_kafka() -> Iterator[tuple[Topics, TcpProxy]]:
    """A broker whose clients are told to connect through a proxy."""
    port = free_port()
    with TcpProxy("127.0.0.1", port) as proxy:
        server = LocalKafka(present("kafka", program()), port=port, advertised=proxy.port)
        try:
            with Topics(f"127.0.0.1:{proxy.port}") as topics:
                yield topics, proxy
        finally:
            server.stop()
