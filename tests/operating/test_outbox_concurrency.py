"""What operators decide beside running relays and other operators, and how many buckets there are."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import Engine, event, insert

import outbox
from outbox import Envelope, MessageState, Outbox, Outcome, Refused, Relay, Unavailable, Unknown
from outbox._publishing import buckets
from outbox._publishing.buckets import bucket_of
from outbox.errors import InvalidOption, MessageNotFound, RelayRunning, WrongBucketCount, WrongState
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    count,
    dead,
    let_backoffs_end,
    let_leases_end,
    publish,
    relay,
    waiting,
)

OPERATORS = 4


@pytest.fixture
def engine(migrated: Database) -> Engine:
    return migrated.engine()


def at_once(act: Callable[[], object]) -> list[object]:
    """Do something in several threads that begin together; what it returned, or how it was refused."""
    barrier = threading.Barrier(OPERATORS)

    def one(_: int) -> object:
        barrier.wait()
        try:
            return act()
        except (MessageNotFound, WrongState) as error:
            return type(error)

    with ThreadPoolExecutor(OPERATORS) as pool:
        return list(pool.map(one, range(OPERATORS)))


@pytest.mark.parametrize("decide", [outbox.retry, outbox.drop])
@pytest.mark.parametrize("after_dead", ["continue", "hold"])
def test_of_several_operators_one_wins(
    engine: Engine, decide: Callable[..., MessageState], after_dead: str
) -> None:
    """A dead or held message is sent again, or dropped, by one of those that want it; the others are told
    that it is not there any more, or not so."""
    for _ in range(3):
        (made,) = publish(engine, "a1")
        relay(engine, Recorder(lambda _: Refused("no")), after_dead=after_dead)
        answers = at_once(lambda: decide(engine, made))  # noqa: B023
        assert sum(isinstance(answer, MessageState) for answer in answers) == 1, answers
        assert len(waiting(engine)) == (1 if decide is outbox.retry else 0)
        assert relay(engine, Recorder()) == (1 if decide is outbox.retry else 0)
        assert count(engine, TABLES.dead) == 0


def test_several_operators_share_all_dead_letters(engine: Engine) -> None:
    """Each dead letter is sent again once, however many operators retry all of them."""
    made = publish(engine, *(f"-{number}" for number in range(200)))
    relay(engine, Recorder(lambda _: Refused("no")))
    answers = at_once(lambda: outbox.retry_all(engine, "dead"))
    assert sum(answer for answer in answers if isinstance(answer, int)) == 200
    publisher = Recorder()
    assert relay(engine, publisher) == 200
    assert sorted(message.id for message in publisher.sent) == sorted(made)


def test_beside_running_relays_nothing_gets_lost(engine: Engine) -> None:
    """While two relays run against a broker that refuses, fails and keeps silent, an operator retries, drops
    and pauses at random: in the end every message was either taken or dropped."""
    chance = random.Random(1)
    answers = (ACCEPTED, ACCEPTED, Refused("no"), Unavailable("full", 0.01), Unknown("silence"))
    publisher = Recorder(lambda _: chance.choice(answers))
    relays = [Relay(engine, publisher, after_dead=after, poll=0.05) for after in ("hold", "continue")]
    threads = [threading.Thread(target=each.run) for each in relays]
    for thread in threads:
        thread.start()
    published, dropped = set[str](), set[str]()
    try:
        for step in range(60):
            published.update(publish(engine, *(f"{key}{step}" for key in "abc-")))
            with suppress(MessageNotFound, WrongState):
                _decide(engine, chance, published, dropped)
    finally:
        for each in relays:
            each.stop()
        for thread in threads:
            thread.join()
    for topic in ("*", "orders"):
        outbox.resume(engine, topic)
    for state in ("dead", "held"):
        outbox.retry_all(engine, state)
    let_backoffs_end(engine)
    publisher.answer = lambda _: ACCEPTED
    relay(engine, publisher)
    assert count(engine, TABLES.message) == count(engine, TABLES.dead) == 0
    assert {message.id for message in publisher.accepted} | dropped == published


def _decide(engine: Engine, chance: random.Random, published: set[str], dropped: set[str]) -> None:
    """One decision about some message, or about all."""
    some = chance.choice(outbox.peek(engine, 50) or [None])
    act = chance.randrange(6)
    if act == 0 and some is not None:
        outbox.drop(engine, some.id)
        dropped.add(some.id)
    elif act == 1 and some is not None:
        outbox.retry(engine, some.id)
    elif act == 2:
        outbox.retry_all(engine, chance.choice(["dead", "held", "waiting", "unknown"]))
    elif act == 3:
        outbox.pause(engine, chance.choice(["*", "orders"]))
    else:
        outbox.resume(engine)
        outbox.resume(engine, "orders")


def test_more_buckets(engine: Engine) -> None:
    """With more buckets messages leave as before; a dead letter from before goes to its key's new bucket."""
    publish(engine, "a1")
    relay(engine, Recorder({"a1": [Refused("no")]}))
    outbox.set_bucket_count(engine, 100)
    outbox.set_bucket_count(engine, 100)
    assert outbox.status(engine).buckets == 100
    publish(engine, "a2")
    outbox.retry(engine, dead(engine)["a1"].id)
    assert {row.bucket for row in waiting(engine).values()} == {bucket_of("a", 100)}
    assert bucket_of("a", 100) != bucket_of("a", 64)
    publisher = Recorder()
    assert relay(engine, publisher, buckets=100) == 2
    assert publisher.names == ["a2", "a1"]
    with pytest.raises(WrongBucketCount, match="buckets=64: the database has 100"):
        relay(engine, publisher, buckets=64)


