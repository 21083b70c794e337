"""Purges again and again, in one process at a time."""

import logging
import time
from datetime import timedelta

from sqlalchemy import Engine

from inbox_outbox_base.calls.signals import SignalSafeEvent
from inbox_outbox_base.checks import options
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.monitoring.events import Hooks
from inbox_outbox_base.tables.inbox import tables
from inbox_outbox_base.words.counted import counted

from .purge import Purged, purge
from .purge_turns import PurgeTurns
from .purging import PurgeRun

__all__ = ["PurgeService", "Purged", "purge"]

_log = logging.getLogger("inbox.purge")
_RENEWED = 60.0
"""Seconds between signs of life."""
_SOON = 60.0
"""The most seconds until the next look after an error."""


class _ToldToStop(Exception):
    """The purge ends after its batch."""


class PurgeService:
    """Purges the rows of all consumers every so often, until it is stopped.

    Of all processes that do so on a database, one purges at a time, and they share the times: the table
    `inbox_purge` says when the last such purge began, and until when it counts as running. If a process dies
    or is stopped while it purges, another one goes on. A purge that fails is logged as an ERROR and counted,
    and the next one comes at its time.

    Args:
        engine: the Engine of the inbox's database.
        every: the time from the begin of a purge to that of the next one, in seconds or as `timedelta`.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
    """

    def __init__(self, engine: Engine, every: float | timedelta, *, schema: str | None = None) -> None:
        self._every = options.seconds("every", every, positive=True)
        self._engine, self._schema, all_tables = engine, schema, tables(schema)
        self._run = PurgeRun(engine, all_tables, 1, None, self._rest, None, Hooks(None), override=False)
        self._turns = PurgeTurns(all_tables.purge, self._run.transact, self._every)
        self._wake = SignalSafeEvent()
        self._is_stopping = False
        self.purges = 0
        """Those that have ended normally."""
        self.rows = 0
        """Messages that were deleted."""
        self.failures = 0
        """Purges that have failed, and looks at the database."""

    def check(self) -> None:
        """Check that it can purge, by the statements of a purge on no row.

        Raises:
            TablesMissing: the tables do not exist.
            UnsafeDatabase: row-level policies hide rows from this role.
            sqlalchemy.exc.DBAPIError: the role has no right to purge, or the database does not answer.
        """
        self._run.find_tables()
        self._run.check_sees_all()
        self._run.try_rights()
        self._turns.check()

    def run(self) -> None:
        """Purge until `stop` is called; then end after the batch that is running."""
        while not self._is_stopping:
            self._wake.wait(self._turn())

    def stop(self) -> None:
        """Let `run` end. Any thread and any signal handler may call it."""
        self._is_stopping = True
        self._wake.set()

    def _turn(self) -> float:
        """Purge, if it is time; the seconds until the next look."""
        try:
            if not (wait := self._turns.begin()):
                self._purge()
        except _ToldToStop:
            return 0.0
        except Exception as error:  # noqa: BLE001 - the next one may succeed
            self.failures += 1
            _log.error("purge failed; the next one comes at its time: %s", reason(error))
            return min(self._every, _SOON)
        return wait

    def _purge(self) -> None:
        before = self.rows
        renewed = time.monotonic()

        def progress(done: Purged) -> None:
            nonlocal renewed
            self.rows = before + done.rows
            if time.monotonic() - renewed > _RENEWED:
                renewed = time.monotonic()
                self._turns.renew()
            self._rest(0)

        try:
            done = purge(self._engine, schema=self._schema, progress=progress, sleep=self._rest)
        except _ToldToStop:
            self._turns.give_up()
            raise
        except Exception:
            self._turns.end(self.rows - before, finished=False)
            raise
        self._turns.end(done.rows, finished=done.finished)
        self.purges += 1
        _log.info("purged %s in %.1f s", counted(done.rows, "message"), done.seconds)

    def _rest(self, seconds: float) -> None:
        """Wait, unless it is told to stop.

        Raises:
            _ToldToStop: it is.
        """
        if seconds and not self._is_stopping:
            self._wake.wait(seconds)
        if self._is_stopping:
            raise _ToldToStop
