"""Delayed messages."""

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, select, update

from inbox_outbox_base.databases.taking_statements import clock
from outbox import Envelope, Message, Outbox, Outcome, Relay
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on, spread
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    count,
    messages,
    publish,
    relay,
    waiting,
)
from tests.support.processes import wait_until
from tests.support.relay.crashes import running


@spread("later", ["delay", "available_at"])
def test_a_delayed_message_waits(engine: Engine, later: str) -> None:
    """A delayed message is sent unchanged when it is due, and messages behind it do not wait for it."""
    when: Any = timedelta(hours=1) if later == "delay" else datetime.now(UTC) + timedelta(hours=1)
    (published,) = publish(engine, "a1", **{later: when})
    publish(engine, "a2")
    publisher = Recorder()
    assert relay(engine, publisher) == 1
    assert publisher.names == ["a2"]
    with engine.connect() as connection:
        created = connection.scalars(select(TABLES.delayed.c.created_at)).one()
    _let_time_pass(engine)
    assert relay(engine, publisher) == 1
    last = publisher.sent[-1]
    assert (last.id, last.key, last.attempt, last.created_at) == (published, "a", 1, created)
    assert count(engine, TABLES.delayed) == 0
    assert not waiting(engine)


def test_it_is_not_sent_before_it_is_due(engine: Engine) -> None:
    """A running relay sends a delayed message by itself, and never before it is due by the database's
    clock."""
    early = []

    def answer(message: Envelope) -> Outcome:
        with engine.connect() as connection:
            now = connection.execute(clock()).scalar_one()
        early.append(now < message.created_at + timedelta(seconds=float(message.headers["after"])))
        return ACCEPTED

    with running(Relay(engine, Recorder(answer))):
        for delay in (0.0, 0.3, 1.3):
            publish(engine, "a1", delay=delay, headers={"after": str(delay)})
        wait_until(lambda: len(early) == 3)
    assert early == [False] * 3


def test_the_order_of_due_times(engine: Engine) -> None:
    """Delayed messages of one key are sent in the order of their due times, not of their publishing, and
    after the messages that were already waiting when they became due."""
    now = datetime.now(UTC)
    hours = {"a1": 3, "a2": 1, "a3": 2, "b1": 2, "a4": 1.5}
    with engine.begin() as connection:
        for name, each in hours.items():
            (message,) = messages([name], available_at=now + timedelta(hours=each))
            Outbox().publish_many(connection, [message])
    publish(engine, "a5")
    publisher = Recorder()
    assert relay(engine, publisher) == 1
    _let_time_pass(engine)
    publish(engine, "a6")
    assert relay(engine, publisher) == 6
    assert publisher.of("a") == ["a5", "a6", "a2", "a4", "a3", "a1"]


@pytest.mark.quick("postgresql")
def test_many_are_due_together(engine: Engine) -> None:
    """If more messages of one key are due than are moved in one step, all of them are sent in their order."""
    names = [f"a{number}" for number in range(2_300)]
    start = datetime.now(UTC) + timedelta(hours=1)
    with engine.begin() as connection:
        Outbox().publish_many(
            connection,
            [
                Message("orders", name.encode(), "a", available_at=start + timedelta(seconds=number))
                for number, name in enumerate(names)
            ],
        )
    _let_time_pass(engine, timedelta(days=1))
    publisher = Recorder()
    once = Relay(engine, publisher)
    while once.run_once():
        pass
    assert publisher.names == names


@on(*WITH_WRITERS)
def test_relays_that_move_side_by_side(migrated: Database) -> None:
    """Two messages of one key become due while two relays look for due messages, and the first relay's move
    takes long. They are still sent in the order of their due times."""
    looking, publisher, slowed = migrated.engine(), Recorder(), threading.Event()

    def move_slowly(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("INSERT INTO outbox_message") and not slowed.is_set():
            slowed.set()
            end = time.monotonic() + 3
            while count(looking, TABLES.delayed) == 2 and time.monotonic() < end:
                time.sleep(0.05)

    relays = []
    for _ in range(2):
        engine = migrated.engine()
        event.listen(engine, "before_cursor_execute", move_slowly)
        relays.append(Relay(engine, publisher))
    with running(*relays):
        wait_until(lambda: count(looking, TABLES.relay) == 2)
        with looking.begin() as connection:
            for name, delay in (("a1", 2.5), ("a2", 3.0)):
                (message,) = messages([name], delay=delay)
                Outbox().publish_many(connection, [message])
        wait_until(lambda: len(publisher.accepted) == 2)
    assert slowed.is_set()
    assert publisher.of("a") == ["a1", "a2"]


def _let_time_pass(engine: Engine, by: timedelta = timedelta(hours=12)) -> None:
    """Make all delayed messages due earlier, in the same order."""
    c = TABLES.delayed.c
    with engine.begin() as connection:
        for row in connection.execute(select(c.id, c.available_at)).all():
            earlier = row.available_at - by
            connection.execute(update(TABLES.delayed).where(c.id == row.id).values(available_at=earlier))


def test_messages_due_at_the_same_time(engine: Engine) -> None:
    """Messages of one key with the same due time are sent in the order in which they were published, together
    or one by one, whatever their ids are."""
    due = datetime.now(UTC) + timedelta(hours=1)
    names = [f"a{number}" for number in range(60)]
    made = [
        replace(each, id=f"order-{100 - number}" if number % 3 else None)
        for number, each in enumerate(messages(names, available_at=due))
    ]
    for start, stop in ((0, 30), *((each, each + 1) for each in range(30, 60))):
        with engine.begin() as connection:
            Outbox().publish_many(connection, made[start:stop])
    _let_time_pass(engine)
    publisher = Recorder()
    assert relay(engine, publisher) == 60
    assert publisher.names == names


@on(*WITH_WRITERS)
def test_a_row_that_is_locked_is_not_passed_by(migrated: Database) -> None:
    """While another transaction locks the first of a key's due messages, the second one is not moved before
    it. A message that was dropped meanwhile is not sent."""
    engine, publisher = migrated.engine(), Recorder()
    past = datetime.now(UTC) - timedelta(hours=1)
    first, _, third = publish(engine, "a1", "a2", "a3", available_at=past)
    with engine.connect() as other:
        other.execute(select(TABLES.delayed).where(TABLES.delayed.c.id == first).with_for_update())
        with running(Relay(engine, publisher, lease=60)):
            time.sleep(0.5)
            assert not publisher.sent
            other.execute(delete(TABLES.delayed).where(TABLES.delayed.c.id == third))
            other.commit()
            wait_until(lambda: len(publisher.accepted) == 2)
    assert publisher.names == ["a1", "a2"]
    assert count(engine, TABLES.delayed) == 0
