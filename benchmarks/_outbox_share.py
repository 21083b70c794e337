"""How much faster two relays are than one where the publisher is the limit, each in a process of its own."""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import URL, Engine, create_engine, exists, func, select

from outbox import Envelope, Message, Outbox, Outcome, Relay
from outbox.schema import BUCKETS, tables

from ._measure import Report, figure, in_turn, ratios
from ._outbox_lab import OutboxLab, settle
from ._outbox_rows import ACCEPTED, PAYLOAD, TOPIC

_BATCH, _SECONDS = 100, 0.02
"""Messages in a batch, and how long the publisher takes for each."""
_START = 60.0
_CONTEXT = multiprocessing.get_context("spawn")
_VARIANTS = {"1 relay": 1, "2 relays": 2}


class _Slow:
    """A publisher that takes the same time for each batch, and leaves the processor to others meanwhile."""

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        time.sleep(_SECONDS)
        return [ACCEPTED] * len(batch)


def share(lab: OutboxLab) -> Report:
    """The rate of two relays against one, with one topic and a key for each message."""
    messages, rounds = lab.sizes.beside, lab.rounds(7, 1)
    tick = lab.lab.task("two relays", rounds * len(_VARIANTS))
    rates: dict[str, list[float]] = {name: [] for name in _VARIANTS}
    with lab.outbox("share") as engine:
        for number in range(rounds):
            for name in in_turn(_VARIANTS, number):
                with _relays(engine, _VARIANTS[name]):
                    rates[name].append(messages / _drained(engine, messages))
                tick()
    found = ratios(rates, "2 relays", "1 relay")
    return Report([figure("messages/s of 2 relays / 1, slow publisher", found, at_least=1.6)])


@contextmanager
def _relays(engine: Engine, number: int) -> Iterator[None]:
    """Relays that share the buckets."""
    relays = [_CONTEXT.Process(target=_relay, args=(engine.url,)) for _ in range(number)]
    for relay in relays:
        relay.start()
    try:
        _wait(engine, number)
        yield
    finally:
        for relay in relays:
            relay.terminate()
        for relay in relays:
            relay.join(_START)
            relay.kill()


def _wait(engine: Engine, relays: int) -> None:
    """Wait until each relay has its share of the buckets."""
    owner = tables().bucket.c.epoch
    shares = select(func.count()).where(owner.is_not(None)).group_by(owner)
    end = time.monotonic() + _START
    while time.monotonic() < end:
        with engine.begin() as connection:
            if list(connection.execute(shares).scalars()) == [BUCKETS // relays] * relays:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{relays} relays have not shared the buckets")


def _drained(engine: Engine, messages: int) -> float:
    """Seconds until that many messages have left, from the commit that published them."""
    settle(engine)
    waiting = select(exists(tables().message.select()))
    with engine.begin() as connection:
        many = [Message(TOPIC, PAYLOAD, f"order-{number}") for number in range(messages)]
        Outbox().publish_many(connection, many)
    begun = time.perf_counter()
    while True:
        with engine.begin() as connection:
            if not connection.execute(waiting).scalar_one():
                return time.perf_counter() - begun
        time.sleep(0.02)


def _relay(url: URL) -> None:
    Relay(create_engine(url), _Slow(), batch=_BATCH).run()
