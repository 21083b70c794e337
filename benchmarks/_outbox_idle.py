"""The transactions of relays that have little to do, as the server counts them.

The relays run in threads of one process and the producer in another, so that notifications wake the relays.
"""

import multiprocessing
import threading
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from statistics import median

from sqlalchemy import URL, Engine, create_engine, text

from outbox import Outbox, Relay

from ._lab import run_alone
from ._measure import Grid, Report, figure, in_turn
from ._outbox_lab import OutboxLab
from ._outbox_peer import pace, stamp
from ._outbox_rows import TOPIC, Counting

_KEYS = 1_000
_BALANCED, _START = 15.0, 60
"""Seconds until the server has counted what the start of relays took, and for a process to start."""
_COUNTED = text("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class _Variant:
    relays: int
    poll: float
    rate: int
    """Messages a second."""
    turn: int = 1
    """How many times as long as usual a turn takes."""


_VARIANTS = {
    "1 relay, 10 messages/s": _Variant(1, 1, 10),
    "20 relays, 10 messages/s": _Variant(20, 1, 10),
    "1 idle relay, poll=1": _Variant(1, 1, 0),
    "1 idle relay, poll=60": _Variant(1, 60, 0, turn=4),
    "20 idle relays, poll=1": _Variant(20, 1, 0),
}


def idle(lab: OutboxLab) -> Report:
    """Transactions a second: of one relay and of twenty, with few messages and with none."""
    with lab.lab.database("switch") as engine:  # or transactions of autovacuum would count
        run_alone(engine, "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")
        try:
            return _measured(lab)
        finally:
            run_alone(engine, "ALTER SYSTEM RESET autovacuum", "SELECT pg_reload_conf()")


def _measured(lab: OutboxLab) -> Report:
    rounds = lab.rounds(3, 1)
    tick = lab.lab.task("transactions of relays", rounds * len(_VARIANTS))
    found: dict[str, list[float]] = {name: [] for name in _VARIANTS}
    for number in range(rounds):
        for name in in_turn(_VARIANTS, number):
            with lab.outbox(f"idle_{number}_{len(found[name])}_{[*_VARIANTS].index(name)}") as engine:
                found[name].append(_transactions(engine, _VARIANTS[name], lab))
            tick()
    one, twenty, _, seldom, _ = found.values()
    figures = [
        figure(
            "transactions of 20 relays at 10 messages/s, against those of 1",
            [many / few for many, few in zip(twenty, one, strict=True)],
            at_most=2,
        ),
        figure(
            "transactions of an idle relay with poll=60 in 10 s", [10 * each for each in seldom], at_most=1
        ),
    ]
    rows = [
        [name, f"{median(each):.2f}", f"{median(each) / variant.rate:.1f}" if variant.rate else ""]
        for (name, variant), each in zip(_VARIANTS.items(), found.values(), strict=True)
    ]
    return Report(
        figures, [Grid("Transactions, of producer and relays", ["", "a second", "a message"], rows)]
    )


def _transactions(engine: Engine, variant: _Variant, lab: OutboxLab) -> float:
    """Transactions a second, once the relays have settled down."""
    ready, over = _CONTEXT.Event(), _CONTEXT.Event()
    relays = _CONTEXT.Process(target=_relay, args=(engine.url, variant, ready, over))
    relays.start()
    try:
        if not ready.wait(_START):
            raise RuntimeError("the relays did not start")
        time.sleep(lab.lab.pause(_BALANCED))
        _produce(engine, variant.rate, lab.lab.pause(1.0))
        before, begun = _counted(engine), time.monotonic()
        _produce(engine, variant.rate, lab.sizes.seconds * variant.turn)
        return (_counted(engine) - before) / (time.monotonic() - begun)
    finally:
        over.set()
        relays.join(_START)
        relays.kill()


def _counted(engine: Engine) -> int:
    with engine.begin() as connection:
        return int(connection.execute(_COUNTED).scalar_one())


def _produce(engine: Engine, rate: int, seconds: float) -> None:
    """Publish one message in each transaction, or just wait."""
    number = 0

    def publish() -> None:
        nonlocal number
        number += 1
        with engine.begin() as connection:
            Outbox().publish(connection, TOPIC, stamp(), f"order-{number % _KEYS}")

    if rate:
        pace(rate, round(rate * seconds), publish)
    else:
        time.sleep(seconds)


def _relay(url: URL, variant: _Variant, ready: Event, over: Event) -> None:
    engines = [create_engine(url) for _ in range(variant.relays)]
    relays = [Relay(engine, Counting(), poll=variant.poll) for engine in engines]
    threads = [threading.Thread(target=relay.run) for relay in relays]
    for thread in threads:
        thread.start()
    ready.set()
    over.wait()
    for relay in relays:
        relay.stop()
    for thread in threads:
        thread.join()
