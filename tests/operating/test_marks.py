"""PostgreSQL: while relays search for messages below the marks, operators' functions do not read rows that
were already sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert

from inbox.schema import metadata_for
from outbox import Relay, Unavailable, is_drained, peek, status
from outbox._relaying.reading import marks as stored
from outbox._relaying.settings import RelaySettings
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.outbox_publishers import ACCEPTED, TABLES, Recorder, marks, publish
from tests.support.processes import wait_until
from tests.support.relay.crashes import running
from tests.support.roles import Right, role

MANY = 5 * BUCKETS
LOW = {"bucket": 0, "sequence": 7, "id": "low", "payload": b"", "topic": "orders", "content_type": "x"}


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays of this process store every mark that has moved, and check for chores all the time."""
    monkeypatch.setattr(stored, "FAR", 1)
    monkeypatch.setattr(RelaySettings, "tend_every", 0)


@contextmanager
def relaying(engine: Engine) -> Iterator[Recorder]:
    """A relay is running, has sent many messages and stored its marks. Messages with key "a" wait."""
    publisher = Recorder(lambda each: Unavailable("away", 3_600) if each.key == "a" else ACCEPTED)
    with running(Relay(engine, publisher, poll=0.02)):
        publish(engine, *(f"-{number}" for number in range(MANY)))
        wait_until(lambda: min(marks(engine).values(), default=0) == MANY)
        yield publisher


def reads_of(engine: Engine) -> list[Any]:
    """The parameters of each following statement on this engine that reads messages, except those for buckets
    that do not exist."""
    reads: list[Any] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        is_stray = "outbox_message.bucket BETWEEN" in statement
        if "FROM outbox_message" in statement and not is_stray:
            reads.append(parameters)

    return reads


def test_sent_messages_are_not_read(postgres: Database) -> None:
    """`status`, `is_drained` and `peek` are correct, and read only from the marks on."""
    engine = postgres.engine()
    with relaying(engine) as publisher:
        operators = postgres.engine()
        reads = reads_of(operators)
        assert is_drained(operators)
        publish(engine, "a1", "a2")
        wait_until(lambda: publisher.of("a") or "a1" in publisher.names)
        wait_until(lambda: status(operators).waiting == 1)
        assert not is_drained(operators)
        found = status(operators, count_up_to=2)
        assert (found.pending, found.waiting, found.estimated) == (1, 1, ())
        assert [each.attempts for each in peek(operators)] == [1, 0]
        assert min(read["low_"] for read in reads) >= MANY
        assert status(operators, count_up_to=1).estimated
        assert status(operators, count_up_to=None).waiting == 1


def test_messages_in_buckets_that_do_not_exist(postgres: Database) -> None:
    """Messages in buckets that do not exist are still counted."""
    engine = postgres.engine()
    with relaying(engine):
        with engine.begin() as connection:
            connection.execute(insert(TABLES.message), LOW | {"bucket": BUCKETS})
        found = status(engine)
    assert (found.pending, found.stray) == (1, 1)


def test_without_a_relay(postgres: Database) -> None:
    """Without a relay no process searches for messages below the marks, so everything is read."""
    engine = postgres.engine()
    with relaying(engine):
        pass
    assert max(marks(engine).values()) == MANY
    with engine.begin() as connection:
        connection.execute(insert(TABLES.message), LOW)
    assert status(engine).pending == 1
    assert [each.id for each in peek(engine)] == ["low"]
    assert not is_drained(engine)


def test_a_role_that_may_only_read(postgres: Database) -> None:
    """The functions also work for a role that cannot use the sequence."""
    engine = postgres.engine()
    with role(postgres) as reader:
        for table in metadata_for("outbox").tables:
            reader.grant(Right("SELECT", table))
        with relaying(engine):
            mine = reader.database.engine()
            assert is_drained(mine)
            assert status(mine).pending == 0
            mine.dispose()
