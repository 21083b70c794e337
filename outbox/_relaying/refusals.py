"""Writes that the database refuses: a constraint or a trigger forbids a row, or a partition is missing. They
are tried again later, and apart from others."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from inbox import Backoff
from inbox_outbox_base.databases.registry import checking
from inbox_outbox_base.errors.codes import refuses_row
from inbox_outbox_base.errors.secrets import reason

T = TypeVar("T")

_log = logging.getLogger("outbox.relay")

_BACKOFF = Backoff(longest=10)
_MINUTE = 60.0


class Refusals:
    """One kind of writes: whether the database refuses some, and when they are tried again."""

    def __init__(self) -> None:
        self.error: DBAPIError | None = None
        """Why the last one was refused; None if the database takes them."""
        self._times = 0
        self._at = math.inf
        self._next_complaint = -math.inf

    def seconds(self) -> float:
        """Seconds until they are tried again; infinite if there are none."""
        return max(0.0, self._at - time.monotonic())

    @property
    def is_waiting(self) -> bool:
        """Whether some were refused, and it is too early to try again."""
        return self.error is not None and time.monotonic() < self._at

    def has(self, error: DBAPIError | None, what: str = "") -> None:
        """Note how a try has ended; log, at most once a minute, that some were refused."""
        self.error = error
        if error is None:
            self._times, self._at = 0, math.inf
            return
        now = time.monotonic()
        self._times += 1
        self._at = now + _BACKOFF.delay(self._times)
        if now >= self._next_complaint:
            self._next_complaint = now + _MINUTE
            _log.error("the database refuses %s, retrying: %s", what, reason(error))


def refusal(connection: Connection, write: Callable[[], object]) -> DBAPIError | None:
    """Call `write` in a savepoint; if the database refuses a row, undo all of it and return the error."""
    savepoint = connection.begin_nested()
    try:
        write()
        checking(connection.dialect.name).run_at_once(connection)
    except DBAPIError as error:
        if not refuses_row(error):
            raise  # some of these have undone the transaction, and with it the savepoint
        savepoint.rollback()
        return error
    savepoint.commit()
    return None


def write_apart(
    connection: Connection, items: Sequence[T], write: Callable[[Sequence[T]], object]
) -> Iterator[tuple[Sequence[T], DBAPIError | None]]:
    """Write all of these in their order, if needed in smaller and smaller parts; yield each part that is
    written, and each one that is refused, with the error, before those behind it are tried."""
    error = refusal(connection, lambda: write(items)) if items else None
    if error is None or len(items) == 1:
        yield items, error
    else:
        half = len(items) // 2
        yield from write_apart(connection, items[:half], write)
        yield from write_apart(connection, items[half:], write)
