"""Very many messages that cannot be sent: what they cost, and how an operator learns about them."""

import time
from collections.abc import Sequence

import pytest
from sqlalchemy import Connection, Engine, update

from outbox import Accepted, Envelope, Outcome, Relay, Unavailable, pause, retry_all, status
from outbox._relaying.reading import backlog as waits
from outbox._relaying.reading import crowd, scanning
from outbox._relaying.reading.backlog import Backlog, BacklogEntry
from outbox._relaying.reading.scanning import Scanner
from tests.support.on_servers import on
from tests.support.outbox_publishers import TABLES, Recorder, count, publish, waiting
from tests.support.processes import wait_until
from tests.support.relay.crashes import running

MANY = 100


def down(message: Envelope) -> Outcome:
    """The broker takes no message of one topic."""
    return Unavailable("away") if message.topic == "down" else Accepted()


@on("sqlite", "postgresql")
def test_who_fills_the_memory(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If one topic half fills a relay's memory, the log and `status` name it. If it fills all of it, other
    topics wait until an operator pauses that topic."""
    monkeypatch.setattr(Backlog, "most", MANY)
    monkeypatch.setattr(crowd, "_EVERY", 0.0)
    publish(engine, *(f"-{number}" for number in range(MANY // 2)), topic="down")
    publisher = Recorder(down)
    with running(Relay(engine, publisher, poll=0.05)):
        publish(engine, "a1", topic="healthy")
        wait_until(lambda: crowded_by(engine) == ["down"])
        wait_until(lambda: publisher.of("a") == ["a1"])
        assert "'down' (50)" in caplog.text
        assert "then other topics and keys wait, too" in caplog.text
        publish(engine, *(f"-{number}" for number in range(MANY)), topic="down")
        wait_until(lambda: "other topics and keys wait now" in caplog.text)
        wait_until(lambda: [relay.reads_no_further for relay in status(engine).relays] == [True])
        publish(engine, "a2", topic="healthy")
        time.sleep(0.3)
        assert publisher.of("a") == ["a1"]
        pause(engine, "down")
        wait_until(lambda: publisher.of("a") == ["a1", "a2"])
        wait_until(lambda: crowded_by(engine) == [None])
        wait_until(lambda: [relay.reads_no_further for relay in status(engine).relays] == [False])
    assert count(engine, TABLES.message) == MANY // 2 + MANY


def crowded_by(engine: Engine) -> list[str | None]:
    """The topics that the relays name."""
    return [relay.crowded_by for relay in status(engine).relays]


@on("mariadb", "postgresql")
def test_held_messages_are_looked_at_a_few_at_a_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many messages are held, a relay looks at a few of them at a time, and notices that an operator
    has released them. Other messages leave meanwhile."""
    monkeypatch.setattr(waits, "LOOK_AGAIN", 0.2)
    monkeypatch.setattr(scanning, "_LOOKS", 10)
    looks: list[int] = []
    look = Scanner._look

    def noted(scanner: Scanner, connection: Connection, entries: Sequence[BacklogEntry]) -> None:
        looks.append(len(entries))
        look(scanner, connection, entries)

    monkeypatch.setattr(Scanner, "_look", noted)
    publish(engine, *(f"-{number}" for number in range(MANY)))
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(state="held", error="no"))
    publisher = Recorder()
    with running(Relay(engine, publisher, poll=0.05)):
        wait_until(lambda: sum(looks) > 3 * MANY)
        publish(engine, "a1")
        wait_until(lambda: publisher.of("a") == ["a1"])
        assert retry_all(engine, "held") == MANY
        wait_until(lambda: not waiting(engine))
    assert len(publisher.accepted) == MANY + 1
    assert max(looks) <= 10
