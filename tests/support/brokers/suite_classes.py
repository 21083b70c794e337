"""What the brokers' conformance suites share: the control of a server, and a consumer on PostgreSQL."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

from inbox.testing import ConsumerSuite
from outbox import Accepted, Envelope
from tests.servers.local import LocalServer
from tests.support.answers import published
from tests.support.database import Database


class OnLocalServer:
    """Freezes and kills its own server."""

    server: LocalServer

    def freeze(self) -> None:
        self.server.freeze()

    def thaw(self) -> None:
        self.server.thaw()

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()


class PostgresConsumerSuite(OnLocalServer, ConsumerSuite):
    """A consumer that writes to PostgreSQL, and whose messages the library's publisher sends."""

    @pytest.fixture(autouse=True)
    def _database(self, postgres: Database) -> None:
        self.postgres = postgres

    def database(self, folder: Path) -> URL:
        return self.postgres.url

    def sender(self) -> Any:
        """A publisher."""
        raise NotImplementedError

    def put(self, topic: str, messages: Sequence[Envelope]) -> None:
        publisher = self.sender()
        self.wait_until(lambda: published(publisher, messages) == [Accepted()] * len(messages))
        publisher.close()
