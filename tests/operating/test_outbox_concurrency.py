"""Operators' decisions at the same time as running relays and other operators."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from itertools import product

from sqlalchemy import Engine, select, update

import outbox
from outbox import MessageState, Outbox, Refused
from outbox._publishing.buckets import newest
from outbox.errors import MessageNotFound, WrongState
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import (
    TABLES,
    Recorder,
    count,
    publish,
    relay,
    waiting,
)
from tests.support.together import in_between

OPERATORS = 4


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


@spread("after_dead, decide", product(["continue", "hold"], [outbox.retry, outbox.drop]), elsewhere=4)
def test_of_several_operators_one_wins(
    engine: Engine, after_dead: str, decide: Callable[..., MessageState]
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


def die(engine: Engine, key: str, topic: str = "orders") -> None:
    """Publish a message with an id of its producer's, and let it die."""
    with engine.begin() as connection:
        Outbox().publish(connection, topic, b"", key, id="order-1")
    relay(engine, Recorder(lambda _: Refused("no")))


def die_again(engine: Engine, key: str, topic: str = "orders") -> None:
    """Another operator drops the dead letter; its id is used again, and that message dies, too."""
    outbox.drop(engine, "order-1")
    die(engine, key, topic)


@on("postgresql", "mariadb")
def test_a_purge_of_dead_letters_keeps_those_that_have_died_since(migrated: Database) -> None:
    """A letter that died just now is kept, even if an old one had its id when the purge looked."""
    purging, engine = migrated.engine(), migrated.engine()
    die(engine, "a")
    with engine.begin() as connection:
        connection.execute(update(TABLES.dead).values(dead_at=datetime(2026, 1, 1, tzinfo=UTC)))
    in_between(purging, "SELECT outbox_dead.id", partial(die_again, engine, "a"))
    assert outbox.purge_dead(purging, 3_600) == 0
    assert count(engine, TABLES.dead) == 1


@on("postgresql", "mariadb")
def test_a_retry_of_all_leaves_those_that_have_died_since(migrated: Database) -> None:
    """A letter that died after the call, or has another topic, is not retried, even if one that was to be
    retried had its id."""
    retrying, engine = migrated.engine(), migrated.engine()
    die(engine, "a")
    in_between(retrying, "SELECT outbox_dead.topic", partial(die_again, engine, "a", "mail"))
    done = outbox.retry_all(retrying, "dead", topic="orders")
    assert (done, done.changed) == (0, 1)
    assert count(engine, TABLES.dead) == 1


@on("postgresql", "mariadb")
def test_a_retry_finds_the_bucket_of_the_key_that_a_letter_has_now(migrated: Database) -> None:
    """A letter goes to the bucket of its key, even if another one had its id when the operator looked."""
    retrying, engine = migrated.engine(), migrated.engine()
    die(engine, "a")
    in_between(retrying, "SELECT outbox_dead.id", partial(die_again, engine, "b"))
    assert outbox.retry(retrying, "order-1") is MessageState.DEAD
    with engine.connect() as connection:
        bucket_of = newest(connection, TABLES).bucket_of
        assert bucket_of("a") != bucket_of("b")
        assert connection.execute(select(TABLES.message.c.bucket)).scalars().all() == [bucket_of("b")]
