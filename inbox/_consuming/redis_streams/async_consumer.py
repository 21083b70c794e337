"""The asynchronous consumer for Redis Streams."""

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import timedelta
from typing import Any, Unpack
from uuid import uuid4

import redis

from inbox._consuming.leased.consumer import LeaseConsumer, NotThere
from inbox._consuming.leased.reception import Reception
from inbox._listening.options import ListenerOptions
from inbox._listening.outcome import Decision, Outcome
from inbox_outbox_base.brokers.redis_streams import address
from inbox_outbox_base.brokers.redis_streams.client import FAILURES, is_login_refused, text_of
from inbox_outbox_base.checks.options import flag
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.words.incoming import Delivery

from . import options
from .dead_letters import dead_letter as letter_of
from .link import GroupLink, Received
from .message import PendingEntry

_TAKE_EVERY = 0.5
"""Seconds between looks for messages that are due, or that other consumers have lost."""


class AsyncRedisStreamsConsumer(LeaseConsumer[PendingEntry]):
    """`RedisStreamsConsumer` for asynchronous handlers: `run` is awaited, and handles no signals; see
    `stopping_on_sigterm`.

    It belongs to one event loop; `stop` may be called from anywhere.
    """

    _log = logging.getLogger("inbox.redis_streams")

    def __init__(
        self,
        url: str,
        stream: str,
        handler: Callable[[Delivery], Awaitable[Outcome]],
        *,
        group: str,
        declare: bool = False,
        trim: bool = False,
        prefetch: int | None = None,
        idle: float | timedelta = 30,
        max_attempts: int | None = 16,
        dead_letter: str | Callable[[Delivery, Decision], Awaitable[Any]] | None = None,
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        place, lease = address.parse(url), options.idle(idle)
        self._name = f"stream={options.name('stream', stream)!r}, group={options.name('group', group)!r}"
        super().__init__(
            f"consumer of {stream} in group {group!r}",
            place,
            stream,
            handler,
            lease=lease,
            prefetch=prefetch,
            fewest=options.FEWEST,
            max_attempts=max_attempts,
            dead_letter=options.dead_letter(dead_letter, stream),
            on_event=on_event,
            options=listener,
        )
        self._declare = flag("declare", declare)
        self._trims = flag("trim", trim)
        self._link = GroupLink(place, stream, group, f"inbox-{uuid4().hex}", lease)
        self._taken_at = 0.0
        self._has_lost_answer = False
        """Whether there may be entries that Redis has given to this consumer, and that did not arrive."""
        self._reception = Reception(
            self._ask,
            self._life,
            self._log,
            limit=self.prefetch,
            take=self._take,
            stopping=self._stopping,
            failures=FAILURES,
            text_of=text_of,
        )

    async def _connect(self) -> None:
        try:
            await self._link.open(declare=self._declare)
        except FAILURES as error:
            raise self._refusal(error) from None
        self._life.connected()

    def _refusal(self, error: Exception) -> Exception:
        if is_login_refused(error):
            return InvalidOption(f"url: Redis refuses the login: {text_of(error)}")
        if isinstance(error, redis.ResponseError):
            if _is_missing(error):
                return NotThere(f"{self._name}: there is no such stream or group; declare=True creates both")
            return InvalidOption(f"{self._name}: {text_of(error)}")
        return ConnectionError(f"{self._address}: {text_of(error)}")

    def _receiving(self) -> Iterable[Coroutine[Any, Any, None]]:
        return [self._reception.run()]

    async def _ask(self, most: int) -> list[PendingEntry]:
        try:
            return [
                PendingEntry(self._link, each, self._lease, self._reception.free)
                for each in await self._received_from(most)
            ]
        except redis.ResponseError as error:
            await self._link.reconnect()
            if self._declare and _is_missing(error):
                self._log.error("%s: the group is gone, and is made again from the first entry", self._name)
                await self._link.make_group()
            raise
        except FAILURES:
            self._has_lost_answer = True
            raise

    async def _received_from(self, most: int) -> list[Received]:
        now = time.monotonic()
        if self._has_lost_answer or now >= self._taken_at + _TAKE_EVERY:
            before = [each.entry for each in self._reception.held]
            found, gone = await self._link.taken(most, before if self._has_lost_answer else None)
            self._has_lost_answer = self._has_lost_answer and len(found) + len(gone) >= most
            if gone:
                self._log.error("%s: deleted before they were taken: %s", self._name, ", ".join(gone))
            held = {each.entry for each in self._reception.held}
            found = [each for each in found if each.entry not in held]
            if found:
                return found
            self._taken_at = now
        new = await self._link.new(most)
        again = {each.entry for each in new}
        for message in self._reception.held:
            if message.entry in again:
                message.forget()
        return new

    async def _refresh(self) -> None:
        if self._trims:
            try:
                if deleted := await self._link.trim():
                    self._log.debug("%s: %d entries were deleted", self._name, deleted)
            except FAILURES as error:
                self._log.warning("%s: not trimmed: %s", self._name, text_of(error))

    def _held(self) -> list[PendingEntry]:
        return self._reception.held

    async def _received(self) -> None:
        await self._reception.finished()

    async def _close(self) -> None:
        await self._link.close()

    def _is_kept(self, message: PendingEntry) -> bool:
        """Redis buries nothing, and keeps no order of keys."""
        return False

    async def _send_dead_letter(self, message: PendingEntry, decision: Decision) -> None:
        letter = letter_of(self._link.stream, message.delivery, decision)
        await self._link.add(self._dead_letter, letter)


def _is_missing(error: redis.ResponseError) -> bool:
    """Whether there is no such stream or group. A script puts its own words around the error."""
    return "no such key" in str(error) or "NOGROUP" in str(error)
