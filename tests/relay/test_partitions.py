"""A topic of which the broker takes some keys and not others, as when a partition has no leader."""

import pytest
from sqlalchemy import Engine

from outbox import Envelope, Message, Outbox, Outcome, Relay, Unavailable
from tests.support.database import Database
from tests.support.outbox_publishers import ACCEPTED, Recorder
from tests.support.relay_crashes import running
from tests.support.relay_servers import server  # noqa: F401 - where its databases are
from tests.support.status_workers import wait_until


@pytest.fixture
def engine(migrated: Database) -> Engine:
    return migrated.engine()


def publish(engine: Engine, *keys: str) -> None:
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message("orders", b"-", key) for key in keys])


def test_keys_that_are_taken_go_on(engine: Engine) -> None:
    """Though many messages of others wait, and are tried one by one, one of them leaves with the next try."""

    def answer(message: Envelope) -> Outcome:
        return Unavailable("no leader", 0.0) if str(message.key).startswith("bad") else ACCEPTED

    publish(engine, *(f"bad{number}" for number in range(60)))
    publisher = Recorder(answer)
    with running(Relay(engine, publisher, poll=0.05)):
        wait_until(lambda: len(publisher.batches) > 2)
        for number in range(4):
            before = len(publisher.batches)
            publish(engine, f"good{number}")
            wait_until(lambda: len(publisher.accepted) > number, timeout=10)  # noqa: B023
            batches = [[message.key for message in batch] for batch in publisher.batches[before:]]
            assert any(f"good{number}" in batch for batch in batches[:3])
