"""Status-table mode for asynchronous code: the same core, run inside SQLAlchemy's greenlet."""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar, cast

from inbox._listening.async_listener import AsyncListener
from inbox._listening.json_types import JsonResult
from inbox._listening.listener_factory import Listens
from inbox._listening.outcome import Outcome
from inbox_outbox_base.calls.async_calls import begin, checkpoint, run, uninterrupted
from inbox_outbox_base.calls.signals import FAILURES, as_failure, original
from inbox_outbox_base.checks.keys import Key
from inbox_outbox_base.errors.groups import find
from inbox_outbox_base.errors.inbox import LeaseLost

from .async_claim import AsyncClaim
from .async_heartbeat import Heartbeat, LoopHeartbeats
from .base import StatusConsumer
from .claim_base import end_claim, outcome_of, raise_rest
from .handlers import AsyncStatusHandler
from .hold import Hold

M = TypeVar("M")

_log = logging.getLogger("inbox.claims")


class AsyncStatusInbox(StatusConsumer, Listens[AsyncListener]):
    """`StatusInbox` with awaited methods: takes each message once without a transaction around its
    handler, which may call other services.

    Arguments, guarantees and errors are those of `StatusInbox`; the store is a `SqlStore` on an AsyncEngine
    or a `RedisStore` on a client of `redis.asyncio`. Needs the extra `asyncio`.
    """

    _is_async = True
    _listener = AsyncListener
    _beats: LoopHeartbeats | None = None
    _call = staticmethod(uninterrupted)

    @property
    def _heartbeats(self) -> LoopHeartbeats:
        """This event loop's heartbeats."""
        beats = self._beats  # a loop in another thread may replace it at any time
        if beats is None or not beats.is_here:
            beats = self._beats = LoopHeartbeats(self._schedule())
        return beats

    def claim(
        self,
        key: Key | None,
        payload: Any = None,
        *,
        message_id: str | None = None,
        message_time: datetime | None = None,
    ) -> AbstractAsyncContextManager[AsyncClaim]:
        """Claim the message, run the block, and record how it ended, as `StatusInbox.claim` does.

        When the lease is lost, the block's task is cancelled and the block raises `LeaseLost`. Any other
        cancellation releases the message and remains a CancelledError.
        """
        return self._claimed(key, payload, message_id, message_time, raises=True)

    @asynccontextmanager
    async def _claimed(
        self,
        key: Key | None,
        payload: Any,
        message_id: str | None,
        message_time: datetime | None,
        message: object = None,
        *,
        raises: bool = False,
    ) -> AsyncIterator[AsyncClaim]:
        """Run the block for every verdict; but if `raises`, raise refusals as `on_refusal` says."""
        stored_key, given, part = await begin(self._claim, key, payload, message_id, message_time, message)
        claim = AsyncClaim(stored_key, self.store, given, part)
        if not isinstance(given, Hold):
            if raises:
                self._check_taken(claim)
            yield claim
            await checkpoint()
            return
        heartbeat = Heartbeat(self._heartbeats, given)
        try:
            heartbeat.begin()
            yield claim
        except GeneratorExit:  # the task was discarded: it can no longer wait for the store
            heartbeat.abandon()
            raise
        except BaseException as raised:
            error = raised
            if await heartbeat.stop(raised):
                error = _lost(given)
            await self._record(claim, given, error)
            if error is not raised:
                raise error from raised
            raise_rest(raised)
        else:
            await heartbeat.stop()
            await run(end_claim, claim, None, self.backoff.delay)
            await heartbeat.leave()
        finally:
            given.leave()
        if raises:
            self._check_taken(claim)

    def handler(
        self,
        *,
        key: Callable[[Any], Key | None],
        payload: Callable[[Any], Any] | None = None,
        message_id: Callable[[Any], str] | None = None,
        message_time: Callable[[Any], datetime] | None = None,
    ) -> Callable[[Callable[[AsyncClaim, M], Awaitable[JsonResult]]], AsyncStatusHandler[M]]:
        """Decorate `async body(claim, message)`: it runs in `claim`, once unless it fails.

        As for `StatusInbox.handler`, the decorated function has an `outcome(message)`, to be awaited.
        """

        def decorate(body: Callable[[AsyncClaim, M], Awaitable[JsonResult]]) -> AsyncStatusHandler[M]:
            async def run(message: M) -> tuple[AsyncClaim | None, Outcome]:
                claim: AsyncClaim | None = None
                try:
                    async with self._claimed(
                        key(message),
                        payload and payload(message),
                        message_id and message_id(message),
                        message_time and message_time(message),
                        message,
                    ) as claim:
                        if claim.is_new:
                            claim.result = await body(claim, message)
                except FAILURES as error:
                    if claim is None:
                        self._fail_unkeyed(error)
                    return claim, outcome_of(claim, as_failure(error))
                return claim, outcome_of(claim)

            async def outcome(message: M) -> Outcome:
                return (await run(message))[1]

            @functools.wraps(body)
            async def handle_message(message: M) -> Outcome:
                claim, found = await run(message)
                if found.error is not None:
                    raise original(found.error)
                if claim is not None:
                    self._check_taken(claim)
                return found

            handle_message.outcome = outcome  # type: ignore[attr-defined]
            handle_message.prepare = self.store.prepare  # type: ignore[attr-defined]
            handle_message.counts = self._counting()  # type: ignore[attr-defined]
            return cast("AsyncStatusHandler[M]", handle_message)

        return decorate

    async def _record(self, claim: AsyncClaim, hold: Hold, error: BaseException) -> None:
        """Record that the handler raised, and renew the lease while its steps are undone."""
        heartbeat = Heartbeat(self._heartbeats, hold)
        try:
            heartbeat.begin()
            await run(end_claim, claim, error, self.backoff.delay)
        except BaseException as raised:
            if await heartbeat.stop(raised):
                raise _lost(hold) from raised
            if not (isinstance(raised, Exception) and find(error, asyncio.CancelledError)):
                raise
            _log.exception("key %r was not given back: it stays taken until its lease expires", claim.key)
        else:
            await heartbeat.stop()
            await heartbeat.leave()


def _lost(hold: Hold) -> LeaseLost:
    return LeaseLost(f"key={hold.held.key!r}: {hold.loss}")
