"""Wake-up beyond a process: after a commit, one NOTIFY for all the messages of some milliseconds.

It is sent from a connection of its own, never inside the writer's transaction: there it would make all
commits take turns (measured: a third to a half of the rate). So it may come before the commit that it tells
of is visible, and a relay that was woken looks several times.
"""

import asyncio
import logging
import threading
import time
import weakref
from typing import Any

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from inbox._connect import root

from . import _bells

CHANNEL = "inbox_outbox"
"""PostgreSQL's channel; the payload is the schema of the tables."""

_MARK = "outbox: messages were written in the transaction at hand"
_AFTER_COMMIT, _BETWEEN = 0.001, 0.02
"""Seconds for a commit to end, and between two notifications: relays look several times after each."""
_KEPT = 1.0
"""Seconds for which the thread waits for the next commit."""

_log = logging.getLogger("outbox.wake")
_wakers: "weakref.WeakKeyDictionary[Engine, Waker]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def mark(connection: Connection, schema: str | None) -> None:
    """Messages were written in the transaction on this connection: when it commits, wake the relays."""
    engine = root(connection.engine)
    if engine not in _wakers:
        with _lock:
            if engine not in _wakers:
                _wakers[engine] = Waker(engine)
    connection.info.setdefault(_MARK, set()).add(schema)


class Waker:
    """Wakes the relays of one database after the commits of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._url = engine.url
        self._notifies = engine.dialect.name == "postgresql"
        self._is_async = engine.dialect.is_async
        self._schemas: set[str | None] = set()
        self._hinted = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        event.listen(engine, "commit", self._committing)
        event.listen(engine, "commit_twophase", self._committing)
        event.listen(engine, "rollback", self._rolled_back)
        event.listen(engine, "engine_disposed", self._disposed)

    def _committing(self, connection: Connection, *_: object) -> None:
        """SQLAlchemy says so right before it commits."""
        schemas = connection.info.pop(_MARK, None)
        if schemas is None:
            return
        try:
            self._tell(schemas)
        except Exception as error:  # noqa: BLE001 - no thread can begin, say: the commit goes on
            _log.warning("relays could not be woken: %s", type(error).__name__)

    def _tell(self, schemas: set[str | None]) -> None:
        for schema in schemas:
            _bells.ring((self._url, schema))
        if self._notifies:
            self._schemas |= schemas
            if self._is_async:
                self._begin_task()
            else:
                self._begin_thread()

    def _rolled_back(self, connection: Connection) -> None:
        if not connection.invalidated:  # then the mark is gone with what lay behind it
            connection.info.pop(_MARK, None)

    def _disposed(self, engine: Engine) -> None:
        """Do not connect again: nobody would dispose of that connection."""
        self._schemas = set()

    def _taken(self) -> list[str]:
        """The schemas in which messages were committed since the last call."""
        schemas, self._schemas = self._schemas, set()
        return [schema or "" for schema in schemas]

    def _begin_thread(self) -> None:
        self._hinted.set()
        if self._thread is None or not self._thread.is_alive():
            with _lock:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._run, name="outbox wake-up", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        """Until there has been no commit for a while."""
        while self._hinted.wait(_KEPT):
            time.sleep(_AFTER_COMMIT)
            self._hinted.clear()
            engine, schemas = self._engine(), self._taken()
            if engine is None:
                return
            try:
                if schemas:
                    self._notify(engine, schemas)
            except SQLAlchemyError as error:
                _log.warning("relays of other processes could not be woken: %s", type(error).__name__)
            del engine
            time.sleep(_BETWEEN)

    def _notify(self, engine: Engine, schemas: list[str]) -> None:
        """An engine that is disposed of meanwhile has another pool then, and keeps no connection of ours: not
        in that one, nor in the former one, which takes back what is closed too late."""
        pool = engine.pool
        try:
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                try:
                    for schema in schemas:
                        connection.execute(_NOTIFY, {"channel": CHANNEL, "schema": schema})
                finally:
                    if engine.pool is not pool:
                        connection.invalidate()
        finally:
            if engine.pool is not pool:
                pool.dispose()

    def _begin_task(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run_task())

    async def _run_task(self) -> None:
        """Until no commit has come in the meantime."""
        while self._schemas:
            await asyncio.sleep(_AFTER_COMMIT)
            engine, schemas = self._engine(), self._taken()
            if engine is None:
                return
            try:
                if schemas:
                    await self._notify_async(engine, schemas)
            except SQLAlchemyError as error:
                _log.warning("relays of other processes could not be woken: %s", type(error).__name__)
            del engine
            await asyncio.sleep(_BETWEEN)

    async def _notify_async(self, engine: Engine, schemas: list[str]) -> None:
        from sqlalchemy.util import greenlet_spawn  # without greenlet the import fails

        await greenlet_spawn(self._notify, engine, schemas)


_NOTIFY: Any = text("SELECT pg_notify(:channel, :schema)")
