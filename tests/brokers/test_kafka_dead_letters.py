"""Messages of Kafka that can never succeed: none is lost, and none goes unnoticed."""

import asyncio
import json
import re
import threading
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

import pytest
from confluent_kafka import Message

from inbox import Claim, Decision, Delivery, Outcome, SqlStore, StatusInbox, Verdict
from inbox.errors import GiveUp
from outbox import Accepted
from outbox.kafka import KafkaPublisher
from tests.support.answers import published
from tests.support.brokers.consumers import Handler, running
from tests.support.brokers.kafka_consumers import QUICK, applied, applying, consumer, make_table
from tests.support.brokers.kafka_topics import Topics, envelope, wait_until
from tests.support.database import Database
from tests.support.listeners import Fault

pytest_plugins = ["tests.support.brokers.kafka_fixtures"]


def give_up(delivery: Delivery) -> None:
    """Gives up a message that can never be applied."""
    if delivery.payload == b"poison":
        raise GiveUp("cannot be")


def without_identity(letter: Message) -> dict[str, Any]:
    """The letter's headers, except for the id and the time of the message, which have to be there."""
    headers: dict[str, Any] = dict(letter.headers() or [])
    assert re.fullmatch(rb"topic-\w+-0-\d-\w+", headers.pop("dead-letter-id"))
    assert datetime.fromisoformat(headers.pop("dead-letter-created-at").decode()) <= datetime.now(UTC)
    return headers


def all_but_the_end(taken: threading.Event) -> Handler:
    """A handler that gives up every message except the last one."""

    def handle(delivery: Delivery) -> Outcome:
        if delivery.payload != b"end":
            raise GiveUp("cannot be")
        taken.set()
        return Outcome(Verdict.NEW)

    return handle


def test_a_poison_message_goes_to_the_topic_of_dead_letters(topics: Topics, postgres: Database) -> None:
    """A message that can never succeed is written to the dead-letter topic unchanged, with the reason and its
    place, and is committed. Later messages are applied."""
    engine, topic, dead = postgres.engine(), topics.new(), topics.new()
    make_table(engine)

    topics.put(topic, "a", "poison", "c", key="k", note="n")
    with running(consumer(topics.address, topic, applying(engine, before=give_up), dead_letter=dead)):
        wait_until(lambda: "c" in applied(engine))
    assert applied(engine) == ["a", "c"]
    assert topics.committed("payments", topic) == {0: 3}
    (letter,) = topics.log(dead)
    assert (letter.key(), letter.value()) == (b"k", b"poison")
    assert without_identity(letter) == {
        "note": b"n",
        "dead-letter-reason": b"dead: GiveUp: cannot be",
        "dead-letter-topic": topic.encode(),
        "dead-letter-partition": b"0",
        "dead-letter-offset": b"1",
    }


def test_a_large_message_goes_to_the_topic_of_dead_letters(topics: Topics) -> None:
    """A message as large as its topic allows is stored as a dead letter in full, and later messages
    continue."""
    topic, dead, taken = topics.new(), topics.new(), threading.Event()
    sender = KafkaPublisher({"bootstrap.servers": topics.address})
    large, end = envelope(topic, "x" * 1_048_000, "k"), envelope(topic, "end", "k")
    assert published(sender, [large, end]) == [Accepted()] * 2
    sender.close()
    with running(consumer(topics.address, topic, all_but_the_end(taken), dead_letter=dead)):
        wait_until(taken.is_set)
    (letter,) = topics.log(dead)
    assert letter.value() == large.payload


def test_a_message_too_large_for_the_topic_of_dead_letters(topics: Topics) -> None:
    """If the dead-letter topic rejects a message because of its size, the consumer writes as much as fits: at
    least its place, and what was left out. The message blocks nothing."""
    topic, dead, taken = topics.new(), topics.new(max_message_bytes="2000"), threading.Event()
    topics.put(topic, token_hex(3_000), key="k", note="n")
    topics.put(topic, "small", key="k", note=token_hex(3_000))
    topics.put(topic, "end")
    with running(consumer(topics.address, topic, all_but_the_end(taken), dead_letter=dead)):
        wait_until(taken.is_set)
    first, second = topics.log(dead)
    place = {
        "dead-letter-reason": b"dead: GiveUp: cannot be",
        "dead-letter-topic": topic.encode(),
        "dead-letter-partition": b"0",
    }
    assert (first.key(), first.value()) == (b"k", None)
    kept = {"note": b"n", "dead-letter-offset": b"0", "dead-letter-left-out": b"value"}
    assert without_identity(first) == {**place, **kept}
    assert (second.key(), second.value()) == (None, None)
    kept = {"dead-letter-offset": b"1", "dead-letter-left-out": b"key, value, headers"}
    assert without_identity(second) == {**place, **kept}


def test_a_dead_letter_that_cannot_be_put_away(topics: Topics, postgres: Database) -> None:
    """A dead letter is not committed until the `dead_letter` function has stored it."""
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
    """Without `dead_letter` no message is lost: the partition waits, each attempt is logged, and once the
    cause is fixed all messages are applied."""
    engine, topic = postgres.engine(), topics.new()
    make_table(engine)
    is_mended = threading.Event()

    def give_up(delivery: Delivery) -> None:
        if delivery.payload == b"poison" and not is_mended.is_set():
            raise GiveUp("cannot be")

    topics.put(topic, "a", "poison", "c")
    with running(consumer(topics.address, topic, applying(engine, before=give_up))):
        wait_until(lambda: "is blocked by" in caplog.text)
        assert applied(engine) == ["a"]
        is_mended.set()
        wait_until(lambda: len(applied(engine)) >= 3)
    assert applied(engine) == ["a", "poison", "c"]


@pytest.mark.parametrize("fault", [Fault("again"), asyncio.CancelledError()], ids=repr)
def test_failing_too_often_in_status_table_mode(
    topics: Topics, postgres: Database, fault: BaseException
) -> None:
    """The inbox counts the failures of messages that it has claimed. The consumer counts those of a message
    that the inbox cannot claim, because its key cannot be determined. Both become dead letters, and block no
    other message."""
    topic, letters, taken = topics.new(), list[tuple[int, str]](), threading.Event()
    inbox = StatusInbox("orders", store=SqlStore(postgres.engine()), lease=60, backoff=QUICK, max_attempts=4)

    @inbox.handler(key=lambda delivery: json.loads(delivery.payload)["order"])
    def handle(claim: Claim, _: Delivery) -> None:
        if claim.key == "poison":
            raise fault
        taken.set()

    def put_away(delivery: Delivery, decision: Decision) -> None:
        letters.append((delivery.attempt, decision.reason))

    topics.put(topic, *('{"order": "poison"}', "{}", '{"order": "a"}'))
    with running(consumer(topics.address, topic, handle, max_attempts=2, dead_letter=put_away)):
        wait_until(taken.is_set)
    cancelled = "AwaitedCancelled: the handler waited for something that was cancelled"
    assert letters == [
        (4, f"dead: {'Fault: again' if isinstance(fault, Fault) else cancelled}"),
        (2, "dead: GiveUp: it has failed 2 times: KeyError: 'order'"),
    ]
