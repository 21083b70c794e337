"""The order of messages, and commits in another order than that of their sequences."""

import time

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox import Outbox, Relay
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on
from tests.support.outbox_publishers import Recorder
from tests.support.processes import wait_until
from tests.support.published import TOPIC, texts
from tests.support.relay.crashes import running
from tests.support.together import Task, together, wait_until_blocked

OUTBOX = Outbox()


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with an account beside the outbox."""
    return accounts.make(migrated.engine())


@on(*WITH_WRITERS)
def test_messages_have_the_order_of_the_changes(engine: Engine) -> None:
    """Two sessions publish about one row and change it in the opposite order: the messages are sent in the
    order of the changes."""
    with Session(engine) as first, Session(engine) as second:
        OUTBOX.publish(second, TOPIC, "second change", key="cash")
        OUTBOX.publish(first, TOPIC, "first change", key="cash")
        accounts.add(first)
        waiting = Task(lambda: add_and_commit(second))
        wait_until_blocked(engine)
        first.commit()
        waiting.result()
    assert accounts.total(engine) == 2
    assert texts(engine) == ["first change", "second change"]


def add_and_commit(session: Session) -> None:
    """Change the row as soon as its lock is free."""
    accounts.add(session)
    session.commit()


def test_many_sessions_on_one_row(engine: Engine) -> None:
    """Sessions in several threads publish first and then increment a row: the messages are sent in the order
    in which the row was changed."""
    changes: dict[str, int] = {}

    def count_up(thread: int) -> None:
        for number in range(10):
            with Session(engine) as session:
                name = f"{thread}-{number}"
                OUTBOX.publish(session, TOPIC, name, key="cash")
                accounts.add(session)
                changes[name] = session.get_one(Account, "cash").total
                session.commit()

    together([lambda thread=thread: count_up(thread) for thread in range(5)])  # type: ignore[misc]
    assert accounts.total(engine) == 50
    assert [changes[name] for name in texts(engine)] == [*range(1, 51)]


@on(*WITH_WRITERS)
def test_a_running_relay_finds_late_commits(migrated: Database, engine: Engine) -> None:
    """The same for a relay that keeps running while many later messages are published and sent: what it has
    learned about the sequences does not make it skip an open transaction."""
    recorder = Recorder()
    keys = [f"key-{number}" for number in range(20)]
    with running(Relay(migrated.engine(), recorder, lease=2, poll=0.05)):
        with engine.connect() as slow:
            for key in keys:
                OUTBOX.publish(slow, TOPIC, f"slow {key}", key=key)
            for round_ in range(8):
                with engine.begin() as quick:
                    for key in keys:
                        OUTBOX.publish(quick, TOPIC, f"quick {round_} {key}", key=key)
                wait_until(lambda: len(recorder.accepted) >= 20 * (round_ + 1))  # noqa: B023
                time.sleep(0.4)  # every half second the relay checks which transactions write
            slow.commit()
        wait_until(lambda: len(recorder.accepted) >= 20 * 9)
    sent = [message.payload.decode() for message in recorder.accepted]
    assert len(set(sent)) == len(sent) == 20 * 9
    assert sorted(sent[-20:]) == sorted(f"slow {key}" for key in keys)
