"""The cost of the outbox and its relay, as ratios of variants that ran side by side.

    python -m benchmarks.outbox [--quick | --tiny] [--only NAME] [--outage] [--png docs/benchmarks-outbox.png]
                                [--rounds N] [--relayed N] [--beside N] [--seconds S]
                                [--pending N] [--outage-pending N] [--outage-seconds S]

Runs on a private PostgreSQL with fsync on. Three libraries that do similar work are measured beside it; the
dependency group `benchmarks-outbox` has them. The exit code is 1 if a benchmark fails or a target is missed.
"""

import argparse
import dataclasses
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from examples.embedded_postgres import EmbeddedPostgres

from . import (
    _command,
    _outbox_bounds,
    _outbox_brokers,
    _outbox_growth,
    _outbox_idle,
    _outbox_lanes,
    _outbox_latency,
    _outbox_outage,
    _outbox_publish,
    _outbox_relay,
    _outbox_series,
    _outbox_share,
    _outbox_start,
)
from ._lab import SETTINGS, Lab
from ._outbox_lab import SIZES, OutboxLab, Sizes

BENCHMARKS: _command.Benchmarks[OutboxLab] = {
    "bare": _outbox_relay.bare,
    "peers": _outbox_relay.peers,
    "latency": _outbox_latency.latency,
    "publish": _outbox_publish.publish,
    "publish-cpu": _outbox_publish.cpu,
    "many": _outbox_publish.many,
    "growth": _outbox_growth.growth,
    "start": _outbox_start.start,
    "lanes": _outbox_lanes.lanes,
    "bounds": _outbox_bounds.bounds,
    "series": _outbox_series.series,
    "share": _outbox_share.share,
    "idle": _outbox_idle.idle,
    "kafka": _outbox_brokers.kafka,
    "rabbitmq": _outbox_brokers.rabbitmq,
    "outage": _outbox_outage.outage,
}
_BESIDE = ("sqlalchemy", "psycopg", "asyncpg", "uvloop", "pgqueuer", "procrastinate", "faststream-outbox")
# There are more rows than in the other benchmarks; no checkpoint should interrupt a measurement.
_SETTINGS = SETTINGS | {"max_wal_size": "16GB"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen benchmarks, print, draw and write the results; return 1 if one fails or misses a
    target."""
    options = _options(arguments)
    gc.collect()
    gc.freeze()  # as `inbox-outbox outbox relay` does; in this process more is loaded than in a relay's
    shown = _command.progress()
    with EmbeddedPostgres(_SETTINGS) as server:
        lab = OutboxLab(Lab(server, shown, options.size, often=(25, 9, 1)), _sizes(options))
        subtitle = f"PostgreSQL {server.version}, fsync on, medians of rounds that took turns"
        shown.console.print(", ".join(_versions()), highlight=False)
        return _command.measure(options, BENCHMARKS, lab, shown, "Cost of the outbox", subtitle)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _command.parser("outbox", __doc__, BENCHMARKS)
    parser.add_argument("--outage", action="store_true", help="also the broker that is away for long")
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
        full, quick = (getattr(SIZES[size], name.replace("-", "_")) for size in ("full", "quick"))
        known = "" if full is None else f" ({full:,}; --quick: {quick:,})"
        parser.add_argument(f"--{name}", type=kind, help=what + known)
    options = parser.parse_args(arguments)
    options.only = options.only or [name for name in BENCHMARKS if name != "outage" or options.outage]
    return options


def _sizes(options: argparse.Namespace) -> Sizes:
    """The sizes given on the command line, with the usual ones for the rest."""
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Sizes)}
    wanted = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(SIZES[options.size], **wanted)


def _versions() -> Iterator[str]:
    """What is installed of the libraries that count here."""
    for name in _BESIDE:
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


if __name__ == "__main__":
    sys.exit(main())
