"""What many messages need: bytes in tables and log, and the time of a key as the inbox grows.

    python -m benchmarks.scale [--quick | --tiny] [--only NAME] [--png docs/benchmarks-scale.png]

Runs on a private PostgreSQL with fsync on. Bytes are the same on a busy machine. The exit code is 1 if a
benchmark fails or a target is missed.
"""

import sys
from collections.abc import Sequence

from . import _accept_growth, _bytes, _command, _hashing
from ._lab import Lab

BENCHMARKS: _command.Benchmarks[Lab] = {
    "bytes": _bytes.sizes,
    "growth": _accept_growth.growth,
    "hash": _hashing.worth,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen benchmarks, print and draw the results; return 1 if one fails or misses a target."""
    return _command.run("scale", __doc__, "What many keys cost", BENCHMARKS, arguments)


if __name__ == "__main__":
    sys.exit(main())
