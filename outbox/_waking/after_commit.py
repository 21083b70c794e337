"""Wake-up across processes: after commits, one notification for all messages of some milliseconds.

It is sent on a separate connection, never inside the writer's transaction, where it would serialise all
commits (measured: a third to a half of the rate). So it may arrive before its commit is visible, and a woken
relay looks several times.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Engine, event

from inbox_outbox_base.databases.notifying import Notifying
from inbox_outbox_base.databases.registry import notifying
from inbox_outbox_base.databases.taking import pooled
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.transactions.connect import root

from . import in_process
from .notify_connection import NotifyConnection, Written
from .side_connection import SharedConnection, shares_connections

_MARK = "outbox: messages written in the current transaction"
_KNOWN = "outbox: this connection is one of the application's"
_AFTER_COMMIT, _BETWEEN = 0.001, 0.02
"""Seconds to let a commit end, and between two notifications: relays look several times after each."""
_KEPT = 10.0
"""Seconds without a commit after which the connection is closed."""
_AFTER_FAILURE = 1.0
"""Seconds until the next attempt after a failed notification."""

_log = logging.getLogger("outbox.wake")
_wakers: "weakref.WeakKeyDictionary[Engine, Waker]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def mark(connection: Connection, schema: str | None, hint: Iterable[str]) -> None:
    """Note what the connection's transaction has written, to wake the relays when it commits."""
    info = pooled(connection).info
    written = info.get(_MARK)
    if written is None:  # the first of this transaction
        engine = root(connection.engine)
        if engine not in _wakers:
            with _lock:
                if engine not in _wakers:
                    _wakers[engine] = _waker(engine)
        written = info[_MARK] = {}
    if schema in written:
        written[schema].update(hint)
    else:
        written[schema] = set(hint)


def _waker(engine: Engine) -> "Waker":
    server = notifying(engine.dialect.name)
    if server is None or shares_connections(engine):
        return Waker(engine)
    return TaskWaker(engine, server) if engine.dialect.is_async else ThreadWaker(engine, server)


