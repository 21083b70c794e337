"""Counts what listeners decide, and stores it once a second, outside the handlers' transactions."""

import asyncio
import atexit
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from sqlalchemy import Connection, Engine, StaticPool, Table, event
from sqlalchemy.exc import MissingGreenlet

from inbox._refusing.recording import flush_here
from inbox_outbox_base.calls.async_calls import run
from inbox_outbox_base.counting.series import FOLD_EVERY, SeriesWriter, SeriesWritten
from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.databases.taking import at_level
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.supported import FOLDERS
from inbox_outbox_base.tables.operations import LONGEST_SOURCE
from inbox_outbox_base.transactions.connect import in_background, root, transacted
from inbox_outbox_base.words.incoming import Verdict
from inbox_outbox_base.words.series import SeriesKind

from .outcome import Decision
from .thread_pool import in_thread

_log = logging.getLogger("inbox.series")

_EVERY = 1.0
"""Seconds between two writes."""
_IDLE = 5.0
"""Seconds without a message after which the thread or task ends; the next message begins another."""
_PATIENCE = 5.0
"""The most seconds that an end waits for the last write."""
_MINUTE = 60.0
_KINDS = {
    Verdict.DUPLICATE: SeriesKind.DUPLICATE,
    Verdict.MISMATCH: SeriesKind.MISMATCH,
    Verdict.TOO_OLD: SeriesKind.TOO_OLD,
    Verdict.DEAD: SeriesKind.DEAD,
    Verdict.HALTED: SeriesKind.HALTED,
}


class EngineCounts:
    """What this process counts for one database. A thread, or a task of an asynchronous engine's loop, stores
    it; `add` begins it if needed."""

    def __init__(self, engine: Engine, table: Table) -> None:
        self._engine = at_level(engine, taking(engine.dialect.name).own_isolation)
        self._table = table
        self.is_async = engine.dialect.is_async
        self.begin()
        event.listen(root(engine), "engine_disposed", self._disposed)

    def begin(self) -> None:
        """Begin with nothing and under another name: in a fork, the counts are the parent's."""
        mark = f":{os.getpid()}:{secrets.token_hex(4)}"
        host = socket.gethostname().encode()[: LONGEST_SOURCE - len(mark)].decode(errors="ignore")
        self._writer = SeriesWriter(self._table, host + mark)
        self._lock = threading.Lock()
        self._runs = False
        self._wake: Any = threading.Event()
        self._waiting: list[threading.Event | asyncio.Event] = []
        self._next_fold = 0.0
        self._fails_since: float | None = None
        self._is_storing = self._closes = False

    def add(self, kind: SeriesKind, consumer: str, number: int = 1) -> None:
        """Count messages. For an asynchronous engine, in a task of its loop."""
        self._writer.add(kind, consumer, number)
        self._closes = False  # the application uses the engine
        if not self._runs:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._runs:
                return
            # There is nobody to do it if no loop runs, or the interpreter is ending.
            with suppress(RuntimeError):
                if self.is_async:
                    self._wake = asyncio.Event()
                    self._task = asyncio.get_running_loop().create_task(self._in_task(self._wake))
                else:
                    threading.Thread(target=self._in_thread, name="inbox series", daemon=True).start()
                self._runs = True

    def flush(self) -> None:
        """Wait until everything that was counted is stored, for at most five seconds."""
        if self._runs and not self._writer.is_empty:
            done = threading.Event()
            self._waiting.append(done)
            self._wake.set()
            done.wait(_PATIENCE)

    def end(self) -> None:
        """The same at the end of the process, or of the engine's connections: that of this write is closed,
        too."""
        self._closes = True
        self.flush()

    async def flush_async(self) -> None:
        """The same in a task."""
        if not self.is_async:
            await in_thread(self.flush)()
        elif self._runs and not self._writer.is_empty:
            done = asyncio.Event()
            self._waiting.append(done)
            self._wake.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await done.wait()

    def _in_thread(self) -> None:
        used = time.monotonic()
        while True:
            self._wake.wait(_EVERY)
            waiting = self._begun()
            if not self._writer.is_empty:
                used = time.monotonic()
                self._store()
            for each in waiting:
                each.set()
            if time.monotonic() > used + _IDLE and self._is_over():
                return

    async def _in_task(self, wake: asyncio.Event) -> None:
        used = time.monotonic()
        try:
            while time.monotonic() <= used + _IDLE or not self._is_over():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_EVERY):
                        await wake.wait()
                waiting = self._begun()
                if not self._writer.is_empty:
                    used = time.monotonic()
                    await run(self._store)
                for each in waiting:
                    each.set()
        except asyncio.CancelledError:  # the loop ends
            if not self._writer.is_empty:
                self._closes = True
                await run(self._store)
            raise
        finally:
            self._runs = False

    def _begun(self) -> list[threading.Event | asyncio.Event]:
        """Who waits for the write that begins now."""
        self._wake.clear()
        waiting, self._waiting = self._waiting, []
        return waiting

    def _is_over(self) -> bool:
        """Whether the thread or task may end: a message that is counted later begins another one."""
        with self._lock:
            self._runs = False  # before the look: `add` looks after it has counted
            self._runs = not self._writer.is_empty or bool(self._waiting)
            return not self._runs

    def _disposed(self, _: Engine) -> None:
        if not self.is_async:
            self.end()
        elif not (self._is_storing or self._writer.is_empty):
            self._closes = True
            self._store()

    def _store(self) -> None:
        self._is_storing = True
        try:
            written = in_background(self._engine, self._stored, is_over=lambda: self._closes)
        except MissingGreenlet:  # an asynchronous engine was disposed of outside of its loop
            return
        except Exception as error:  # noqa: BLE001 - counting must not hurt what it counts
            self._failed(error)
            return
        finally:
            self._is_storing = False
        self._fails_since = None
        if written is not None:
            self._writer.committed(written)

    def _failed(self, error: Exception) -> None:
        """It tries again for a minute. Then the database is away, and little is taken that could be
        counted."""
        now = time.monotonic()
        if self._fails_since is None:
            self._fails_since = now
            _log.warning("what was counted could not be stored, retrying for a minute: %s", reason(error))
        elif now > self._fails_since + _MINUTE:
            self._fails_since = None
            self._writer.clear()

    def _stored(self, connection: Connection) -> SeriesWritten | None:
        return transacted(connection, self._write)

    def _write(self, connection: Connection) -> SeriesWritten | None:
        written = self._writer.write(connection)
        if time.monotonic() >= self._next_fold:
            self._next_fold = time.monotonic() + FOLD_EVERY
            if self._writer.fold(connection):
                self._next_fold = 0.0
        return written