def test_when_there_may_not_be_more_buckets(engine: Engine) -> None:
    """Not fewer than there are, not while messages wait or are delayed, not while a relay is at work; a lost
    one does not matter."""
    with pytest.raises(InvalidOption, match="count=63: expected at least 64"):
        outbox.set_bucket_count(engine, 63)
    with pytest.raises(InvalidOption, match="at most 4,096"):
        outbox.set_bucket_count(engine, 4_097)
    for delay in (None, 3_600):
        (waits,) = publish(engine, "a1", delay=delay)
        with pytest.raises(WrongState, match=r"table outbox_\w+ is not empty"):
            outbox.set_bucket_count(engine, 65)
        outbox.drop(engine, waits)

    def answer(message: Envelope) -> Outcome:
        with pytest.raises(RelayRunning, match="relay one is running"):
            outbox.set_bucket_count(engine, 65)
        let_leases_end(engine)
        outbox.drop(engine, message.id)
        outbox.set_bucket_count(engine, 65)
        return ACCEPTED

    publish(engine, "b1")
    relay(engine, Recorder(answer), name="one")
    assert outbox.status(engine).buckets == 65


def test_a_program_that_was_not_stopped(
    migrated: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that publishes while another one changes the number of buckets learns of it within a minute,
    without asking for each message, and says so."""
    engine, asked = migrated.engine(), list[str]()
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: asked.append(statement))
    publish(engine, "a1", "a2")
    added = [{"bucket": number} for number in range(BUCKETS, 100)]
    with migrated.engine().begin() as connection:
        connection.execute(insert(TABLES.bucket), added)
    publish(engine, "a3")
    assert len([statement for statement in asked if "outbox_bucket" in statement]) == 1
    assert {row.bucket for row in waiting(engine).values()} == {bucket_of("a", BUCKETS)}
    monkeypatch.setattr(buckets, "BELIEVED", 0.0)
    publish(engine, "a4")
    assert waiting(engine)["a4"].bucket == bucket_of("a", 100)
    assert "the database now has 100 buckets, and had 64" in caplog.text
    with pytest.raises(WrongBucketCount, match="the database has 100"), engine.begin() as connection:
        Outbox(buckets=BUCKETS).publish(connection, "orders", b"")
