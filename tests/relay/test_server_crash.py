"""Crashes of PostgreSQL while messages are sent: nothing is announced that the crash undoes."""

from collections.abc import Iterable, Iterator, Sequence

import pytest
from sqlalchemy import Engine, NullPool, create_engine

from outbox import Envelope, Outbox, Outcome, Relay
from tests.support import accounts
from tests.support.database import make_tables
from tests.support.outbox_publishers import Recorder, messages
from tests.support.replication import Primary

CRASHES = 5
"""The server may write its log by chance: one crash alone may undo nothing."""


@pytest.fixture
def primary() -> Iterator[Primary]:
    """A server that writes its log only when a commit waits for it, and whose commits do not."""
    with Primary({"synchronous_commit": "off", "wal_writer_delay": "10s", "fsync": "off"}) as server:
        make_tables(server.url)
        yield server


@pytest.fixture
def engine(primary: Primary) -> Iterator[Engine]:
    """The test's engine, which keeps no connection during a crash."""
    made = create_engine(primary.url, poolclass=NullPool)
    yield made
    made.dispose()


class Crashing(Recorder):
    """A publisher that crashes the outbox's server when it gets a message."""

    def __init__(self, primary: Primary) -> None:
        super().__init__()
        self._primary = primary

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        self._primary.restart()
        return super().send(batch)


def test_a_sent_message_has_its_business_row(primary: Primary, engine: Engine) -> None:
    """All processes of the server are killed while a message is sent whose transaction did not wait for the
    disk. The business row of the message is still there."""
    accounts.make(engine)
    for number in range(CRASHES):
        name = f"a{number}"
        with engine.begin() as connection:
            accounts.open_account(connection, name)
            Outbox(wake=False).publish_many(connection, messages([name]))
        publisher = Crashing(primary)
        assert Relay(engine, publisher).run_once() == 1
        assert publisher.names == [name]
        assert name in accounts.totals(engine)
