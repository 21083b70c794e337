"""Operators' decisions at the same time as running relays and other operators."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from sqlalchemy import Engine

import outbox
from outbox import MessageState, Refused
from outbox.errors import MessageNotFound, WrongState
from tests.support.on_servers import spread
from tests.support.outbox_publishers import (
    TABLES,
    Recorder,
    count,
    publish,
    relay,
    waiting,
)

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
