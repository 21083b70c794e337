"""A relay's transactions, each tried again as long as that may help."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as SQLTimeoutError

from inbox import is_transient
from inbox_outbox_base.calls.retry import pauses
from inbox_outbox_base.errors.codes import code_of
from inbox_outbox_base.errors.login import is_refusal, refusal
from inbox_outbox_base.errors.outbox import DatabaseRefused
from inbox_outbox_base.errors.secrets import place, reason, remember
from inbox_outbox_base.transactions.connect import on_connection, transacted
from outbox._publishing.missing import raise_clearer
from outbox.schema import OutboxTables

from .beside import Overtaken

T = TypeVar("T")

_log = logging.getLogger("outbox.relay")

TROUBLE = (DBAPIError, SQLTimeoutError, OSError, Overtaken)
"""What a transaction may raise without being wrong."""
TRIES = 12
"""How often a transaction is tried where somebody waits for its end: about five seconds' worth."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a relay's transactions need of it."""

    committed: Callable[[Connection], object]
    """Called with the connection after each transaction that has committed."""
    is_stopped: Callable[[], bool]
    pause: Callable[[float], object]
    """Waits, but not for longer than until the relay is stopped."""
    aside: Callable[[Callable[[], Any]], Any]
    """Calls something that may block for some seconds."""


class Transactions:
    """Runs them."""

    def __init__(self, engine: Engine, tables: OutboxTables, relay: Surroundings) -> None:
        self._engine = engine
        self._tables = tables
        self._relay = relay
        self._has_connected = False
        remember(engine.url)
        self.place = place(engine.url)
        """Where the database is, for people to read."""

    def do(self, work: Callable[[Connection], T], tries: int | None) -> T:
        """Run one; transient errors are tried again, where `tries` is None until the relay is stopped.

        Raises:
            DatabaseRefused: nothing has been let in yet, and nothing will be.
        """
        while True:
            for pause in pauses(tries or TRIES):
                try:
                    return on_connection(self._engine, partial(self._once, work))
                except TROUBLE as error:
                    self._check_login(error)
                    if isinstance(error, DBAPIError) and not passes(error):
                        raise_clearer(self._engine, self._tables, error)
                    if self._relay.is_stopped() if tries is None else pause is None:
                        raise
                    if pause is None:
                        _log.warning("the database at %s does not answer: %s", self.place, reason(error))
                self._relay.pause(2.0 if pause is None else pause)

    def _once(self, work: Callable[[Connection], T], connection: Connection) -> T:
        self._has_connected = True
        result = transacted(connection, work)
        self._relay.committed(connection)
        return result

    def _check_login(self, error: Exception) -> None:
        """Once it has been let in, a relay waits until it is again: a password may just be changing."""
        if not self._has_connected and isinstance(error, DBAPIError):
            code = self._relay.aside(partial(refusal, error))
            if code is not None:
                raise DatabaseRefused(f"{self.place}: {reason(error)} ({code})") from error


def passes(error: Exception) -> bool:
    """Whether it is worth to try again: also when the pool is empty, the server full or another one's replica
    by now, a time limit of the role's has struck, or the password is not accepted any more."""
    if not isinstance(error, DBAPIError):
        return True
    code = code_of(error)
    is_full = isinstance(code, str) and code.startswith("53")
    return is_transient(error) or is_full or is_refusal(code)
