"""Dead letters: what happens to the rest of their key, and messages that kill the relay."""

import os
import signal
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine, update

from outbox import Envelope, Outcome, Refused, Relay
from outbox._relaying.sending.batch import SOLO_AFTER
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    count,
    dead,
    let_leases_end,
    name_of,
    publish,
    relay,
    waiting,
)
from tests.support.processes import workers

MAX_ATTEMPTS = SOLO_AFTER + 3


def test_behind_a_held_letter_its_key_waits(engine: Engine) -> None:
    """With after_dead="hold", message 2 stays in its place and is not sent again; message 3 and later ones
    wait; other keys go on."""
    publish(engine, "a1", "a2", "a3", "b1", "b2")
    publisher = Recorder({"a2": [Refused("no")]})
    assert relay(engine, publisher, after_dead="hold") == 3
    publish(engine, "a4", "b3")
    assert relay(engine, publisher, after_dead="hold") == 1
    assert publisher.of("b") == ["b1", "b2", "b3"]
    assert list(waiting(engine)) == ["a2", "a3", "a4"]
    row = waiting(engine)["a2"]
    assert (row.state, row.attempts, row.unanswered, row.error) == ("held", 1, 0, "no")
    assert not dead(engine)
    assert publisher.names.count("a2") == 1


@on("sqlite")
def test_without_a_key_there_is_nothing_to_hold(engine: Engine) -> None:
    """A message without a key becomes a dead letter even with after_dead="hold"."""
    publish(engine, "-1", "-2")
    assert relay(engine, Recorder({"-1": [Refused("no")]}), after_dead="hold") == 1
    assert list(dead(engine)) == ["-1"]
    assert not waiting(engine)


@on("sqlite")
def test_an_interrupted_send_is_an_attempt(engine: Engine) -> None:
    """After Ctrl-C during a send, the message being sent is unknown, since it may have arrived; answers are
    recorded, and messages that were not sent are unchanged."""
    publish(engine, "a1", "a2", "a3", "b1")

    def answer(message: Envelope) -> Outcome:
        if name_of(message) == "a2":
            raise KeyboardInterrupt
        return ACCEPTED

    with pytest.raises(KeyboardInterrupt):
        relay(engine, Recorder(answer))
    rows = waiting(engine)
    assert [(name, row.state, row.attempts) for name, row in rows.items()] == [
        ("a2", "unknown", 1),
        ("a3", "pending", 0),
    ]
    assert count(engine, TABLES.relay) == 0


def test_attempts_are_counted_before_the_send(migrated: Database, tmp_path: Path) -> None:
    """A relay is killed with kill -9 while it sends. Once its lease has expired, the send counts as one
    without an answer, and the message is sent again with the same id and the next attempt number."""
    engine = migrated.engine()
    published = publish(engine, "x1", "x2", "-1")
    _live_and_die(migrated.url, tmp_path / "sends")
    assert {name: row.attempts for name, row in waiting(engine).items()} == {"x1": 0, "x2": 0, "-1": 0}
    assert relay(engine, Recorder()) == 0  # the dead relay's lease has not expired
    let_leases_end(engine)
    rows, publisher = {}, Recorder(lambda _: rows.update(waiting(engine)) or ACCEPTED)
    assert relay(engine, publisher) == 3
    row = rows["x1"]
    assert (row.attempts, row.unanswered, row.state) == (1, 1, "unknown")
    assert row.error.endswith("was lost while it was sending")
    first = publisher.sent[0]
    assert (name_of(first), first.id, first.attempt) == ("x1", published[0], 2)
    assert publisher.of("x") == ["x1", "x2"]


@on("sqlite", "postgresql")
def test_a_message_that_kills_its_relay_ends_dead(migrated: Database, tmp_path: Path) -> None:
    """A poison message that kills every relay during its send is dead after `max_attempts` sends. The
    messages sent together with it are accepted after a few sends of their own, and each of the relays still
    sends new messages of the same bucket before it is killed."""
    engine, sends = migrated.engine(), tmp_path / "sends"
    others = ["x2", "x3", *(f"-{number}" for number in range(20)), "a1", "a2", "b1"]
    publish(engine, "x1", *others)
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(bucket=0))
    for life in range(MAX_ATTEMPTS):
        if life >= SOLO_AFTER:
            publish(engine, f"f{life}")
            with engine.begin() as connection:
                connection.execute(update(TABLES.message).values(bucket=0))
        _live_and_die(migrated.url, sends)
        if life >= SOLO_AFTER:
            assert f"f{life}" in _sends(sends)
        let_leases_end(engine)
    _live_and_die(migrated.url, sends, dies=False)
    assert not waiting(engine)
    assert list(dead(engine)) == ["x1"]
    row = dead(engine)["x1"]
    assert (row.outcome, row.attempts) == ("unknown", MAX_ATTEMPTS)
    sent = _sends(sends)
    assert sent["x1"] == MAX_ATTEMPTS
    assert {1} <= {sent[name] for name in others} <= set(range(1, SOLO_AFTER + 3))


def _live_and_die(url: URL, sends: Path, *, dies: bool = True, max_attempts: int = MAX_ATTEMPTS) -> None:
    with workers((_relay_with_poison, url, sends, max_attempts)) as (child,):
        assert child.exit_code() == (-signal.SIGKILL if dies else 0)


def _relay_with_poison(pipe: Connection, url: URL, sends: Path, max_attempts: int) -> None:
    """Run a relay whose process is killed when it sends the message x1; the names of the messages it sends
    are written to a file."""

    def answer(message: Envelope) -> Outcome:
        with sends.open("a") as file:
            file.write(f"{name_of(message)}\n")
        if name_of(message) == "x1":
            os.kill(os.getpid(), signal.SIGKILL)
        return ACCEPTED

    engine = create_engine(url)
    Relay(engine, Recorder(answer), max_attempts=max_attempts).run_once()
    engine.dispose()


def _sends(sends: Path) -> Counter[str]:
    """How often each message was sent."""
    return Counter(sends.read_text().split())


@on("sqlite")
def test_unsent_messages_are_not_given_up(migrated: Database, tmp_path: Path) -> None:
    """Even if `max_attempts` is small, relays that are killed while sending one message do not use up the
    attempts of the others in its batch: no message is given up before it has been sent alone."""
    engine = migrated.engine()
    publish(engine, "x1", "x2", "x3", "y1")
    for _ in range(SOLO_AFTER + 1):
        _live_and_die(migrated.url, tmp_path / "sends", max_attempts=1)
        let_leases_end(engine)
    _live_and_die(migrated.url, tmp_path / "sends", dies=False, max_attempts=1)
    assert list(dead(engine)) == ["x1"]
    assert _sends(tmp_path / "sends") == {"x1": SOLO_AFTER + 1, "x2": 1, "x3": 1, "y1": 1}
