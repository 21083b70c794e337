"""How far one topic, or one key, holds up the others.

The latency of a healthy topic is measured from right before its transaction until its publisher gets the
message, while another topic has no messages, is slow, or is rejected.
"""

import time
from collections.abc import Sequence
from statistics import median, quantiles

from sqlalchemy import Engine

from outbox import Envelope, Message, Outbox, Outcome, Relay, Unavailable

from ._measure import Grid, Report, figure, in_turn
from ._outbox_healthy import HealthyTopic
from ._outbox_lab import OutboxLab, running
from ._outbox_rows import ACCEPTED

_OTHERS = 200
"""Messages that wait for the other topic."""
_SLOW = 3.0
"""Seconds of a slow send."""
_LIMIT = 60
_VARIANTS = ("alone", "beside a slow topic", "beside a rejected topic")


def lanes(lab: OutboxLab) -> Report:
    """The latency of a healthy topic beside others, against the undisturbed one."""
    rounds = lab.rounds(5, 1)
    tick = lab.lab.task("latency beside other topics", rounds * len(_VARIANTS))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _VARIANTS}
    for number in range(rounds):
        for variant in in_turn(_VARIANTS, number):
            with lab.outbox(f"lanes_{number}_{_VARIANTS.index(variant)}") as engine:
                found[variant].append(_latency(engine, variant, lab))
            tick()
    alone = found["alone"]
    figures = []
    for variant in _VARIANTS[1:]:
        pairs = list(zip(found[variant], alone, strict=True))
        figures += [
            figure(f"median latency {variant} / alone", [a[0] / b[0] for a, b in pairs], at_most=1.5),
            figure(f"99th percentile {variant} / alone", [a[1] / b[1] for a, b in pairs], at_most=3),
        ]
    rows = [
        [name, f"{median(each[0] for each in turns):.1f}", f"{median(each[1] for each in turns):.1f}"]
        for name, turns in found.items()
    ]
    columns = ["", "median", "99th percentile"]
    return Report(figures, [Grid("Milliseconds from publish to send, healthy topic", columns, rows)])


def _latency(engine: Engine, variant: str, lab: OutboxLab) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds."""
    if variant != "alone":
        with engine.begin() as connection:
            drafts = [Message("other", b"x", f"other-{number}") for number in range(_OTHERS)]
            Outbox().publish_many(connection, drafts)

    def answer(batch: Sequence[Envelope]) -> list[Outcome]:
        if variant != "beside a slow topic":
            return [Unavailable("there is no leader")] * len(batch)
        time.sleep(lab.lab.pause(_SLOW))
        return [ACCEPTED] * len(batch)

    topic = HealthyTopic(_LIMIT, answer)
    with running(Relay(engine, topic)):
        milliseconds = topic.measure(engine, lab)
    return median(milliseconds), quantiles(milliseconds, n=100)[98]
