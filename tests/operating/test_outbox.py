"""Operators' decisions about messages, on every database."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, update

import outbox
from outbox import Envelope, Outcome, Refused, Unavailable, Unknown
from outbox.errors import InvalidOption, MessageNotFound, OutboxError, TablesMissing, WrongState
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    count,
    dead,
    let_backoffs_end,
    let_leases_end,
    name_of,
    publish,
    relay,
    waiting,
)


def refused(engine: Engine, *names: str, **options: object) -> None:
    """Let these messages be refused, and send the others."""
    relay(engine, Recorder({name: [Refused("no")] for name in names}), **options)


def id_of(engine: Engine, name: str) -> str:
    """The id of a message in the outbox."""
    return str((waiting(engine) | dead(engine))[name].id)


def test_pause_and_resume(engine: Engine) -> None:
    """Messages of a paused topic wait while others are sent; after `resume` they are sent in order. Both
    functions return whether they changed anything."""
    publish(engine, "a1", "a2", topic="mail")
    publish(engine, "a3")
    assert (outbox.pause(engine, "mail"), outbox.pause(engine, "mail")) == (True, False)
    publisher = Recorder()
    assert relay(engine, publisher) == 1
    assert outbox.status(engine).paused == ("mail",)
    assert (outbox.resume(engine, "mail"), outbox.resume(engine, "mail")) == (True, False)
    assert relay(engine, publisher) == 2
    assert publisher.names == ["a3", "a1", "a2"]


@on("sqlite")
def test_pause_all(engine: Engine) -> None:
    """Without a topic, `pause` stops all messages; `resume` without a topic leaves topics paused that were
    paused by name."""
    outbox.pause(engine)
    outbox.pause(engine, "mail")
    publish(engine, "a1")
    publish(engine, "b1", topic="mail")
    publisher = Recorder()
    assert relay(engine, publisher) == 0
    outbox.resume(engine)
    assert relay(engine, publisher) == 1
    assert publisher.names == ["a1"]


def test_retry_a_dead_letter(engine: Engine) -> None:
    """A retried dead letter is sent with the same id, content and time, after later messages of its key, and
    its attempts start at 1 again."""
    publish(engine, "a1", "a2", headers={"h": "1"})
    refused(engine, "a1")
    before = dead(engine)["a1"]
    publish(engine, "a3")
    assert outbox.retry(engine, before.id) == "dead"
    assert count(engine, TABLES.dead) == 0
    publisher = Recorder()
    assert relay(engine, publisher) == 2
    assert publisher.names == ["a3", "a1"]
    again = publisher.sent[-1]
    assert (again.id, again.attempt, again.created_at) == (before.id, 1, before.created_at)
    assert (again.topic, again.key, again.headers["h"]) == ("orders", "a", "1")


def test_retry_a_held_message(engine: Engine) -> None:
    """A retried held message is sent in its place, before the other messages of its key, and its attempts
    start at 1 again."""
    publish(engine, "a1", "a2")
    refused(engine, "a1", after_dead="hold")
    publish(engine, "a3")
    assert outbox.retry(engine, id_of(engine, "a1")) == "held"
    publisher = Recorder()
    assert relay(engine, publisher) == 3
    assert publisher.names == ["a1", "a2", "a3"]
    assert publisher.sent[0].attempt == 1


@on("sqlite")
def test_retry_after_all_attempts(engine: Engine) -> None:
    """A message that is held because no send was ever answered can be retried with all its attempts."""
    publish(engine, "a1")
    publisher = Recorder(lambda _: Unknown("silence"))
    for _ in range(3):
        let_backoffs_end(engine)
        relay(engine, publisher, max_attempts=2, after_dead="hold")
    assert waiting(engine)["a1"].state == "held"
    outbox.retry(engine, id_of(engine, "a1"))
    row = waiting(engine)["a1"]
    assert (row.state, row.attempts, row.unanswered) == ("pending", 0, 0)
    relay(engine, publisher, max_attempts=2, after_dead="hold")
    assert len(publisher.sent) == 3
    assert waiting(engine)["a1"].state == "unknown"


@spread("outcome, state", [(Unavailable("full", 3_600.0), "waiting"), (Unknown("silence"), "unknown")])
def test_retry_before_the_backoff_is_over(engine: Engine, outcome: Outcome, state: str) -> None:
    """A message that waits for its backoff is sent immediately; its attempts continue to count."""
    publish(engine, "a1", "a2")
    relay(engine, Recorder({"a1": [outcome]}))
    later = datetime.now(UTC) + timedelta(hours=1)
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(retry_at=later))
    assert relay(engine, Recorder()) == 0
    assert outbox.retry(engine, id_of(engine, "a1")) == state
    publisher = Recorder()
    relay(engine, publisher)
    assert (publisher.names[0], publisher.sent[0].attempt) == ("a1", 2)


@on("sqlite")
def test_messages_that_need_no_retry(engine: Engine) -> None:
    """A pending, delayed or already sent message is rejected, and nothing changes."""
    (pending,) = publish(engine, "a1")
    (delayed,) = publish(engine, "b1", delay=3_600)
    with pytest.raises(WrongState, match=f"id='{pending}': state is pending; this needs dead, held"):
        outbox.retry(engine, pending)
    with pytest.raises(WrongState, match="state is delayed"):
        outbox.retry(engine, delayed)
    relay(engine, Recorder())
    with pytest.raises(MessageNotFound, match="it may have been sent"):
        outbox.retry(engine, pending)


def test_retry_all_dead_letters(engine: Engine) -> None:
    """Any number of dead letters go back in the order in which each key's messages were published, optionally
    only those of a topic or key."""
    names = [f"{key}{number}" for number in range(30) for key in "ab"]
    publish(engine, *names, "c1")
    publish(engine, "a-mail", topic="mail")
    relay(engine, Recorder(lambda _: Refused("never")))
    assert outbox.retry_all(engine, "dead", topic="mail") == 1
    assert outbox.retry_all(engine, "dead", key="c") == 1
    assert [*waiting(engine)] == ["a-mail", "c1"]
    assert outbox.retry_all(engine, "dead") == 60
    publisher = Recorder()
    assert relay(engine, publisher) == 62
    assert publisher.of("a")[1:] == [name for name in names if name[0] == "a"]
    assert outbox.retry_all(engine, "dead") == 0


@spread("state", ["held", "waiting", "unknown"])
def test_retry_all_that_wait(engine: Engine, state: str) -> None:
    """All messages in one state are retried, and no others, optionally only those of a topic and key."""
    say: dict[str, Outcome] = {
        "held": Refused("no"),
        "waiting": Unavailable("x", 3_600.0),
        "unknown": Unknown("x"),
    }
    names = {"orders": ["a1", "b1", "c1"], "mail": ["d1", "e1", "f1"]}
    for topic, of_topic in names.items():
        publish(engine, *of_topic, topic=topic)
    outcomes = {name: say[each] for some in names.values() for name, each in zip(some, say, strict=True)}
    relay(engine, Recorder(lambda message: outcomes[name_of(message)]), after_dead="hold")
    later = datetime.now(UTC) + timedelta(hours=1)
    with engine.begin() as connection:
        waits = TABLES.message.c.retry_at.is_not(None)
        connection.execute(update(TABLES.message).where(waits).values(retry_at=later))
    assert outbox.retry_all(engine, state, topic="mail", key="a") == 0
    assert outbox.retry_all(engine, state, topic="mail") == 1
    assert outbox.retry_all(engine, state) == 1
    publisher = Recorder()
    assert relay(engine, publisher) == 2
    assert sorted(publisher.names) == [some[[*say].index(state)] for some in names.values()]


@on("sqlite")
def test_states_that_cannot_be_retried(engine: Engine) -> None:
    """States that cannot be retried are rejected; the error names them."""
    for state in ("pending", "delayed", "lost"):
        with pytest.raises(InvalidOption, match=f"state='{state}': expected"):
            outbox.retry_all(engine, state)


def test_drop(engine: Engine) -> None:
    """A message can be dropped in any state, and `drop` returns the state; the other messages of its key are
    sent."""
    publish(engine, "x1")
    refused(engine, "x1")
    publish(engine, "h1", "h2", "w1", "w2")
    (delayed,) = publish(engine, "d1", delay=3_600)
    relay(engine, Recorder({"h1": [Refused("no")], "w1": [Unavailable("x", 3_600.0)]}), after_dead="hold")
    (pending,) = publish(engine, "p1")
    expected = {"x1": "dead", "h1": "held", "w1": "waiting"}
    for name, state in expected.items():
        assert outbox.drop(engine, id_of(engine, name)) == state
    assert outbox.drop(engine, delayed) == "delayed"
    assert outbox.drop(engine, pending) == "pending"
    publisher = Recorder()
    relay(engine, publisher)
    assert sorted(publisher.names) == ["h2", "w2"]
    assert count(engine, TABLES.dead) == count(engine, TABLES.delayed) == 0
    with pytest.raises(MessageNotFound):
        outbox.drop(engine, pending)


def test_a_message_that_is_being_sent_is_not_dropped(engine: Engine) -> None:
    """While a relay sends a batch, `drop` refuses to delete its messages and names the relay; the messages
    are sent."""
    first, second = publish(engine, "a1", "b1")

    def answer(message: Envelope) -> Outcome:
        for each in (first, second):
            with pytest.raises(WrongState, match="relay one is sending it"):
                outbox.drop(engine, each)
        return ACCEPTED

    publisher = Recorder(answer)
    assert relay(engine, publisher, name="one") == 2


def test_messages_of_a_lost_relay_can_be_dropped(engine: Engine) -> None:
    """A relay whose lease has expired does not protect a message from `drop`: whether it was sent is
    unknown."""
    (lost,) = publish(engine, "a1")
    states: list[str] = []

    def answer(message: Envelope) -> Outcome:
        let_leases_end(engine)
        states.append(outbox.drop(engine, lost))
        return ACCEPTED

    relay(engine, Recorder(answer))
    assert states == ["unknown"]
    assert count(engine, TABLES.message) == 0


def test_purge_dead(engine: Engine) -> None:
    """Dead letters that are old enough are deleted, even if there are more than one transaction deletes,
    optionally only those of a topic."""
    publish(engine, *(f"-{number}" for number in range(700)))
    publish(engine, "b1", topic="mail")
    relay(engine, Recorder(lambda _: Refused("never")))
    assert outbox.purge_dead(engine, 3_600) == 0
    assert outbox.purge_dead(engine, 0, topic="mail") == 1
    assert outbox.purge_dead(engine, timedelta(0)) == 700
    assert count(engine, TABLES.dead) == 0


@on("sqlite")
def test_without_tables(database: Database) -> None:
    """If the tables are missing, the error names the command that creates them."""
    engine = database.engine()
    for decide in (
        lambda: outbox.pause(engine),
        lambda: outbox.retry(engine, "1"),
        lambda: outbox.retry_all(engine, "held"),
        lambda: outbox.drop(engine, "1"),
        lambda: outbox.purge_dead(engine, 0),
        lambda: outbox.set_bucket_count(engine, 65),
    ):
        with pytest.raises(TablesMissing, match="inbox-outbox migrate"):
            decide()


def test_wrong_options() -> None:
    """An invalid option is rejected before the database is used; the error names it and is an
    `OutboxError`."""
    engine: Engine = None  # type: ignore[assignment]
    for decide, said in (
        (lambda: outbox.pause(engine, ""), "topic=''"),
        (lambda: outbox.resume(engine, "a" * 250), "250 bytes"),
        (
            lambda: outbox.pause(engine, "orders.*"),
            r"topic='orders\.\*': expected a whole topic, or \"\*\" for",
        ),
        (lambda: outbox.resume(engine, "**"), r"topic='\*\*': expected a whole topic"),
        (lambda: outbox.purge_dead(engine, -1), "older_than=-1"),
        (lambda: outbox.set_bucket_count(engine, 0), "count=0"),
        (lambda: outbox.retry(engine, "1"), "engine=NoneType: expected an Engine"),
    ):
        with pytest.raises(InvalidOption, match=said) as caught:
            decide()
        assert isinstance(caught.value, OutboxError)
