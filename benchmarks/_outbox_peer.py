"""What a library has to show to be measured beside the others, and what all of them use for it."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import uvloop
from sqlalchemy import URL

T = TypeVar("T")


class Peer(Protocol):
    """One library on one database; made anew in each process, from the database's address.

    Every message is one of 300 bytes, and every handler does nothing with it.
    """

    def __init__(self, url: URL) -> None: ...

    def create(self) -> None:
        """Make the tables, and set what the documentation recommends for them."""

    def load(self, messages: int) -> None:
        """Enqueue so many, by the library's own way of enqueueing many."""

    def consume(self, messages: int) -> float:
        """Consume what is there, in this process; seconds until all of it is settled in the database."""

    def produce(self, rate: float, messages: int) -> float:
        """Enqueue one message in a transaction of its own, so many a second, that tell when they were
        begun; messages per second that were reached."""

    def receive(self, messages: int, ready: Callable[[], object]) -> list[float]:
        """Consume so many while they are produced, in the library's usual way of waiting; seconds between
        when each was begun and its handler."""


def driver_url(url: URL) -> str:
    """The address as PostgreSQL's own clients take it."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop, which is the fastest loop for all of them alike, with no garbage of others."""
    gc.collect()
    result: T = uvloop.run(work)
    return result


def stamp() -> bytes:
    """A payload that tells when it was made."""
    return f"{time.time():.6f} ".encode().ljust(300, b"x")


def age(payload: bytes) -> float:
    """Seconds since it was made."""
    return time.time() - float(payload.split(b" ", 1)[0])


def pace(rate: float, messages: int, work: Callable[[], object]) -> float:
    """Do it so often a second, as evenly as can be; times per second that were reached."""
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
