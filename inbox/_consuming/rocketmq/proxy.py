"""Where messages come from: one of RocketMQ's proxies."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from inbox_outbox_base.brokers.rocketmq.client import grpc, text_of
from inbox_outbox_base.checks.backoff import Backoff

from .held import HeldMessage
from .link import GroupSettings, Membership, Refusal, RocketMQLink
from .poll import Poll

_log = logging.getLogger("inbox.rocketmq")
_RECONNECT = Backoff(first=0.5, longest=15)
_STEADY = 10.0
"""Seconds after which the end of a connection does not count as a failure."""
_LAST_ANSWER = 0.5
"""Seconds to wait for answers on their way when the consumer stops. RocketMQ gives back messages that it
cannot deliver."""
FAILURES = (grpc.RpcError, Refusal, OSError, TimeoutError)


class Source:
    """Receives messages from a proxy until it is stopped, and connects again whenever the connection ends.

    Args:
        member: who receives what.
        endpoints: the proxy's endpoints.
        queues: one queue of each topic on each broker behind the proxy.
        limit: how many unsettled messages to hold.
        hidden: seconds for which a received message is hidden from other consumers.
        take: is called with each message.
        tell: is called with the group's settings after each connect and at `refresh`.
        stopping: set when the source must receive no more.
    """

    def __init__(
        self,
        member: Membership,
        endpoints: Any,
        queues: list[Any],
        *,
        limit: int,
        hidden: int,
        take: Callable[[HeldMessage], None],
        tell: Callable[[GroupSettings], None],
        stopping: asyncio.Event,
    ) -> None:
        self._member = member
        self._endpoints = endpoints
        self._tell = tell
        self._stopping = stopping
        self._link: RocketMQLink | None = None
        self._limit = limit
        self._new_poll = partial(Poll, hidden=hidden, take=take, is_useless=self._is_useless)
        self._polls: dict[tuple[str, str], Poll] = {}
        self._has_more = asyncio.Event()
        self._finished = asyncio.Event()
        self.cover(queues)

    @property
    def held(self) -> list[HeldMessage]:
        """The messages that are not settled."""
        return [held for poll in self._polls.values() for held in poll.held]

    def cover(self, queues: list[Any]) -> None:
        """Receive from these queues as well."""
        for queue in queues:
            name = queue.topic.name, queue.broker.name
            if name not in self._polls:
                self._polls[name] = self._new_poll(queue)
                self._has_more.set()
        for poll in self._polls.values():
            poll.limit = max(1, self._limit // len(self._polls))
            poll.link = self._link

    async def connect(self) -> None:
        """Connect to the proxy.

        Raises:
            Exception: one of `FAILURES`, or what `tell` raises.
        """
        link = RocketMQLink(self._member, self._endpoints)
        try:
            await link.open()
            self._tell(link.settings)
        except BaseException:
            await link.close()
            raise
        self._use(link)

    async def refresh(self) -> None:
        """Pass on the group's settings that the last call asked for, and ask for them again."""
        link = self._link
        if link is None or link.ended.is_set():
            return
        self._tell(link.settings)
        try:
            await link.ask_for_settings()
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            _log.debug("the connection has just ended: %r", error)

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection that has not ended."""
        return self._link is not None and not self._link.ended.is_set()

    @property
    def is_idle(self) -> bool:
        """Whether it is not connected, and has no messages."""
        return self._link is None and not self.held

    async def finished(self) -> None:
        """Wait until nothing more is received."""
        await self._finished.wait()

    async def run(self) -> None:
        """Receive until stopped; the connection stays open for unsettled messages."""
        try:
            await self._run()
        finally:
            self._finished.set()

    async def _run(self) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while not self._stopping.is_set():
            begun = loop.time()
            if self._link is not None or await self._is_connected():
                while await self._receive():
                    pass
            if self._stopping.is_set():
                break
            await self.close()
            failures = 0 if loop.time() - begun >= _STEADY else failures + 1
            await self._pause(_RECONNECT.delay(failures) if failures else 0)

    def _is_useless(self) -> bool:
        """Whether RocketMQ refuses everything, as if it had forgotten this client. A topic that was deleted
        does not stop the others."""
        return all(poll.is_refused for poll in self._polls.values())

    async def close(self) -> None:
        """Close the connection."""
        link = self._link
        self._use(None)
        if link is not None:
            await link.close()

    def _use(self, link: RocketMQLink | None) -> None:
        self._link = link
        for poll in self._polls.values():
            poll.link = link

    async def _is_connected(self) -> bool:
        try:
            await self.connect()
        except FAILURES as error:
            _log.warning("cannot connect to %s, trying again: %s", self._member.address, text_of(error))
            return False
        return True

    async def _receive(self) -> bool:
        """Receive until the connection ends, the consumer stops, or there are new queues (returns True)."""
        link = self._link
        assert link is not None  # noqa: S101 - for the type checker
        self._has_more.clear()
        polls = [asyncio.create_task(poll.run(link)) for poll in self._polls.values()]
        events = (link.ended, self._stopping, self._has_more)
        ends = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait([*polls, *ends], return_when=asyncio.FIRST_COMPLETED)
            goes_on = self._has_more.is_set() and not (link.ended.is_set() or self._stopping.is_set())
            if goes_on or self._stopping.is_set():
                await asyncio.wait(polls, timeout=_LAST_ANSWER)
        finally:
            for task in (*polls, *ends):
                task.cancel()
            await asyncio.gather(*polls, *ends, return_exceptions=True)
        return goes_on

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
