"""Records refusals: at most one write a second in a process (with asynchronous engines, in an event loop).
Meanwhile they are counted in memory, so a process that is killed loses up to a second of them.

Recording is never a reason to fail. A missing table or right, or a database that does not answer, is one
WARNING; what was refused meanwhile is counted, and recorded once that works again.
"""

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Hashable
from contextvars import Context
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Pool, StaticPool, Table

from inbox_outbox_base.calls.async_calls import run
from inbox_outbox_base.errors.secrets import reason

from . import writing
from .refusal import RefusalNote

PAUSE, LONG_PAUSE = 1.0, 30.0
"""Seconds after a write before the next one, and before a table is tried again whose write has failed."""
MOST_WAITING = 1_000
"""The most keys in memory; further ones are only counted."""
_AT_END = 10.0
"""Seconds that the last write may take when the process, or a consumer, ends."""

_Place = tuple[Pool, Hashable, Table]

_log = logging.getLogger("inbox.refused")


@dataclass(slots=True)
class _Waiting:
    """What is to be written into one table."""

    notes: dict[tuple[str, str], RefusalNote] = field(default_factory=dict)
    again_at: float = 0.0
    """When to try again, if the last write has failed; else 0."""


class RefusalQueue:
    """Refusals that are not written yet; those of one key are counted together. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[_Place, _Waiting] = {}
        self._due = 0.0

    def __bool__(self) -> bool:
        return bool(self._places)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing is left but what could not be written."""
        with self._lock:
            return all(each.again_at for each in self._places.values())

    @property
    def seconds_left(self) -> float:
        """Seconds until the next write."""
        with self._lock:
            first = min((each.again_at for each in self._places.values()), default=0.0)
        return max(0.0, max(first, self._due) - time.monotonic())

    def add(self, note: RefusalNote) -> None:
        """Count a refusal."""
        with self._lock:
            self._put(self._at(_place(note)).notes, note, is_newer=True)

    def write(self) -> None:
        """Write what is due; never raises. What cannot be written stays."""
        with self._lock:
            now = time.monotonic()
            due = [place for place, each in self._places.items() if each.again_at <= now]
        for place in due:
            with self._lock:  # one by one: a task may be cancelled meanwhile
                waiting = self._places.pop(place)
            try:
                writing.write([*waiting.notes.values()], place[0])
            except Exception as error:  # noqa: BLE001 - recording must not hurt what it is about
                self._keep(place, waiting)
                if not waiting.again_at:
                    _log.warning(
                        "refused messages are counted, but cannot be recorded yet: %s", reason(error)
                    )
        self._due = time.monotonic() + PAUSE

    def _at(self, place: _Place) -> _Waiting:
        return self._places.setdefault(place, _Waiting())

    def _keep(self, place: _Place, failed: _Waiting) -> None:
        with self._lock:
            waiting = self._at(place)
            waiting.again_at = time.monotonic() + LONG_PAUSE
            for note in failed.notes.values():
                self._put(waiting.notes, note, is_newer=False)

    def _put(self, notes: dict[tuple[str, str], RefusalNote], note: RefusalNote, *, is_newer: bool) -> None:
        if (note.consumer, note.key) not in notes and len(notes) >= MOST_WAITING:
            note = writing.together([note])
        before = notes.get((note.consumer, note.key))
        if before is not None:
            note = replace(note if is_newer else before, times=before.times + note.times)
        notes[note.consumer, note.key] = note


def _place(note: RefusalNote) -> _Place:
    """The table that a note is for, and the pool that the engine has now."""
    translated = note.engine.get_execution_options().get("schema_translate_map") or {}
    return note.engine.pool, frozenset(translated.items()), note.table


class _InThread:
    """Writes in a thread, which is there as long as there is something to write."""

    def __init__(self) -> None:
        self._queue = RefusalQueue()
        self._lock = threading.Lock()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, note: RefusalNote) -> None:
        """Record it soon."""
        self._queue.add(note)
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="inbox refused", daemon=True)
                thread.start()
                self._thread = thread

    def flush(self) -> None:
        """Write what is left, except what could not be written before."""
        if (thread := self._thread) is not None:
            self._hurry.set()
            thread.join(_AT_END)

    def _run(self) -> None:
        while True:
            is_hurried = self._hurry.wait(self._queue.seconds_left)
            self._queue.write()
            with self._lock:
                if not self._queue or (is_hurried and self._queue.is_stuck):
                    self._hurry.clear()
                    self._thread = None
                    return


class _InTask:
    """Writes in a task of an event loop, which is there as long as there is something to write."""

    def __init__(self) -> None:
        self._queue = RefusalQueue()
        self._task: asyncio.Task[None] | None = None

    def add(self, note: RefusalNote) -> None:
        """Record it soon."""
        self._queue.add(note)
        if self._task is None:
            self._begin()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())

    async def flush(self) -> None:
        """Write what is left, except what could not be written before."""
        await asyncio.sleep(0)  # a task that is cancelled before it has begun writes nothing
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_AT_END)
            if self._queue and self._task is None:  # not written, or added meanwhile
                self._begin()
                await asyncio.sleep(0)

    async def _run(self) -> None:
        try:
            while self._queue:
                await asyncio.sleep(self._queue.seconds_left)
                await run(self._queue.write)
        except asyncio.CancelledError:
            # The consumer ends, or the loop: asyncio.run cancels the tasks that are left.
            if not self._queue.is_stuck:
                await run(self._queue.write)
            raise
        finally:
            self._task = None


_in_thread = _InThread()
_in_tasks: WeakKeyDictionary[asyncio.AbstractEventLoop, _InTask] = WeakKeyDictionary()
_left_out: WeakSet[Pool] = WeakSet()
"""Pools with one connection for all threads, about which a WARNING was logged."""


def record(note: RefusalNote) -> None:
    """Record a refusal soon, whatever becomes of the caller's transaction. Never raises."""
    pool = note.engine.pool
    if isinstance(pool, StaticPool):  # its only connection may be in a transaction
        if pool not in _left_out:
            _left_out.add(pool)
            _log.warning("refused messages are not recorded: StaticPool has one connection for everybody")
        return
    try:
        if note.engine.dialect.is_async:
            _in_tasks.setdefault(asyncio.get_running_loop(), _InTask()).add(note)
        else:
            _in_thread.add(note)
    except RuntimeError as error:  # there is no event loop, or no thread can begin
        _log.warning("consumer %r, key %r: not recorded as refused: %s", note.consumer, note.key, error)


def flush() -> None:
    """At a normal end: write what synchronous inboxes have noted."""
    _in_thread.flush()


async def flush_here() -> None:
    """The same for asynchronous inboxes of this event loop."""
    if (recorder := _in_tasks.get(asyncio.get_running_loop())) is not None:
        await recorder.flush()


def _forget() -> None:
    """The parent of a fork writes its own."""
    global _in_thread
    _in_thread = _InThread()  # threads that do not exist here may hold the locks of the other one
    _in_tasks.clear()


atexit.register(flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
