"""The overviews of one database: asked at most once in some seconds, however many pages are open."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from inbox.errors import InboxError
from inbox_outbox._operating.looking import Half, Halves, look, not_in_time
from inbox_outbox._operating.problems import HealthLimits, Problem, problems
from inbox_outbox_base.errors import secrets

EXPECTED = (SQLAlchemyError, InboxError)
"""What a database, or its state, can raise."""
EVERY = 2.0
"""Seconds between two looks."""
_PATIENCE = 5.0
"""Seconds that a page waits for the database."""
_AGES = 15
"""Seconds after which a page is drawn again only because its ages have changed."""


@dataclass(frozen=True, slots=True)
class Glance:
    """What the database said, or why it said nothing."""

    halves: Halves = field(default_factory=Halves)
    error: str | None = None
    at: float = field(default_factory=time.monotonic)

    @property
    def mark(self) -> str:
        """Another text if a page would look different."""
        inbox, outbox = self.halves.inbox, self.halves.outbox
        parts: list[object] = [self.error, self.halves.late, int(self.at // _AGES)]
        if outbox is not None:
            counts = (
                outbox.pending,
                outbox.waiting,
                outbox.unknown,
                outbox.held,
                outbox.delayed,
                outbox.dead,
            )
            topics = [
                (each.topic, each.pending, each.waiting, each.held, each.dead) for each in outbox.topics
            ]
            relays = [(each.name, each.buckets, each.lease_left < 0) for each in outbox.relays]
            parts += [counts, topics, relays, outbox.paused, outbox.unowned]
        if inbox is not None:
            parts += [
                (each.consumer, each.failed, each.dead, each.halted, each.refused) for each in inbox.consumers
            ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def problems_in(glance: Glance) -> list[Problem]:
    """What needs somebody, the most urgent first."""
    return problems(glance.halves.inbox, glance.halves.outbox, HealthLimits())


class Pulse:
    """Looks at a database."""

    def __init__(self, engine: Engine, schema: str | None) -> None:
        self._engine, self._schema = engine, schema
        self._last: Glance | None = None
        self._asking: asyncio.Task[Glance] | None = None
        self._since = 0.0
        self._looking = Halves()
        """What has been read so far."""

    async def latest(self) -> Glance:
        """What was seen within the last seconds. A database that does not answer is asked once, not again and
        again, and the answer is an error meanwhile; or the inbox, if only the outbox is late."""
        now = time.monotonic()
        if self._last is not None and now - self._last.at < EVERY:
            return self._last
        asking = self._asking
        if asking is None or asking.done() or asking.get_loop() is not asyncio.get_running_loop():
            self._looking = Halves()
            asking = self._asking = asyncio.create_task(self._ask(self._looking))
            self._since = now
        await asyncio.wait({asking}, timeout=max(0.0, self._since + _PATIENCE - now))
        if asking.done():
            return asking.result()
        if (inbox := self._looking.inbox) is not None:
            late = Half.OUTBOX
            return Glance(Halves(inbox=inbox, unseen=(not_in_time(late),), late=(late,)))
        waited = time.monotonic() - self._since
        return Glance(error=f"the database has not answered for {waited:.0f} s")

    def forget(self) -> None:
        """Something was decided: look again."""
        self._last = self._asking = None

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: one whenever a page would look different."""
        said = None
        while True:
            mark = (await self.latest()).mark
            yield ":\n\n" if mark == said else f"data: {mark}\n\n"
            said = mark
            await asyncio.sleep(EVERY)

    async def _ask(self, into: Halves) -> Glance:
        glance = await run_in_threadpool(self._look, into)
        if asyncio.current_task() is self._asking:  # else what it saw was changed by a decision
            self._last = glance
        return glance

    def _look(self, into: Halves) -> Glance:
        try:
            halves = look(self._engine, self._schema, into=into)
        except Exception as error:  # noqa: BLE001 - whatever it is, such as a wrong option of a driver
            return Glance(error=secrets.reason(error))
        return Glance(halves)
