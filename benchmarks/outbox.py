"""The cost of the outbox and its relay, as ratios of variants that ran side by side.

    python -m benchmarks.outbox [--quick] [--only NAME] [--outage] [--png docs/benchmarks-outbox.png]
                                [--json FILE] [--rounds N] [--relayed N] [--beside N] [--seconds S]
                                [--pending N] [--outage-pending N] [--outage-seconds S]

Runs on a private PostgreSQL with fsync on. Three libraries that do similar work are measured beside it; the
dependency group `benchmarks-outbox` has them. The exit code is 1 if a target is missed.
"""

import argparse
import dataclasses
import gc
import json
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.embedded_postgres import EmbeddedPostgres

from . import (
    _chart,
    _outbox_brokers,
    _outbox_growth,
    _outbox_idle,
    _outbox_lanes,
    _outbox_latency,
    _outbox_outage,
    _outbox_publish,
    _outbox_relay,
    _outbox_share,
    _outbox_start,
    _print,
)
from ._lab import SETTINGS, Lab
from ._measure import Report
from ._outbox_lab import FULL, QUICK, OutboxLab, Sizes

BENCHMARKS: dict[str, Callable[[OutboxLab], Report]] = {
    "bare": _outbox_relay.bare,
    "peers": _outbox_relay.peers,
    "latency": _outbox_latency.latency,
    "publish": _outbox_publish.publish,
    "many": _outbox_publish.many,
    "growth": _outbox_growth.growth,
    "start": _outbox_start.start,
    "lanes": _outbox_lanes.lanes,
    "share": _outbox_share.share,
    "idle": _outbox_idle.idle,
    "brokers": _outbox_brokers.brokers,
    "outage": _outbox_outage.outage,
}
_UNASKED = [name for name in BENCHMARKS if name != "outage"]
_BESIDE = ("sqlalchemy", "psycopg", "asyncpg", "uvloop", "pgqueuer", "procrastinate", "faststream-outbox")
# There are more rows than in the other benchmarks; no checkpoint should interrupt a measurement.
_SETTINGS = SETTINGS | {"max_wal_size": "16GB"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen benchmarks, print, draw and save the results; return 1 if a target is missed."""
    options = _options(arguments)
    sizes = _sizes(options)
    console = Console()
    names = options.only or (_UNASKED + ["outage"] * options.outage)
    gc.collect()
    gc.freeze()  # as `inbox-outbox outbox relay` does; in this process more is loaded than in a relay's
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with EmbeddedPostgres(_SETTINGS) as server:
        with Progress(*columns, console=console, auto_refresh=False) as progress:
            lab = OutboxLab(Lab(server, progress, options.quick), sizes)
            reports = {name: BENCHMARKS[name](lab) for name in names}
        versions = {"postgresql": server.version} | {name: version(name) for name in _BESIDE}
    subtitle = f"PostgreSQL {server.version}, fsync on, medians of rounds that took turns"
    _print.show(console, [*reports.values()], subtitle)
    console.print(", ".join(f"{name} {number}" for name, number in versions.items()))
    figures = [figure for report in reports.values() for figure in report.figures]
    if options.png is not None:
        _chart.draw(figures, options.png, subtitle, title="Cost of the outbox")
    if options.json is not None:
        found = {name: dataclasses.asdict(report) for name, report in reports.items()}
        written = {"versions": versions, "sizes": dataclasses.asdict(sizes), "reports": found}
        options.json.write_text(json.dumps(written, indent=2) + "\n")
    return int(any(figure.holds is False for figure in figures))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    description = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outbox", description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and small sizes")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="one benchmark; may repeat")
    parser.add_argument("--outage", action="store_true", help="also the broker that is away for long")
    parser.add_argument("--png", type=Path, help="where to draw the ratios")
    parser.add_argument("--json", type=Path, help="where to write all that was found")
    described = {
        "rounds": (int, "how often variants take turns, where a turn is long"),
        "relayed": (int, "messages in a turn of the relay and the bare loop"),
        "beside": (int, "messages in a turn of each library"),
        "seconds": (float, "how long messages are produced in a turn of the latency"),
        "pending": (int, "messages that wait in the large outbox"),
        "outage-pending": (int, "messages that wait when the broker goes away"),
        "outage-seconds": (float, "how long it is away"),
    }
    for name, (kind, what) in described.items():
        full = getattr(FULL, _field(name))
        quick = getattr(QUICK, _field(name))
        known = "" if full is None else f" ({full:,}; --quick: {quick:,})"
        parser.add_argument(f"--{name}", type=kind, help=what + known)
    return parser.parse_args(arguments)


def _sizes(options: argparse.Namespace) -> Sizes:
    """The sizes given on the command line, with the usual ones for the rest."""
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Sizes)}
    wanted = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(QUICK if options.quick else FULL, **wanted)


def _field(name: str) -> str:
    """The field of `Sizes` that an option sets."""
    return name.replace("-", "_")


if __name__ == "__main__":
    sys.exit(main())