_known: WeakValueDictionary[tuple[int, str | None], EngineCounts] = WeakValueDictionary()
"""By engine and schema: each refers to its engine, whose id is no other's meanwhile."""
_making = threading.Lock()


def counts_of(engine: Any, table: Table) -> EngineCounts | None:
    """This process's counts for an engine, synchronous or not; None where nothing is counted: SQLite has one
    writer at a time, and another thread must not use the only connection of a StaticPool."""
    engine = getattr(engine, "sync_engine", engine)
    name = engine.dialect.name
    if name not in FOLDERS or not taking(name).has_server or isinstance(engine.pool, StaticPool):
        return None
    with _making:
        place = (id(engine), table.schema)
        counts = _known.get(place)
        if counts is None:
            counts = _known[place] = EngineCounts(engine, table)
        return counts


class HandlerCounts:
    """Counts what listeners decide about the messages of one handler; the handler has it as `counts`.

    Args:
        consumer: the consumer of its inbox.
        table: `ops_minute`.
        engine: a function that returns the engine of its inbox.
    """

    def __init__(self, consumer: str, table: Table, engine: Callable[[], Any]) -> None:
        self._consumer = consumer
        self._table = table
        self._engine = engine
        self._counts: EngineCounts | None = None
        self._next: float = 0.0
        """When to look for the engine: a function may not have one yet."""

    def __call__(self, decision: Decision) -> None:
        """Count a decision."""
        kind = _kind(decision)
        if kind is not None and (counts := self._counts or self._found()) is not None:
            counts.add(kind, self._consumer)

    def _found(self) -> EngineCounts | None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY
            try:
                self._counts = counts_of(self._engine(), self._table)
            except Exception as error:  # noqa: BLE001 - counting must not hurt what it counts
                _log.debug("the engine could not be found: %s", reason(error))
        return self._counts

    def flush(self) -> None:
        """Wait until everything that was counted is stored, for at most five seconds."""
        if self._counts is not None:
            self._counts.flush()

    async def flush_async(self) -> None:
        """The same in a task."""
        if self._counts is not None:
            await self._counts.flush_async()


def _kind(decision: Decision) -> SeriesKind | None:
    outcome = decision.outcome
    if outcome is None:  # it did not run, or did not end
        return None
    if outcome.verdict is Verdict.NEW:
        return SeriesKind.ACCEPTED if outcome.error is None else SeriesKind.FAILED
    return _KINDS.get(outcome.verdict)


def flush(handler: object) -> None:
    """At the end of a consumer: store what was counted of this handler."""
    if isinstance(counts := getattr(handler, "counts", None), HandlerCounts):
        counts.flush()


async def flush_async(handler: object) -> None:
    """The same in a task, and what asynchronous inboxes of its loop have refused."""
    if isinstance(counts := getattr(handler, "counts", None), HandlerCounts):
        await counts.flush_async()
    await flush_here()


def flush_all() -> None:
    """The same for all handlers of synchronous engines; their connections stay open."""
    for each in list(_known.values()):
        if not each.is_async:
            each.flush()


def _end_all() -> None:
    for each in list(_known.values()):
        if not each.is_async:
            each.end()


def _begin_all() -> None:
    global _making  # another thread of the parent may have held it
    _making = threading.Lock()
    for each in list(_known.values()):
        each.begin()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)
