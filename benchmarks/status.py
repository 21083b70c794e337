"""The cost of status-table mode, as ratios of variants that ran side by side.

    python -m benchmarks.status [--quick | --tiny] [--only NAME] [--png docs/benchmarks-status.png]

Runs on a private PostgreSQL with fsync on, and a private Redis. Two libraries that do the same work are
measured beside it; the dependency group `benchmarks` has them. The exit code is 1 if a benchmark fails or a
target is missed.
"""

import sys
from collections.abc import Sequence

from . import _claims, _claims_beside, _command
from ._lab import Lab

BENCHMARKS: _command.Benchmarks[Lab] = {
    "rate": _claims.rate,
    "writes": _claims.writes,
    "powertools": _claims_beside.beside_powertools,
    "dbos": _claims_beside.beside_dbos,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen benchmarks, print and draw the results; return 1 if one fails or misses a target."""
    return _command.run("status", __doc__, "Cost of status-table mode", BENCHMARKS, arguments)


if __name__ == "__main__":
    sys.exit(main())
