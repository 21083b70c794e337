"""The interface of the libraries that are measured side by side, and the functions they share."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from sqlalchemy import URL

T = TypeVar("T")


class Peer(Protocol):
    """One library on one database; each process makes its own from the database's URL.

    Every message has 300 bytes, and every handler does nothing.
    """

    def __init__(self, url: URL) -> None: ...

    def create(self) -> None:
        """Create the tables, with the settings that the documentation recommends."""

    def load(self, messages: int) -> None:
        """Enqueue this many, with the library's function for many messages."""

    def consume(self, messages: int) -> float:
        """Consume all messages in this process; return the seconds until all are settled in the database."""

    def produce(self, rate: float, messages: int) -> float:
        """Enqueue messages that carry their start time, one per transaction, at this rate per second; return
        the rate reached."""

    def receive(self, messages: int, ready: Callable[[], object]) -> list[float]:
        """Consume this many while they are produced, with the library's usual way of waiting; return the
        seconds from the start of each to its handler."""


def driver_url(url: URL) -> str:
    """The URL in the form of PostgreSQL's own clients."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop, the fastest loop for all of them, after collecting the garbage of others."""
    import uvloop  # which pgqueuer brings along

    gc.collect()
    result: T = uvloop.run(work)
    return result


def stamp() -> bytes:
    """A payload that contains the current time."""
    return f"{time.time():.6f} ".encode().ljust(300, b"x")


def age(payload: bytes) -> float:
    """Seconds since the payload was made."""
    return time.time() - float(payload.split(b" ", 1)[0])


def pace(rate: float, messages: int, work: Callable[[], object]) -> float:
    """Call `work` at this rate per second, as evenly as possible; return the rate reached."""
    begun = time.perf_counter()
    for number in range(messages):
        time.sleep(max(0.0, begun + number / rate - time.perf_counter()))
        work()
    return messages / (time.perf_counter() - begun)


async def pace_async(rate: float, messages: int, work: Callable[[], Awaitable[object]]) -> float:
    """`pace`, awaited."""
    begun = time.perf_counter()
    for number in range(messages):
        await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
        await work()
    return messages / (time.perf_counter() - begun)
