"""Messages that the broker never accepts: the log reports them, and a relay can give them up."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, update

from inbox import Backoff
from outbox import Envelope, Outcome, Relay, Unavailable, Unknown, retry
from outbox._relaying.sending import lanes
from tests.support.on_servers import on
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    dead,
    let_backoffs_end,
    publish,
    relay,
    waiting,
)
from tests.support.relay.servers import server

__all__ = ["server"]

HOUR = 3_600.0
LOG = "outbox.relay"


def no_queue(message: Envelope) -> Outcome:
    """A broker that knows the topic "orders" and no other."""
    return ACCEPTED if message.topic == "orders" else Unavailable(f"no queue {message.topic!r}")


def let_time_pass(engine: Engine, seconds: float) -> None:
    """Make messages that are failing have failed for this long."""
    since = datetime.now(UTC) - timedelta(seconds=seconds)
    failing = TABLES.message.c.failing_since.is_not(None)
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).where(failing).values(failing_since=since))
    let_backoffs_end(engine)


def test_a_message_that_is_given_up(engine: Engine) -> None:
    """A message is sent again until it has failed for `give_up_after`; then it becomes a dead letter with the
    last reason, and its key goes on."""
    publish(engine, "a1", topic="typo")
    publish(engine, "a2", "b1")
    publisher = Recorder(no_queue)
    assert relay(engine, publisher, give_up_after=HOUR) == 1
    let_time_pass(engine, HOUR - 60)
    assert relay(engine, publisher, give_up_after=HOUR) == 0
    assert list(waiting(engine)) == ["a1", "a2"]
    let_time_pass(engine, HOUR + 60)
    assert relay(engine, publisher, give_up_after=timedelta(hours=1)) == 1
    assert publisher.of("a") == ["a2"]
    row = dead(engine)["a1"]
    assert (row.outcome, row.attempts) == ("refused", 3)
    assert row.error.startswith("given up after 36")
    assert row.error.endswith(" s: no queue 'typo'")


@on("sqlite")
def test_it_may_have_arrived(engine: Engine) -> None:
    """If one of its sends had no answer, the dead letter's outcome is unknown."""
    publish(engine, "a1")
    publisher = Recorder({"a1": [Unknown("silence"), Unavailable("full")]})
    relay(engine, publisher, give_up_after=HOUR)
    let_time_pass(engine, 2 * HOUR)
    relay(engine, publisher, give_up_after=HOUR)
    assert dead(engine)["a1"].outcome == "unknown"


@on("sqlite")
def test_its_key_is_held(engine: Engine) -> None:
    """With after_dead="hold" an operator decides; a retry restarts the time limit."""
    publish(engine, "a1", topic="typo")
    publisher = Recorder(no_queue)
    options: dict[str, Any] = {"give_up_after": HOUR, "after_dead": "hold"}
    relay(engine, publisher, **options)
    let_time_pass(engine, 2 * HOUR)
    relay(engine, publisher, **options)
    row = waiting(engine)["a1"]
    assert row.state == "held"
    retry(engine, row.id)
    relay(engine, publisher, **options)
    assert waiting(engine)["a1"].state == "pending"


@on("sqlite")
def test_without_the_option(engine: Engine) -> None:
    """Without `give_up_after`, a message is retried forever, however long it has failed."""
    publish(engine, "a1", topic="typo")
    publisher = Recorder(no_queue)
    for _ in range(3):
        relay(engine, publisher)
        let_time_pass(engine, 1_000 * HOUR)
    assert list(waiting(engine)) == ["a1"]


@on("sqlite")
def test_many_are_given_up_together(engine: Engine) -> None:
    """A topic that is retried with one message at a time does not keep any message past its time limit."""
    publish(engine, *(f"-{number}" for number in range(300)), topic="typo")
    with engine.begin() as connection:
        connection.execute(
            update(TABLES.message).values(
                failing_since=datetime(2020, 1, 1, tzinfo=UTC), attempts=1, error="no"
            )
        )
    relay(engine, Recorder(no_queue), give_up_after=HOUR)
    assert len(dead(engine)) == 300


@on("sqlite")
def test_the_log_names_topics_that_are_not_taken(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the broker begins to reject a topic, a WARNING gives the reason; it is repeated once a minute and
    not more often. An INFO follows when the broker accepts the topic again, and none
    when a message is given up. No line contains a password."""
    publish(engine, "a1", topic="typo")
    publish(engine, "b1")
    broker = Recorder(
        lambda each: ACCEPTED if each.topic == "orders" else Unavailable("amqp://me:secret@host/: no queue")
    )
    once = Relay(engine, broker, backoff=Backoff(first=0.01, longest=0.01), give_up_after=HOUR)

    def said(level: int) -> list[str]:
        found = [
            each.getMessage() for each in caplog.records if each.levelno == level and "topic" in each.msg
        ]
        caplog.clear()
        return found

    with caplog.at_level(logging.INFO, LOG):
        once.run_once()
        let_backoffs_end(engine)
        once.run_once()
        (warning,) = said(logging.WARNING)
        assert warning.startswith("topic 'typo' is not taken")
        assert warning.endswith(": amqp://me:***@host/: no queue")
        monkeypatch.setattr(lanes, "_SAID_EVERY", 0)
        let_backoffs_end(engine)
        once.run_once()
        assert len(said(logging.WARNING)) == 1
        broker.answer = lambda _: ACCEPTED
        let_backoffs_end(engine)
        once.run_once()
        assert said(logging.INFO) == ["topic 'typo' is taken again"]
        broker.answer = no_queue
        publish(engine, "a2", topic="typo")
        once.run_once()
        let_time_pass(engine, 2 * HOUR)
        once.run_once()
        assert list(dead(engine)) == ["a2"]
        assert not said(logging.INFO)
