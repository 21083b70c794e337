"""A relay's transactions, each retried while a retry may help."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, NullPool
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as SQLTimeoutError

from inbox import is_transient
from inbox_outbox_base.calls.retry import pauses
from inbox_outbox_base.errors.codes import is_refusal, refusal
from inbox_outbox_base.errors.outbox import DatabaseRefused, UnusableConnection
from inbox_outbox_base.errors.secrets import place, reason, remember
from inbox_outbox_base.transactions.connect import on_connection, transacted
from outbox._publishing.missing import raise_clearer
from outbox.schema import OutboxTables

from .chores import Overtaken

T = TypeVar("T")

_log = logging.getLogger("outbox.relay")

TROUBLE = (DBAPIError, SQLTimeoutError, OSError, Overtaken)
"""Errors of a transaction that are not bugs."""
TRIES = 12
"""How often a transaction is tried while a caller waits for it: about five seconds."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The functions of the relay that its transactions call."""

    committed: Callable[[Connection], object]
    """Called with the connection after each commit."""
    is_stopped: Callable[[], bool]
    pause: Callable[[float], object]
    """Waits for some seconds, or until the relay is stopped."""
    aside: Callable[[Callable[[], Any]], Any]
    """Calls a function that may block for some seconds."""
    remembers: Callable[[], bool]
    """Whether the relay remembers messages, which a new connection would make it forget."""


class Transactions:
    """Runs a relay's transactions."""

    def __init__(self, engine: Engine, tables: OutboxTables, relay: Surroundings) -> None:
        self._engine = engine
        self._tables = tables
        self._relay = relay
        self._has_connected = False
        self._kept: list[Connection] | None = [] if isinstance(engine.pool, NullPool) else None
        remember(engine.url)
        self.place = place(engine.url)
        """Where the database is, for people to read."""
        self.trouble: str | None = None
        """Why the last transaction has failed; None if it has committed."""

    def do(self, work: Callable[[Connection], T], tries: int | None, *, is_round: bool = False) -> T:
        """Run one transaction; retry transient errors `tries` times, or until the relay stops if None.

        With a `NullPool`, the relay's rounds keep their connection while the relay remembers messages.

        Raises:
            DatabaseRefused: the server rejects the login, and has never accepted it.
            UnusableConnection: a setting of its connections would damage messages.
        """
        while True:
            for pause in pauses(tries or TRIES):
                try:
                    return on_connection(
                        self._engine,
                        partial(self._once, work),
                        UnusableConnection,
                        kept=self._kept if is_round else None,
                        keeps=self._relay.remembers,
                    )
                except TROUBLE as error:
                    self.trouble = reason(error)
                    self._check_login(error)
                    if isinstance(error, DBAPIError) and not passes(error):
                        raise_clearer(self._engine, self._tables, error)
                    # A relay without a limit gives up only when it is stopped.
                    if self._relay.is_stopped() if tries is None else pause is None:
                        raise
                    if pause is None:
                        _log.warning("the database at %s does not answer: %s", self.place, reason(error))
                self._relay.pause(2.0 if pause is None else pause)

    def close(self) -> None:
        """Close the connection that was kept."""
        while self._kept:
            self._kept.pop().close()

    def _once(self, work: Callable[[Connection], T], connection: Connection) -> T:
        self._has_connected = True
        result = transacted(connection, work)
        self.trouble = None
        self._relay.committed(connection)
        return result

    def _check_login(self, error: Exception) -> None:
        """After a first successful login, a relay retries rejected ones: a password may just be changing."""
        if not self._has_connected and isinstance(error, DBAPIError):
            code = self._relay.aside(partial(refusal, error))
            if code is not None:
                raise DatabaseRefused(f"{self.place}: {reason(error)} ({code})") from error


def passes(error: Exception) -> bool:
    """Whether a retry may help. It may also help if the pool is empty, the server is full or has become a
    replica, a time limit of the role was exceeded, or the password is no longer accepted."""
    return not isinstance(error, DBAPIError) or is_transient(error) or is_refusal(error)
