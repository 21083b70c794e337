"""Rows with invalid times or counts: each becomes a dead letter, stops nothing else, and can be looked at."""

import asyncio

import pytest
from sqlalchemy import Engine, text

from outbox import AsyncRelay, MessageState, OutboxStatus, drop, peek, status
from tests.support.cli import in_this_process
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import TABLES, AsyncRecorder, Recorder, count, publish, relay

pytestmark = pytest.mark.mysql

NO_TIME = "it has an invalid time"
IN_LINE = {
    "sqlite": {
        "created_at = 'soon'": NO_TIME,
        "created_at = 17": NO_TIME,
        "retry_at = 'later'": NO_TIME,
        "failing_since = x'00'": NO_TIME,
        "attempts = 'many'": "its attempts are not numbers",
        "attempts = 'z', unanswered = 'many'": "its attempts are not numbers",
    },
    "mysql": {"created_at = '0000-00-00'": NO_TIME},
}
DELAYED = {
    "sqlite": ("available_at = 'soon'", "available_at = 17", "created_at = 'soon'"),
    "mysql": ("available_at = '0000-00-00'", "created_at = '0000-00-00'"),
}


def spoil(engine: Engine, table: str, what: str) -> None:
    """Change the message a2 with direct SQL, on a server with its checks turned off."""
    with engine.begin() as connection:
        if engine.dialect.name != "sqlite":
            connection.execute(text("SET SESSION sql_mode = ''"))
        connection.execute(text(f"UPDATE {table} SET {what} WHERE payload = :it"), {"it": b"a2"})
    engine.dispose()


def looked_at(engine: Engine) -> OutboxStatus:
    """The status of the outbox, after `peek` has looked at every message."""
    for state in (None, *MessageState):
        peek(engine, state=state)
    return status(engine)


@on("sqlite", "mariadb", "mysql")
def test_in_line(migrated: Database) -> None:
    """A damaged row becomes a dead letter without having been sent, and its neighbours are sent, also those
    of its key."""
    engine = migrated.engine()
    for what, reason in IN_LINE[migrated.url.get_backend_name()].items():
        publish(engine, "a1", "a2", "a3", "b1")
        spoil(engine, "outbox_message", what)
        assert looked_at(engine).dead == 0
        publisher = Recorder()
        relay(engine, publisher)
        assert (publisher.of("a"), publisher.of("b")) == (["a1", "a3"], ["b1"]), what
        assert count(engine, TABLES.message) == 0
        (letter,) = peek(engine, state="dead")
        assert letter.error == reason
        assert looked_at(engine).dead == 1
        drop(engine, letter.id)


@on("sqlite", "mariadb", "mysql")
def test_its_key_is_held(migrated: Database) -> None:
    """With after_dead="hold" the row stays in its place, and can be looked at and dropped."""
    engine = migrated.engine()
    publisher = Recorder()
    for what in IN_LINE[migrated.url.get_backend_name()]:
        publish(engine, "a1", "a2", "a3", "b1")
        spoil(engine, "outbox_message", what)
        assert relay(engine, publisher, after_dead="hold") == 2, what
        assert looked_at(engine).held == 1
        (held,) = peek(engine, state="held")
        drop(engine, held.id)
        assert relay(engine, publisher) == 1


@on("sqlite", "mariadb", "mysql")
def test_delayed(migrated: Database) -> None:
    """A damaged message that is delayed does not wait until it is due: it becomes a dead letter immediately.
    A zero date counts as due, and the message is sent."""
    engine = migrated.engine()
    for what in DELAYED[migrated.url.get_backend_name()]:
        publish(engine, "a2", delay=3_600)
        publish(engine, "a1", "b1", delay=0.001)
        spoil(engine, "outbox_delayed", what)
        if not what.startswith("available_at"):
            spoil(engine, "outbox_delayed", "available_at = '2001-02-03 04:05:06.000000'")
        assert looked_at(engine).delayed == 3
        publisher = Recorder()
        for _ in range(2):
            relay(engine, publisher)
        left = ["a1"] if migrated.name == "sqlite" else ["a2", "a1"]
        assert (publisher.of("a"), publisher.of("b")) == (left, ["b1"]), what
        assert count(engine, TABLES.delayed) + count(engine, TABLES.message) == 0
        for letter in peek(engine, state="dead"):
            assert letter.error == NO_TIME
            drop(engine, letter.id)


@on("sqlite", "mariadb", "mysql")
def test_asynchronous(migrated: Database) -> None:
    """An AsyncRelay, too, makes such a row a dead letter."""
    engine = migrated.engine()
    what, reason = next(iter(IN_LINE[migrated.url.get_backend_name()].items()))
    publish(engine, "a1", "a2", "a3")
    spoil(engine, "outbox_message", what)
    publisher = AsyncRecorder()

    async def scenario() -> None:
        asynchronous = migrated.async_engine()
        try:
            await AsyncRelay(asynchronous, publisher).run_once()
        finally:
            await asynchronous.dispose()

    asyncio.run(scenario())
    assert publisher.of("a") == ["a1", "a3"]
    (letter,) = peek(engine, state="dead")
    assert letter.error == reason


@pytest.mark.parametrize("time", ["infinity", "-infinity", "0044-03-15 BC"])
def test_infinite_times_can_be_looked_at(postgres: Database, time: str) -> None:
    """Operators see times that PostgreSQL can store and Python cannot represent, and relays wait for them."""
    engine = postgres.engine()
    changes = {
        "outbox_message": "created_at = :time, failing_since = :time, retry_at = :time, attempts = 1",
        "outbox_delayed": "created_at = :time, available_at = :time",
        "outbox_dead": "created_at = :time, dead_at = :time",
    }
    publish(engine, "a1")
    with engine.begin() as connection:
        names = "id, bucket, topic, key, payload, content_type, created_at"
        copy = f"INSERT INTO outbox_{{}} ({names}, {{}}) SELECT {names}, {{}} FROM outbox_message"
        connection.execute(text(copy.format("delayed", "available_at", "now()")))
        connection.execute(text(copy.format("dead", "attempts, outcome, error", "1, 'refused', 'x'")))
        for table, what in changes.items():
            connection.execute(text(f"UPDATE {table} SET {what}"), {"time": time})
    found = looked_at(engine)
    assert (found.waiting, found.delayed, found.dead) == (1, 1, 1)
    url = postgres.url.render_as_string(hide_password=False)
    for command in (["peek"], ["peek", "--dead", "--json"], ["peek", "--state", "delayed"], ["status"]):
        done = in_this_process("outbox", *command, url=url)
        assert done.returncode == 0, done.stderr
    relay(engine, Recorder())
    assert count(engine, TABLES.delayed) == (time == "infinity")
