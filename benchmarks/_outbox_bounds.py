"""How far one tenant holds up the others when it fills what the relay bounds: messages that are remembered,
sends at the same time, and topics.

The latency of a healthy topic that was sent before is measured from right before its transaction until its
publisher gets the message. Beside it there is nothing, or one of the tenants below.
"""

import threading
import time
from collections.abc import Sequence
from statistics import median

from sqlalchemy import Engine, text

from outbox import Envelope, Message, Outbox, Outcome, Relay, Unavailable, pause
from outbox.schema import BUCKETS

from ._measure import Grid, Report, figure, in_turn
from ._outbox_healthy import HealthyTopic
from ._outbox_lab import OutboxLab, running, settle
from ._outbox_rows import ACCEPTED

_EVERYWHERE = 10 * BUCKETS
"""Messages that are very likely in every bucket."""
_LIMIT = 120
_ALONE = "alone"
_MANY = {
    "a topic that is down": ("'bad'", "n", "'pending'"),
    "a topic that hangs": ("'hangs'", "n", "'pending'"),
    "a paused topic": ("'paused'", "n", "'pending'"),
    "one held key": ("'healthy'", "0", "CASE n WHEN 1 THEN 'held' ELSE 'pending' END"),
    "held keys": ("'healthy'", "n", "'held'"),
    "topics that are down": ("'bad' || n % 200", "n", "'pending'"),
    "topics that hang": ("'hangs' || n % 20000", "n", "'pending'"),
}
"""Tenants with many messages: topic, key and state of message n."""
_VARIANTS = (_ALONE, *_MANY)
_FILL = (
    "INSERT INTO outbox_message (bucket, id, topic, key, payload, content_type, state, error)"
    " SELECT {key} % {buckets}, n::text, {topic}, 'k' || {key}, 'x', 'x', {state}, 'no'"
    " FROM generate_series(1, {many}) AS n"
)


def bounds(lab: OutboxLab) -> Report:
    """The latency of a healthy topic beside tenants that fill a bound, and the cost of many topics."""
    rounds = lab.rounds(3, 1)
    tick = lab.lab.task("latency beside full bounds", rounds * (len(_VARIANTS) + 1))
    found: dict[str, list[float]] = {name: [] for name in _VARIANTS}
    growth: list[float] = []
    many = lab.lab.sized(250_000, 20_000, 500)
    for number in range(rounds):
        for variant in in_turn(_VARIANTS, number):
            with lab.outbox(f"bounds_{number}_{_VARIANTS.index(variant)}") as engine:
                found[variant].append(_latency(engine, variant, many, lab))
            tick()
        few = lab.lab.sized(1_000, 100, 10)
        few_seconds, many_seconds = (
            _relayed(lab, f"topics_{number}_{each}", each) for each in (few, 10 * few)
        )
        growth.append(many_seconds / few_seconds)
        tick()
    figures = [
        figure(
            f"median latency beside {variant} / alone",
            [one / alone for one, alone in zip(found[variant], found[_ALONE], strict=True)],
            at_most=1.5,
        )
        for variant in _MANY
    ]
    figures.append(figure("time for ten times as many topics", growth, at_most=12))
    rows = [[name, f"{median(each):.1f}"] for name, each in found.items()]
    title = f"Milliseconds from publish to send, healthy topic, beside {many:,} messages"
    return Report(figures, [Grid(title, ["", "median"], rows)])


def _latency(engine: Engine, variant: str, many: int, lab: OutboxLab) -> float:
    """The median in milliseconds."""
    is_over = threading.Event()

    def answer(batch: Sequence[Envelope]) -> list[Outcome]:
        if batch[0].topic.startswith("hangs"):
            is_over.wait()
        return [Unavailable("there is no leader")] * len(batch)

    topic = HealthyTopic(_LIMIT, answer)
    if variant == "a paused topic":
        pause(engine, "paused")
    with running(Relay(engine, topic)):
        try:
            topic.publish(engine)
            topic.wait(1)
            if variant in _MANY:
                _fill(engine, variant, many)
            # Once messages of all buckets have come, the relay has read what was there.
            for _ in range(_EVERYWHERE):
                topic.publish(engine)
            topic.wait(_EVERYWHERE)
            return median(topic.measure(engine, lab))
        finally:
            is_over.set()


def _fill(engine: Engine, variant: str, many: int) -> None:
    topic, key, state = _MANY[variant]
    with engine.begin() as connection:
        given = {"topic": topic, "key": key, "state": state, "buckets": BUCKETS, "many": many}
        connection.execute(text(_FILL.format(**given)))


def _relayed(lab: OutboxLab, name: str, topics: int) -> float:
    """Seconds to relay one message of each topic."""
    with lab.outbox(name) as engine:
        with engine.begin() as connection:
            drafts = [Message(f"healthy {number}", b"x", f"k{number}") for number in range(topics)]
            Outbox().publish_many(connection, drafts)
        settle(engine)
        begun = time.perf_counter()
        Relay(engine, _Accepting()).run_once()
        return time.perf_counter() - begun


class _Accepting:
    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        return [ACCEPTED] * len(batch)
