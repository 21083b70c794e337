"""The cost of status-table mode, as ratios of variants that ran side by side.

    python -m benchmarks.status [--quick] [--only NAME] [--png docs/benchmarks-status.png]

Runs on a private PostgreSQL with fsync on, and a private Redis. Two libraries that do the same work are
measured beside it; the dependency group `benchmarks` has them. The exit code is 1 if a target is missed.
"""

import sys
from collections.abc import Sequence

from . import _claims, _claims_beside, _command

BENCHMARKS: _command.Benchmarks = {
    "rate": _claims.rate,
    "writes": _claims.writes,
    "powertools": _claims_beside.beside_powertools,
    "dbos": _claims_beside.beside_dbos,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen benchmarks, print and draw the results; return 1 if a target is missed."""
    return _command.run(BENCHMARKS, "Cost of status-table mode", __doc__.splitlines()[0], arguments)


if __name__ == "__main__":
    sys.exit(main())