class Waker:
    """Wakes the relays of one database in this process, after the commits of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._url = engine.url
        event.listen(engine, "commit", self._committing)
        event.listen(engine, "commit_twophase", self._committing)
        event.listen(engine, "rollback", self._rolled_back)

    def _committing(self, connection: Connection, *_: object) -> None:
        """Called by SQLAlchemy right before it commits."""
        written: Written | None = connection.info.pop(_MARK, None)
        if written is None:
            return
        try:
            for schema, hint in written.items():
                in_process.wake_relays((self._url, schema), hint)
            self._wake_others(connection, written)
        except Exception as error:  # noqa: BLE001 - for example, no thread can start: the commit goes on
            _log.warning("relays could not be woken: %s", reason(error))

    def _rolled_back(self, connection: Connection) -> None:
        if not connection.invalidated:  # otherwise the mark is gone with the driver's connection
            connection.info.pop(_MARK, None)

    def _wake_others(self, connection: Connection, written: Written) -> None:
        """Wake the relays of other processes."""

    def forget(self) -> None:
        """Reset in the child of a fork: the running thread or task, its locks and its connection belong to
        the parent."""


class Notifier(Waker):
    """Wakes other processes, too, with notifications on one connection. The connection is opened for the
    first commit, and closed after a while without commits or when the engine is disposed of.

    A subclass supplies the runner: a thread or a task.
    """

    def __init__(self, engine: Engine, server: Notifying) -> None:
        super().__init__(engine)
        # Weak: if the application drops the engine, a runner must not keep it alive.
        self._engine = weakref.ref(engine)
        self._server = server
        self._used: weakref.WeakSet[Any] = weakref.WeakSet()
        """The application's connections; an engine's `creator` might return one of them again."""
        self._has_ended = False
        self.forget()
        event.listen(engine, "engine_disposed", self._disposed)

    def forget(self) -> None:
        self._changed = threading.Condition()
        self._pending: Written = {}
        """What has been written, and not notified yet."""
        self._runner: threading.Thread | asyncio.Task[None] | None = None

    def _wake_others(self, connection: Connection, written: Written) -> None:
        if self._has_ended:
            return
        info = connection.info
        if info.get(_KNOWN) is not self._used:
            self._used.add(connection.connection.driver_connection)
            info[_KNOWN] = self._used
        with self._changed:
            is_hinted = bool(self._pending)
            for schema, hint in written.items():
                self._pending.setdefault(schema, set()).update(hint)
            if not (is_hinted and self._is_running()):
                self._hint()

    def _is_running(self) -> bool:
        """Whether there is a runner, which will notify what is pending."""
        return self._runner is not None

    def _disposed(self, engine: Engine) -> None:
        with self._changed:
            self._pending = {}
            self._runner = None
            self._hint_runner()

    @abstractmethod
    def _hint(self) -> None:
        """There is something to notify: wake the runner, or start one."""

    @abstractmethod
    def _hint_runner(self) -> None:
        """Wake the runner, if there is one."""

    def _goes_on(self, runner: object) -> bool:
        """Whether this runner has something to notify; if not, it ends, and the next commit starts one."""
        with self._changed:
            if self._runner is not runner:
                return False
            if not self._pending:
                self._runner = None
            return bool(self._pending)

    def _end(self, runner: object) -> None:
        with self._changed:
            if self._runner is runner:
                self._runner = None

    def _notify(self, connection: NotifyConnection) -> float:
        """Notify for all commits since the last call, and return how long to pause."""
        with self._changed:
            written, self._pending = self._pending, {}
        engine = self._engine()
        if engine is None or not written:
            return _BETWEEN
        try:
            connection.notify(engine, self._used, written)
        except SharedConnection as error:
            self._has_ended = True
            _log.warning("relays of other processes are not woken: %s", error)
        except Exception as error:  # noqa: BLE001 - without notifications relays poll
            _log.warning("relays of other processes could not be woken: %s", reason(error))
            return _AFTER_FAILURE
        return _BETWEEN


class ThreadWaker(Notifier):
    """Notifies from a thread."""

    def _hint(self) -> None:
        if self._runner is None:
            thread = threading.Thread(target=self._run, name="outbox wake-up", daemon=True)
            thread.start()
            self._runner = thread
        else:
            self._hint_runner()

    def _hint_runner(self) -> None:
        self._changed.notify_all()

    def _run(self) -> None:
        me, connection = threading.current_thread(), NotifyConnection(self._server)
        try:
            while self._wait_for_commits(me):
                time.sleep(_AFTER_COMMIT)
                pause = self._notify(connection)
                with self._changed:
                    self._changed.wait_for(lambda: self._runner is not me, pause)
        finally:
            self._end(me)
            connection.close()

    def _wait_for_commits(self, me: threading.Thread) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._runner is not me, _KEPT)
            return self._goes_on(me)


class TaskWaker(Notifier):
    """Notifies from a task, in the event loop of the first commit for as long as that loop runs."""

    def forget(self) -> None:
        super().forget()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hinted = asyncio.Event()

    def _hint(self) -> None:
        if not self._is_running():
            self._loop, self._hinted = asyncio.get_running_loop(), asyncio.Event()
            self._runner = self._loop.create_task(self._run(self._hinted))
        else:
            self._hint_runner()

    def _hint_runner(self) -> None:
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._hinted.set)

    def _is_running(self) -> bool:
        return super()._is_running() and self._loop is not None and self._loop.is_running()

    async def _run(self, hinted: asyncio.Event) -> None:
        from sqlalchemy.util import greenlet_spawn  # without greenlet the import fails

        connection = NotifyConnection(self._server)
        try:
            while await self._wait_for_commits(hinted):
                await asyncio.sleep(_AFTER_COMMIT)
                await asyncio.sleep(await greenlet_spawn(self._notify, connection))
        except GeneratorExit:  # the loop was closed: nothing can be awaited any more
            raise
        except BaseException:
            self._end(asyncio.current_task())
            await greenlet_spawn(connection.close)
            raise
        await greenlet_spawn(connection.close)

    async def _wait_for_commits(self, hinted: asyncio.Event) -> bool:
        me = asyncio.current_task()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KEPT):
                while not self._pending and self._runner is me:
                    hinted.clear()
                    await hinted.wait()
        return self._goes_on(me)


def _after_fork() -> None:
    global _lock
    # A thread that does not exist in the child may hold the parent's lock.
    _lock = threading.Lock()
    for waker in [*_wakers.values()]:
        waker.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
