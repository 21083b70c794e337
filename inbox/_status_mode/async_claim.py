"""The object that an asynchronous handler of status-table mode works with.

The synchronous core does all writes about a message; it runs inside SQLAlchemy's greenlet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import Connection
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from inbox._listening.json_types import J, JsonResult
from inbox_outbox_base.calls.async_calls import awaited, run
from inbox_outbox_base.errors.blame import OWN
from inbox_outbox_base.transactions.connect import reaching
from inbox_outbox_base.transactions.sources import async_kinds, open_source

from .claim_base import ClaimBase, Undo
from .hold import OnUnknown
from .transact import sql_store, transact

if TYPE_CHECKING:  # at run time imported at first use, because the import needs greenlet
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    from inbox_outbox_base.transactions.sources import (
        AS,
        AsyncEngineSource,
        AsyncSessionSource,
        AsyncSource,
    )


class AsyncClaim(ClaimBase):
    """`Claim` for asynchronous code: one message in status-table mode. Run it if and only if `is_new`.

    A cancellation never interrupts a store call. It is raised after the call, so that a finished step is
    recorded as finished.
    """

    __slots__ = ()

    async def heartbeat(self) -> None:
        """Renew the lease immediately. Raises as `Claim.heartbeat` does."""
        await run(self._held.renew)

    @overload
    def step(
        self,
        name: str,
        body: Callable[[], Awaitable[J]],
        *,
        undo: Undo | None = None,
        on_unknown: OnUnknown = "retry",
    ) -> Coroutine[Any, Any, J]: ...
    @overload
    def step(
        self, name: str, body: Callable[[], J], *, undo: Undo | None = None, on_unknown: OnUnknown = "retry"
    ) -> Coroutine[Any, Any, J]: ...
    @overload
    def step(
        self,
        name: str,
        body: Callable[[], JsonResult | Awaitable[JsonResult]],
        *,
        undo: Undo | None = None,
        on_unknown: OnUnknown = "retry",
    ) -> Coroutine[Any, Any, Any]: ...
    def step(
        self,
        name: str,
        body: Callable[[], JsonResult | Awaitable[JsonResult]],
        *,
        undo: Undo | None = None,
        on_unknown: OnUnknown = "retry",
    ) -> Coroutine[Any, Any, Any]:
        """Run a step; if an earlier attempt finished it, return its recorded result.

        Arguments, guarantees and errors are those of `Claim.step`; `body` and `undo` may be asynchronous
        functions, or synchronous ones that do not block. A message whose handler has called a step and not
        awaited it fails.
        """

        async def step() -> Any:
            self._unawaited.remove(name)
            return await run(self._step, name, awaited(body), undo and awaited(undo), on_unknown)

        self._unawaited.append(name)
        return step()

    @overload
    def transact(
        self,
        name: str,
        body: Callable[[AsyncConnection], Awaitable[J]],
        *,
        source: AsyncEngineSource | None = None,
        undo: Undo | None = None,
    ) -> Coroutine[Any, Any, J]: ...
    @overload
    def transact(
        self,
        name: str,
        body: Callable[[AS], Awaitable[J]],
        *,
        source: AsyncSessionSource[AS],
        undo: Undo | None = None,
    ) -> Coroutine[Any, Any, J]: ...
    @overload
    def transact(
        self,
        name: str,
        body: Callable[[AsyncConnection], JsonResult | Awaitable[JsonResult]],
        *,
        source: AsyncEngineSource | None = None,
        undo: Undo | None = None,
    ) -> Coroutine[Any, Any, Any]: ...
    @overload
    def transact(
        self,
        name: str,
        body: Callable[[AS], JsonResult | Awaitable[JsonResult]],
        *,
        source: AsyncSessionSource[AS],
        undo: Undo | None = None,
    ) -> Coroutine[Any, Any, Any]: ...
    def transact(
        self,
        name: str,
        body: Callable[[Any], JsonResult | Awaitable[JsonResult]],
        *,
        source: AsyncSource | None = None,
        undo: Undo | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """A step whose writes and record commit in one transaction, so that it happens exactly once.

        Guarantees and errors are those of `Claim.transact`.

        Args:
            name: as for `step`.
            undo: as for `step`.
            body: gets the AsyncConnection (or, from an async_sessionmaker, the AsyncSession) on which a
                transaction has begun; it must neither commit nor roll back.
            source: an AsyncEngine, async_sessionmaker or async_scoped_session of the store's database, or a
                function that returns one; None is the store's own engine.
        """
        from sqlalchemy.ext.asyncio import AsyncEngine

        async def step() -> Any:
            self._unawaited.remove(name)
            hold, store = self._held, sql_store(self._store)
            handle = open_source(AsyncEngine(store.engine) if source is None else source, async_kinds())
            await run(
                transact,
                hold,
                store,
                name,
                lambda: _begun(handle),
                lambda _: awaited(body)(handle),
                has_undo=undo is not None,
            )
            return self._finished(name, undo and awaited(undo))

        self._unawaited.append(name)
        return step()


def _begun(handle: AsyncConnection | AsyncSession) -> Connection | Session:
    """Inside `run`: connect the handle and return its synchronous side, which closes it."""
    from sqlalchemy.ext.asyncio import AsyncSession

    if isinstance(handle, AsyncSession):
        return handle.sync_session
    with OWN, reaching():
        await_only(handle.start())
    assert handle.sync_connection is not None  # noqa: S101 - it has just been started
    return handle.sync_connection
