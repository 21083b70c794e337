"""What a key costs as the inbox grows: with random keys, and with keys that name their time."""

from collections.abc import Mapping
from statistics import median

from sqlalchemy import Engine

from inbox import Inbox

from ._accepts import UUIDS, single
from ._business import CONSUMER
from ._filling import fill
from ._lab import Lab, run_alone
from ._measure import Curve, Grid, Operation, Report, figure, ratios
from ._wal import alone, repeat, written

_TARGETS = {"random": 1.3, "uuid7": 1.1}
Which = tuple[str, int]
"""The name of a kind of keys, and rows."""


def growth(lab: Lab) -> Report:
    """The time of `accept` in its own transaction, and its log right after a checkpoint, against rows."""
    sizes = [10**power for power in lab.sized((4, 5, 6, 7), (4, 5, 6), (2, 3))]
    every = [(name, rows) for rows in sizes for name in UUIDS]
    messages = lab.sized(2_000, 1_000, 50)
    with lab.database("growth") as engine:
        accepts = {which: _filled(lab, engine, which) for which in every}
        log: dict[Which, float] = {}
        with alone(engine, full_pages=True), lab.step("log"):
            for which, accept in accepts.items():
                run_alone(engine, "CHECKPOINT")
                log[which] = written(engine, repeat(accept, messages)).log
        run_alone(engine, "CHECKPOINT")
        variants = {_title(which): accept for which, accept in accepts.items()}
        rates = lab.compare("accept by rows", variants, turns=2)
    few, many = sizes[0], sizes[-1]
    base = _title(("random", few))
    slower = {which: median(ratios(rates, base, _title(which))) for which in every}
    return Report(
        [
            figure(
                f"time of accept: {many:,} rows / {few:,} rows, {UUIDS[name][0]}",
                ratios(rates, _title((name, few)), _title((name, many))),
                at_most=target,
            )
            for name, target in _TARGETS.items()
        ],
        [_grid(slower, log)],
        [
            _curve("time of accept", f"against random keys in {few:,} rows", slower),
            _curve(f"log of {messages:,} accepts after a checkpoint", "bytes for a key", log),
        ],
    )


def _title(which: Which) -> str:
    name, rows = which
    return f"{UUIDS[name][0]}, {rows:,} rows"


def _filled(lab: Lab, engine: Engine, which: Which) -> Operation:
    """Takes keys in a table with so many rows; its policy is stored."""
    name, rows = which
    is_timed, place = name == "uuid7", f"{name}_{rows}"
    with lab.step(f"filling a table: {_title(which)}"):
        fill(engine, place, rows, is_timed=is_timed)
    box = Inbox(CONSUMER, schema=place, key_time="uuid7" if is_timed else None)
    accept = single(engine, box, UUIDS[name][1])
    accept(0)
    return accept


def _grid(slower: Mapping[Which, float], log: Mapping[Which, float]) -> Grid:
    rows = [[_title(which), f"{slower[which]:.2f}", f"{log[which]:,.0f}"] for which in slower]
    return Grid("accept, by rows", ["keys", "time", "bytes of log after a checkpoint"], rows)


def _curve(title: str, y: str, found: Mapping[Which, float]) -> Curve:
    lines = {
        title: [(rows, each) for (kind, rows), each in found.items() if kind == name]
        for name, (title, _) in UUIDS.items()
    }
    return Curve(title, "keys in the inbox", y, lines, by_powers=True)
