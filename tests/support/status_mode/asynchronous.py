"""Tests of `AsyncStatusInbox`: each in its own event loop, on the stores of `place`."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import redis.asyncio
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import AsyncClaim, AsyncStatusInbox, Record, RedisStore, SqlStore, Store

from .stores import CONSUMER, Place, stored

P = ParamSpec("P")

_LONGEST = 90.0
"""Seconds that a test may take: one that waits for ever says where."""


def in_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Make an asynchronous test one that pytest can call."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(_LONGEST):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


@asynccontextmanager
async def open_async(place: Place) -> AsyncIterator[Store]:
    """The store, through its asynchronous driver."""
    if place.name == "redis":
        async with redis.asyncio.Redis.from_url(place.url) as client:
            yield RedisStore(client, prefix=place.prefix)
    else:
        engine = create_async_engine(place.async_url)
        try:
            yield SqlStore(engine)
        finally:
            await engine.dispose()


@asynccontextmanager
async def inbox_at(place: Place, **options: Any) -> AsyncIterator[AsyncStatusInbox]:
    """An inbox that shows verdicts, with its own store."""
    async with open_async(place) as store:
        yield AsyncStatusInbox(CONSUMER, store=store, **{"on_refusal": "return"} | options)


def beside(inbox: AsyncStatusInbox, **options: Any) -> AsyncStatusInbox:
    """Another inbox of the same consumer on the same store."""
    return AsyncStatusInbox(CONSUMER, store=inbox.store, **{"on_refusal": "return"} | options)


async def failed(inbox: AsyncStatusInbox, error: BaseException, key: str = "a") -> AsyncClaim:
    """The claim of a message whose handler has raised this error; the error must be raised unchanged."""
    try:
        async with inbox.claim(key) as claim:
            raise error
    except type(error) as raised:
        assert raised is error  # noqa: PT017 - and not one of the same kind
    return claim


def recorded(place: Place, key: str = "a") -> Record:
    """The store's record of a message."""
    with place.open() as store:
        return stored(store, key)
