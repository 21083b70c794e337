"""A worker that gets one delivery: `python -m benchmarks._compare_worker WAY KEY FAULT DATABASE REDIS_PORT`.

Of two deliveries at once, each waits until both are ready. Exit codes: 0 is an acknowledgement, `AGAIN` asks
for another delivery.
"""

import os
import sys
import time

import redis
from sqlalchemy import create_engine

from ._compare_ways import WAYS, Effect, Later

AGAIN = 3
PATIENCE = 50
"""Seconds for the start of a worker."""


def main() -> int:
    """Handle the message; return the exit code."""
    way, key, fault, url, port = sys.argv[1:]
    effect = Effect(create_engine(url), key, fault)
    client = redis.Redis(port=int(port))
    handle = WAYS[way][1](effect, client)
    if fault == "two":
        meet(client, f"ready:{key}")
    try:
        handle()
    except Later:
        return AGAIN
    effect.reach("unacknowledged")
    return 0


def meet(client: "redis.Redis", place: str) -> None:
    """Wait for the other worker. Raises TimeoutError if it does not come."""
    client.incr(place)
    deadline = time.monotonic() + PATIENCE
    while int(client.get(place) or 0) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError("the other worker did not come")
        time.sleep(0.01)


if __name__ == "__main__":
    os._exit(main())  # the threads of a library are not waited for
