"""The cost of the Spark writer, as ratios of jobs that ran side by side.

    python -m benchmarks.spark_writer [--quick | --tiny] [--only NAME] [--rows N] [--unix-sockets]
                                      [--png FILE]

Runs on a private PostgreSQL with fsync on and a Spark of two cores. Fresh rows are compared with Spark's own
JDBC writer, which gives no guarantee; Spark fetches its driver. The exit code is 1 if a benchmark fails or a
target is missed.
"""

import sys
from collections.abc import Sequence

from pyspark import __version__ as spark_version

from examples.embedded_postgres import EmbeddedPostgres

from . import _command, _spark_floor, _spark_growth, _spark_memory, _spark_rates, _spark_small
from ._lab import SETTINGS, Lab
from ._spark_lab import UNIX_SOCKETS, SparkLab, spark_session

BENCHMARKS: _command.Benchmarks[SparkLab] = {
    "rates": _spark_rates.rates,
    "floor": _spark_floor.floor,
    "memory": _spark_memory.memory,
    "growth": _spark_growth.growth,
    "small": _spark_small.small,
    "size": _spark_growth.inbox_size,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen benchmarks, print and draw the results; return 1 if one fails or misses a target."""
    parser = _command.parser("spark_writer", __doc__, BENCHMARKS)
    parser.add_argument("--rows", type=int, help="rows of a job")
    parser.add_argument("--unix-sockets", action="store_true", help=f"with {UNIX_SOCKETS}=true")
    options = parser.parse_args(arguments)
    shown = _command.progress()
    with EmbeddedPostgres(SETTINGS) as server, spark_session(shown.console, options.unix_sockets) as session:
        lab = Lab(server, shown, options.size, often=(5, 3, 1))
        rows = options.rows or lab.sized(1_000_000, 100_000, 500)
        sockets = "Unix sockets" if options.unix_sockets else "TCP"
        subtitle = (
            f"{rows:,} rows of 100 bytes, Spark {spark_version} with 2 cores and {sockets} to Python, "
            f"PostgreSQL {server.version}, fsync on, median of {lab.rounds} rounds"
        )
        spark_lab, title = SparkLab(lab, session, rows), "Cost of the Spark writer"
        return _command.measure(options, BENCHMARKS, spark_lab, shown, title, subtitle)


if __name__ == "__main__":
    sys.exit(main())
