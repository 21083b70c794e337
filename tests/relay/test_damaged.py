"""Rows written by other programs that are not valid messages: each becomes a dead letter and stops nothing
else."""

from itertools import product
from typing import Any

import pytest
from sqlalchemy import Engine, text, update

from outbox import MessageState, Relay, Unknown, peek, retry_all
from outbox._relaying.reading import payloads as loading
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import (
    TABLES,
    Recorder,
    count,
    dead,
    let_backoffs_end,
    publish,
    relay,
    waiting,
)
from tests.support.relay.servers import NAMES

pytestmark = pytest.mark.mysql

HEADERS = {
    "no JSON": ("{it's", "its headers are not JSON"),
    "too deep": ("[" * 60_000, "its headers are not JSON"),
    "no object": ("[1]", "its headers are not a JSON object of strings"),
    "no UTF-8": ('{"a": "\\ud800"}', "its headers are not UTF-8"),
    "no number that can be printed": (f'{{"a": {"9" * 5_000}}}', "its headers are not JSON"),
    "no strings": ('{"tries": 3}', "its headers are not a JSON object of strings"),
}


def damage(engine: Engine, name: str, **values: Any) -> None:
    """Change a message's row with direct SQL."""
    with engine.begin() as connection:
        for table in (TABLES.message, TABLES.delayed):
            connection.execute(update(table).where(table.c.payload == name.encode()).values(values))


def spoil(engine: Engine, what: str) -> None:
    """Set a column of the message a2 to a value that no message could have."""
    with engine.begin() as connection:
        for table in ("outbox_message", "outbox_delayed"):
            connection.execute(
                text(f"UPDATE {table} SET {what} WHERE payload = :payload"),
                {"payload": b"a2"},
            )


@spread("headers", HEADERS, where=NAMES)
def test_headers_that_cannot_be_read(engine: Engine, headers: str) -> None:
    """The row becomes a dead letter with the reason, without having been sent. The messages before and behind
    it in its key are sent in order, and so are others. Operators can look at it and retry it."""
    publish(engine, "a1", "a2", "a3", "b1", "-1")
    written, reason = HEADERS[headers]
    damage(engine, "a2", headers=written)
    publisher = Recorder()
    assert relay(engine, publisher) == 4
    assert publisher.of("a") == ["a1", "a3"]
    row = dead(engine)["a2"]
    assert (row.outcome, row.attempts, row.headers) == ("refused", 0, written)
    assert row.error.startswith(reason)
    (letter,) = peek(engine, state=MessageState.DEAD)
    assert (letter.headers, letter.error) == ({}, row.error)
    damage_is_gone = update(TABLES.dead).values(headers=None)
    with engine.begin() as connection:
        connection.execute(damage_is_gone)
    assert retry_all(engine, "dead") == 1
    assert relay(engine, publisher) == 1
    assert publisher.of("a") == ["a1", "a3", "a2"]


@pytest.mark.parametrize("time", ["infinity", "-infinity", "0044-03-15 BC"])
def test_times_that_python_does_not_have(postgres: Database, time: str) -> None:
    """PostgreSQL can store times that Python cannot represent: they stop nothing, and a message whose retry
    time is infinity waits."""
    engine = postgres.engine()
    publisher = Recorder()
    for what in ("created_at = :time, failing_since = :time", "retry_at = :time, attempts = 1"):
        publish(engine, "a1", "a2", "a3", "b1")
        with engine.begin() as connection:
            spoilt = text(f"UPDATE outbox_message SET {what} WHERE payload = 'a2'")
            connection.execute(spoilt, {"time": time})
        waits = time == "infinity" and what.startswith("retry_at")
        assert relay(engine, publisher) == (2 if waits else 4)
        assert count(engine, TABLES.message) == (2 if waits else 0)


@on("sqlite")
def test_its_key_is_held(engine: Engine) -> None:
    """With after_dead="hold" the damaged row stays in its place, and the messages behind it wait for an
    operator."""
    publish(engine, "a1", "a2", "a3", "b1")
    damage(engine, "a2", headers="{")
    publisher = Recorder()
    assert relay(engine, publisher, after_dead="hold") == 2
    assert publisher.of("a") == ["a1"]
    rows = waiting(engine)
    assert [(name, row.state) for name, row in rows.items()] == [("a2", "held"), ("a3", "pending")]
    assert rows["a2"].error.startswith("its headers are not JSON")


KINDS = {
    "sqlite": ("payload = 'a text'", "its payload is not bytes, but str"),
    "mysql": ("`key` = X'61ff'", "its key is not UTF-8"),
}


@spread("light, delay", product([True, False], [None, 0.001]), elsewhere=4, where=("sqlite", "mariadb"))
def test_a_column_of_another_kind(
    migrated: Database, monkeypatch: pytest.MonkeyPatch, light: bool, delay: float | None
) -> None:
    """A value that the database accepts although it is no valid payload or key becomes a dead letter as well,
    even if the payload is read later than the rest of the row."""
    if not light:
        monkeypatch.setattr(loading, "_LARGEST_BATCH", 1)
    change, reason = KINDS[migrated.url.get_backend_name()]
    engine = migrated.engine()
    publish(engine, "a1", "a2", "a3", "b1", delay=delay)
    spoil(engine, change)
    publisher = Recorder()
    for _ in range(2):
        relay(engine, publisher)
    assert publisher.of("a") == ["a1", "a3"]
    assert publisher.of("b") == ["b1"]
    assert count(engine, TABLES.message) == 0
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT error FROM outbox_dead").scalar_one() == reason
    assert len(peek(engine, state=MessageState.DEAD)) == 1


@on("sqlite")
def test_it_was_sent_before(engine: Engine) -> None:
    """A row that is damaged while it waits for its next attempt keeps its number of attempts."""
    publish(engine, "a1")
    publisher = Recorder({"a1": [Unknown("silence")]})
    once = Relay(engine, publisher)
    once.run_once()
    damage(engine, "a1", headers="{")
    let_backoffs_end(engine)
    once.run_once()
    assert dead(engine)["a1"].attempts == 1
