"""What becomes of messages of Kafka that no attempt can help: none is lost, and none goes unnoticed."""

import threading

import pytest
from psycopg import OperationalError as ConnectionClosed
from sqlalchemy.exc import OperationalError

from inbox import Decision, Delivery
from inbox.errors import GiveUp
from tests.database import Database
from tests.kafka_consumers import applied, applying, consumer, make_table, running
from tests.kafka_topics import Topics, values, wait_until

pytest_plugins = ["tests.kafka_fixtures"]


class Fault(Exception):
    """The handler's own error."""


def give_up(delivery: Delivery) -> None:
    """What a handler does that knows of a message it can never apply."""
    if delivery.payload == b"poison":
        raise GiveUp("cannot be")


def test_a_poison_message_goes_to_the_topic_of_dead_letters(topics: Topics, postgres: Database) -> None:
    """A message that no attempt can help is written to the other topic as it came, with the reason and its
    place, and committed; those behind it are applied."""
    engine, topic, dead = postgres.engine(), topics.new(), topics.new()
    make_table(engine)

    topics.put(topic, "a", "poison", "c", key="k", note="n")
    with running(consumer(topics.address, topic, applying(engine, before=give_up), dead_letter=dead)):
        wait_until(lambda: "c" in applied(engine))
    assert applied(engine) == ["a", "c"]
    assert topics.committed("payments", topic) == {0: 3}
    (letter,) = topics.log(dead)
    assert (letter.key(), letter.value()) == (b"k", b"poison")
    assert dict(letter.headers() or []) == {
        "note": b"n",
        "dead-letter-reason": b"dead: GiveUp: cannot be",
        "dead-letter-topic": topic.encode(),
        "dead-letter-partition": b"0",
        "dead-letter-offset": b"1",
    }


def test_a_topic_of_dead_letters_that_is_missing(
    topics: Topics, postgres: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A dead letter is not committed before Kafka has confirmed that it was put away."""
    engine, topic = postgres.engine(), topics.new()
    make_table(engine)

    topics.put(topic, "poison", "b")
    dead = f"{topic}.dead"
    with running(consumer(topics.address, topic, applying(engine, before=give_up), dead_letter=dead)):
        wait_until(lambda: "dead_letter= failed" in caplog.text)
        assert applied(engine) == []
        topics.make(dead)
        wait_until(lambda: applied(engine))
    assert values(topics.log(dead)) == ["poison"]


def test_a_dead_letter_that_cannot_be_put_away(topics: Topics, postgres: Database) -> None:
    """A dead letter is not committed before it has been put away."""
    engine, topic, calls = postgres.engine(), topics.new(), list[int]()
    make_table(engine)

    def put_away(delivery: Delivery, decision: Decision) -> None:
        calls.append(delivery.attempt)
        if len(calls) < 3:
            raise Fault("nowhere to put it")

    topics.put(topic, "poison", "b")
    handler = applying(engine, before=give_up)
    with running(consumer(topics.address, topic, handler, dead_letter=put_away)):
        wait_until(lambda: applied(engine))
    assert (applied(engine), calls) == (["b"], [1, 2, 3])


def test_without_dead_letters_it_blocks(
    topics: Topics, postgres: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a place for dead letters none is lost: the partition waits, each attempt is reported, and once
    the cause is mended all are applied."""
    engine, topic = postgres.engine(), topics.new()
    make_table(engine)
    is_mended = threading.Event()

    def give_up(delivery: Delivery) -> None:
        if delivery.payload == b"poison" and not is_mended.is_set():
            raise GiveUp("cannot be")

    topics.put(topic, "a", "poison", "c")
    with running(consumer(topics.address, topic, applying(engine, before=give_up))):
        wait_until(lambda: "blocks" in caplog.text)
        assert applied(engine) == ["a"]
        is_mended.set()
        wait_until(lambda: len(applied(engine)) >= 3)
    assert applied(engine) == ["a", "poison", "c"]


def test_failing_too_often(topics: Topics, postgres: Database) -> None:
    """A message that failed as often as it may becomes a dead letter; a broken connection to the database is
    not its failure."""
    engine, topic, letters = postgres.engine(), topics.new(), list[tuple[int, str]]()
    make_table(engine)

    def fail(delivery: Delivery) -> None:
        if delivery.payload == b"poison":
            raise Fault("again")
        if delivery.payload == b"unlucky" and delivery.attempt < 6:
            raise _broken_connection()

    def put_away(delivery: Delivery, decision: Decision) -> None:
        letters.append((delivery.attempt, decision.reason))

    topics.put(topic, "poison", "unlucky")
    handler = applying(engine, before=fail)
    with running(consumer(topics.address, topic, handler, max_attempts=3, dead_letter=put_away)):
        wait_until(lambda: applied(engine))
    assert applied(engine) == ["unlucky"]
    assert letters == [(3, "dead: GiveUp: it has failed 3 times: again")]


def _broken_connection() -> Exception:
    lost = ConnectionClosed("the connection is closed")
    return OperationalError("SELECT", {}, lost, connection_invalidated=True)
