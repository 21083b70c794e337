"""What a killed worker and two deliveries at once do to ways of handling a message once.

    python -m benchmarks.compare [--only NAME] [--json FILE]

Each delivery is a process of its own, on a private PostgreSQL and a private Redis. A process is really killed
(`kill -9`), and the message is delivered again at once, until a worker acknowledges it. Then the rows that it
has written are counted: one is right, two are doubled, none is lost. Libraries that are not installed are
left out. The exit code is 1 if a way of ours that promises one row has another number.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from sqlalchemy import create_engine, func, select

from examples.embedded_postgres import EmbeddedPostgres
from inbox import schema

from ._compare_ways import WAYS, effect_row, metadata, title_of
from ._compare_worker import AGAIN
from ._measure import LeftOut
from ._redis import running_redis

FAULTS = {
    "before": "killed before",
    "after": "killed after",
    "unacknowledged": "before the ack",
    "two": "two at once",
}
"""What is done to a message, by name: its worker is killed at a point of `Effect.reach`, or it has two."""
WORDS = {0: "lost", 1: "once", 2: "doubled"}
PROMISED = ("inbox", "inbox-transact")
LIMIT = 60
"""Seconds after which a message that nobody acknowledges is given up."""


class Deliveries:
    """Delivers messages to workers, which are processes."""

    def __init__(self, database: str, redis_port: int) -> None:
        self._arguments = [database, str(redis_port)]
        self._engine = create_engine(database)
        metadata.create_all(self._engine)
        schema.metadata.create_all(self._engine)

    def rows(self, way: str, fault: str) -> int:
        """The rows of a message after it was acknowledged.

        Raises:
            RuntimeError: a worker ended in another way than was meant, or no worker acknowledged it.
            subprocess.TimeoutExpired: a worker has not ended.
        """
        key = f"{way}-{fault}"
        is_two = fault == "two"
        workers = [self._started(way, key, fault) for _ in range(1 + is_two)]
        codes = [worker.wait(LIMIT) for worker in workers]
        if not set(codes) <= ({0, AGAIN} if is_two else {-signal.SIGKILL}):
            raise RuntimeError(f"{key}: workers ended with {codes}")
        deadline = time.monotonic() + LIMIT
        for _ in (code for code in codes if code != 0):
            while (code := self._started(way, key, "").wait(LIMIT)) != 0:
                if code != AGAIN or time.monotonic() > deadline:
                    raise RuntimeError(f"{key}: a worker ended with {code}")
                time.sleep(0.2)
        count = select(func.count()).select_from(effect_row).where(effect_row.c.key == key)
        with self._engine.connect() as connection:
            return connection.scalar(count) or 0

    def _started(self, way: str, key: str, fault: str) -> "subprocess.Popen[bytes]":
        worker = f"{__package__}._compare_worker"
        return subprocess.Popen([sys.executable, "-m", worker, way, key, fault, *self._arguments])


def main(arguments: Sequence[str] | None = None) -> int:
    """Put the chosen ways under all faults, print the table; return 1 if a promise of ours is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", action="append", choices=WAYS, help="one way; may repeat")
    parser.add_argument("--json", type=Path, help="where to write the numbers of rows")
    options = parser.parse_args(arguments)
    if shutil.which("redis-server") is None:
        parser.error("redis-server is not installed")
    found: dict[str, dict[str, int]] = {}
    _show("one message", FAULTS.values())
    with EmbeddedPostgres() as server, running_redis() as client:
        url = server.database("compare").render_as_string(hide_password=False)
        deliveries = Deliveries(url, client.connection_pool.connection_kwargs["port"])
        for way in options.only or WAYS:
            try:
                title = title_of(way)
            except LeftOut as reason:
                _show(f"{way} was left out: {reason}")
                continue
            found[way] = {fault: deliveries.rows(way, fault) for fault in FAULTS}
            _show(title, (WORDS.get(rows, f"{rows} times") for rows in found[way].values()))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(any(rows != 1 for way in PROMISED for rows in found.get(way, {}).values()))


def _show(title: str, cells: Iterable[str] = ()) -> None:
    line = f"{title:<40}" + "".join(f"{cell:<16}" for cell in cells)
    sys.stdout.write(f"{line.rstrip()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
