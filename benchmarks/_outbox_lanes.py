"""How far one topic, or one key, holds up the others.

The latency of a healthy topic is measured from right before its transaction until its publisher gets the
message, while another topic has no messages, is slow, or is rejected.
"""

import time
from collections.abc import Sequence
from itertools import count
from statistics import median, quantiles

from sqlalchemy import Engine

from outbox import Envelope, Message, Outbox, Outcome, Relay, Unavailable

from ._measure import Grid, Report, figure, in_turn
from ._outbox_lab import OutboxLab, running
from ._outbox_peer import age, pace, stamp
from ._outbox_rows import ACCEPTED

_RATE, _OTHERS = 20, 200
"""Messages a second of the healthy topic, and messages that wait for the other one."""
_SLOW = 3.0
"""Seconds of a slow send."""
_LIMIT = 60
_VARIANTS = ("alone", "beside a slow topic", "beside a rejected topic")


class _Publisher:
    """Accepts what is sent to the healthy topic; the other one is slow or rejected."""

    def __init__(self, variant: str, slow: float) -> None:
        self.ages: list[float] = []
        self._is_slow = variant == "beside a slow topic"
        self._slow = slow

    def wait(self, messages: int) -> None:
        """Wait until this many messages have come to the healthy topic."""
        end = time.monotonic() + _LIMIT
        while len(self.ages) < messages:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self.ages)} of {messages} messages came in {_LIMIT} seconds")
            time.sleep(0.01)

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        if batch[0].topic == "healthy":
            self.ages += [age(message.payload) for message in batch]
            return [ACCEPTED] * len(batch)
        if not self._is_slow:
            return [Unavailable("there is no leader")] * len(batch)
        time.sleep(self._slow)
        return [ACCEPTED] * len(batch)


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
    numbers = count()
    if variant != "alone":
        with engine.begin() as connection:
            drafts = [Message("other", b"x", f"other-{next(numbers)}") for _ in range(_OTHERS)]
            Outbox().publish_many(connection, drafts)

    def publish() -> None:
        payload = stamp()
        with engine.begin() as connection:
            Outbox().publish(connection, "healthy", payload, f"order-{next(numbers)}")

    publisher = _Publisher(variant, lab.lab.pause(_SLOW))
    with running(Relay(engine, publisher)):
        # In the first ones connections are opened, and statements prepared.
        for messages in round(lab.lab.pause(_RATE)), round(_RATE * lab.sizes.seconds):
            publisher.ages.clear()
            pace(_RATE, messages, publish)
            publisher.wait(messages)
    milliseconds = [1_000 * each for each in publisher.ages]
    return median(milliseconds), quantiles(milliseconds, n=100)[98]
