"""A relay with many busy lanes, and a producer for it. Each function is the main function of a process."""

import random
import time
from collections.abc import Iterator, Sequence
from itertools import count
from multiprocessing.connection import Connection as Pipe

from sqlalchemy import URL, create_engine
from sqlalchemy.exc import DBAPIError

from outbox import Accepted, Envelope, Outcome, Unavailable

from .crashes import Post, open_engine, produce
from .worker import run_relay

TOPICS = [f"topic-{number}" for number in range(100)]
_SENDS = 40
"""How many sends of a relay may write at the same time."""


class Slow(Post):
    """A publisher that keeps the order of each key, and accepts a few messages of a batch at a time."""

    ordered = True

    def send(self, batch: Sequence[Envelope]) -> Iterator[tuple[int, Outcome]]:  # type: ignore[override]
        """Accept a batch, up to a message whose outcome may be unknown."""
        begin = 0
        while begin < len(batch):
            time.sleep(random.uniform(0, 1.5))
            end = begin + random.randint(1, 10)
            outcomes = super().send(batch[begin:end])
            yield from enumerate(outcomes, begin)
            if not isinstance(outcomes[0], Accepted):
                break
            begin = end
        yield from ((place, Unavailable("not sent")) for place in range(end, len(batch)))


def slow_relay(pipe: Pipe, url: URL, name: str, lease: float) -> None:
    """Relay slowly into the table of arrivals, until SIGTERM."""
    engine = create_engine(url, pool_size=_SENDS)
    run_relay(pipe, url, Slow(engine, name), name, lease)


def spreading_producer(pipe: Pipe, url: URL, name: str, seed: int) -> None:
    """Publish for ever: a few messages of several keys, each time to other topics."""
    chance = random.Random(seed)
    engine = open_engine(url)
    for number in count(step=10):
        try:
            with engine.connect() as connection:
                for key in chance.sample(range(40), k=6):
                    numbers = range(number, number + chance.randint(1, 3))
                    produce(connection, numbers, [f"{name}-{key}"], chance.choice(TOPICS))
                if chance.random() < 0.75:
                    connection.commit()
        except DBAPIError:
            time.sleep(0.1)
        time.sleep(chance.uniform(0, 0.5))
