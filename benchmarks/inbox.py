"""The cost of the inbox, as ratios of variants that ran side by side.

    python -m benchmarks.inbox [--quick | --tiny] [--only NAME] [--png docs/benchmarks-inbox.png]

Runs on a private PostgreSQL with fsync on. The exit code is 1 if a benchmark fails or a target is missed.
"""

import sys
from collections.abc import Sequence

from . import _accepts, _command, _indexes, _partitions, _purging, _series, _transactions
from ._lab import Lab

BENCHMARKS: _command.Benchmarks[Lab] = {
    "transaction": _transactions.rate,
    "cpu": _transactions.cpu,
    "accept-cpu": _accepts.cpu,
    "many": _accepts.many,
    "duplicates": _accepts.duplicates,
    "size": _accepts.size,
    "purge": _purging.latency,
    "purge-bulk": _purging.bulk,
    "partitions-log": _partitions.log,
    "partitions": _partitions.latency,
    "indexes": _indexes.indexes,
    "series": _series.cpu,
    "series-read": _series.read,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen benchmarks, print and draw the results; return 1 if one fails or misses a target."""
    return _command.run("inbox", __doc__, "Cost of the inbox", BENCHMARKS, arguments)


if __name__ == "__main__":
    sys.exit(main())
