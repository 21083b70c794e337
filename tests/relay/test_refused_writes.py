"""What the database refuses to write for a relay: the rest is written, and nothing is sent for ever."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, event, text, update
from sqlalchemy.exc import DBAPIError

from outbox import Envelope, Outcome, Refused, Relay
from outbox._relaying import rounds
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outages import END_OTHERS
from tests.support.outbox_publishers import ACCEPTED, TABLES, Recorder, count, publish, relay, waiting
from tests.support.processes import wait_until
from tests.support.relay.crashes import running

OTHERS = [f"{letter}{number}" for letter in "acdefghij" for number in (1, 2)]
CHECK = "ALTER TABLE {0} ADD CONSTRAINT refuses CHECK (topic <> '{1}')"
ALLOW = "ALTER TABLE {0} DROP CONSTRAINT refuses"
TRIGGER = (
    "CREATE TRIGGER refuses AFTER INSERT ON {0} WHEN NEW.topic = '{1}' BEGIN SELECT RAISE(ABORT, 'no'); END"
)
AT_COMMIT = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
    CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON {0} DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.topic = '{1}') EXECUTE FUNCTION refuse()
"""


def run(engine: Engine, script: str, table: str, topic: str = "bad") -> None:
    """Run a statement."""
    with engine.begin() as connection:
        connection.execute(text(script.format(table, topic)))


def refuse(engine: Engine, table: str, topic: str = "bad") -> None:
    """Let the database refuse rows of a topic."""
    run(engine, TRIGGER if engine.dialect.name == "sqlite" else CHECK, table, topic)


def allow(engine: Engine, table: str) -> None:
    """Let it take them again."""
    run(engine, "DROP TRIGGER refuses" if engine.dialect.name == "sqlite" else ALLOW, table)


@contextmanager
def refusals(engine: Engine) -> Iterator[list[str]]:
    """The errors of the database."""
    found: list[str] = []

    @event.listens_for(engine, "handle_error")
    def note(context: object) -> None:
        found.append(str(context))

    yield found
    event.remove(engine, "handle_error", note)


def answer(message: Envelope) -> Outcome:
    """Refuse one topic."""
    return Refused("no") if message.topic == "bad" else ACCEPTED


@pytest.mark.parametrize("table", ["outbox_dead", "outbox_sent"])
@on("postgresql", "mariadb", "sqlite")
def test_an_outcome(engine: Engine, table: str, caplog: pytest.LogCaptureFixture) -> None:
    """A message whose outcome cannot be written is held back while the relay runs, and others of its key
    wait; all other outcomes are written, those of its batch, too. Once that is possible, its own is."""
    keeps = table == "outbox_sent"
    publish(engine, "b1", topic="bad")
    publish(engine, "b2", *OTHERS)
    refuse(engine, table)
    publisher = Recorder((lambda _: ACCEPTED) if keeps else answer)
    relaying = Relay(engine, publisher, poll=0.1, keep_sent=600 if keeps else None)
    with refusals(engine) as errors, running(relaying):
        wait_until(lambda: len(errors) > 4)
        wait_until(lambda: [*waiting(engine)] == ["b1", "b2"])
        publish(engine, "k1")
        wait_until(lambda: "k1" not in waiting(engine))
        assert sorted(publisher.names) == sorted(["b1", *OTHERS, "k1"])
        allow(engine, table)
        wait_until(lambda: not waiting(engine))
    assert sorted(publisher.names) == sorted(["b1", *OTHERS, "k1", "b2"])
    assert count(engine, TABLES.sent if keeps else TABLES.dead) == (len(publisher.sent) if keeps else 1)
    said = [each.getMessage() for each in caplog.records if "the database refuses" in each.getMessage()]
    assert len(said) == 1
    assert "to record what became of 1 messages, as of" in said[0]


def test_an_outcome_at_the_commit(postgres: Database) -> None:
    """The same where a deferred trigger refuses the row, and on a new connection, which has to read again."""
    engine = postgres.engine()
    run(engine, AT_COMMIT, "outbox_sent")
    publish(engine, "b1", topic="bad")
    publish(engine, *OTHERS)
    publisher = Recorder()
    with refusals(engine) as errors, running(Relay(engine, publisher, poll=0.1, keep_sent=600)):
        wait_until(lambda: len(errors) > 4)
        wait_until(lambda: [*waiting(engine)] == ["b1"])
        with engine.connect() as connection:
            connection.exec_driver_sql(END_OTHERS)
        known = len(errors)
        wait_until(lambda: len(errors) > known + 2)
        run(engine, "DROP TRIGGER refuses ON {0}", "outbox_sent")
        wait_until(lambda: not waiting(engine))
    assert sorted(publisher.names) == sorted(["b1", *OTHERS])


@on("postgresql", "mariadb", "sqlite")
def test_a_delayed_message(engine: Engine) -> None:
    """A message that cannot be moved when it is due does not end the relay; others leave, but none before an
    earlier one of its key."""
    publish(engine, "b1", topic="bad", delay=3_600)
    publish(engine, "b2", *OTHERS, delay=3_600)
    with engine.begin() as connection:
        connection.execute(update(TABLES.delayed).values(available_at=TABLES.delayed.c.created_at))
    publish(engine, "k1")
    refuse(engine, "outbox_message")
    publisher = Recorder()
    with refusals(engine) as errors, running(Relay(engine, publisher, poll=0.1)):
        wait_until(lambda: len(errors) > 4)
        wait_until(lambda: sorted(publisher.names) == sorted([*OTHERS, "k1"]))
        assert count(engine, TABLES.delayed) == 2
        allow(engine, "outbox_message")
        wait_until(lambda: count(engine, TABLES.delayed) == 0 and not waiting(engine))
    assert publisher.of("b") == ["b1", "b2"]


@on("postgresql", "mysql")
@pytest.mark.mysql
def test_one_pass(engine: Engine) -> None:
    """A single pass raises the error, after everything else was written."""
    publish(engine, "b1", topic="bad")
    publish(engine, *OTHERS)
    refuse(engine, "outbox_dead")
    with pytest.raises(DBAPIError, match="refuses"):
        relay(engine, Recorder(answer))
    assert [*waiting(engine)] == ["b1"]
    assert count(engine, TABLES.relay) == 0


@on("postgresql")
def test_the_last_outcomes(engine: Engine) -> None:
    """A relay that cannot note at its end that messages have left without a record writes their outcomes."""
    publish(engine, *OTHERS)
    refuse(engine, "outbox_gone", "*")

    def last(_: Envelope) -> Outcome:
        one.stop()
        return ACCEPTED

    publisher = Recorder(last)
    one = Relay(engine, publisher)
    one.run()
    assert len(publisher.sent) + len(waiting(engine)) == len(OTHERS)
    assert publisher.sent
    assert count(engine, TABLES.relay) == 0


@on("postgresql")
def test_many_outcomes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the outcomes of many messages are refused, nothing more is sent until they are written."""
    monkeypatch.setattr(rounds, "_MOST_UNWRITTEN", 2)
    publish(engine, "b1", "-2", topic="bad")
    refuse(engine, "outbox_sent")
    publisher = Recorder()
    with refusals(engine) as errors, running(Relay(engine, publisher, poll=0.1, keep_sent=600)):
        wait_until(lambda: len(errors) > 4)
        publish(engine, *OTHERS)
        known = len(errors)
        wait_until(lambda: len(errors) > known + 4)
        assert sorted(publisher.names) == ["-2", "b1"]
        allow(engine, "outbox_sent")
        wait_until(lambda: not waiting(engine))
    assert sorted(publisher.names) == sorted(["-2", "b1", *OTHERS])
