"""Operators' decisions at the same time as running relays and other operators."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import Engine

import outbox
from outbox import MessageState, Refused, Relay, Unavailable, Unknown
from outbox.errors import MessageNotFound, WrongState
from tests.support.database import Database
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    count,
    let_backoffs_end,
    publish,
    relay,
    waiting,
)

OPERATORS = 4


@pytest.fixture
def engine(migrated: Database) -> Engine:
    return migrated.engine()


def at_the_same_time(act: Callable[[], object]) -> list[object]:
    """Call a function in several threads at the same time, and return the results or the types of the
    errors."""
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
    """If several operators retry or drop a dead or held message, one succeeds; the others get an error that
    says that the message is gone, or in another state."""
    for _ in range(3):
        (made,) = publish(engine, "a1")
        relay(engine, Recorder(lambda _: Refused("no")), after_dead=after_dead)
        answers = at_the_same_time(lambda: decide(engine, made))  # noqa: B023
        assert sum(isinstance(answer, MessageState) for answer in answers) == 1, answers
        assert len(waiting(engine)) == (1 if decide is outbox.retry else 0)
        assert relay(engine, Recorder()) == (1 if decide is outbox.retry else 0)
        assert count(engine, TABLES.dead) == 0


def test_several_operators_share_all_dead_letters(engine: Engine) -> None:
    """Each dead letter is sent again once, however many operators retry all of them."""
    made = publish(engine, *(f"-{number}" for number in range(200)))
    relay(engine, Recorder(lambda _: Refused("no")))
    answers = at_the_same_time(lambda: outbox.retry_all(engine, "dead"))
    assert sum(answer for answer in answers if isinstance(answer, int)) == 200
    publisher = Recorder()
    assert relay(engine, publisher) == 200
    assert sorted(message.id for message in publisher.sent) == sorted(made)


@pytest.mark.quick("postgresql")
def test_beside_running_relays_nothing_gets_lost(engine: Engine) -> None:
    """While two relays run against a broker that refuses, fails and does not answer, an operator retries,
    drops and pauses at random: in the end every message was accepted or dropped."""
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
    """Make one decision about a message, or about all."""
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
