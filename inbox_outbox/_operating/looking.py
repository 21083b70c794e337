"""Both overviews of a database."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

import inbox
import outbox
from inbox import InboxOverview
from inbox.errors import TablesMissing, UnsafeDatabase
from inbox_outbox_base.errors import secrets
from inbox_outbox_base.errors.codes import is_denied, is_limited
from outbox import OutboxOverview

T = TypeVar("T")
Unseen = TablesMissing | UnsafeDatabase | DBAPIError


class Half(StrEnum):
    """What to look at, if not at both."""

    INBOX = "inbox"
    OUTBOX = "outbox"


@dataclass(slots=True)
class Halves:
    """The overviews; None for a half whose tables have not been made, that this role may not see, or that
    nobody asked for."""

    inbox: InboxOverview | None = None
    outbox: OutboxOverview | None = None
    unseen: tuple[str, ...] = ()
    """What this role may not see, or only in part, and what was not read in time."""
    late: tuple[Half, ...] = ()
    """What was not read in time."""


def look(
    engine: Engine, schema: str | None, only: Half | None = None, *, into: Halves | None = None
) -> Halves:
    """Look at both halves, or at one. If the server ends a statement about one because it takes too long, the
    other is returned.

    Args:
        into: gets each half as soon as it has been read.

    Raises:
        TablesMissing, UnsafeDatabase, sqlalchemy.exc.DBAPIError: nothing of it can be seen.
    """
    errors: list[tuple[Half, Unseen]] = []
    found = into or Halves()
    if only is not Half.OUTBOX:
        found.inbox = _seen(Half.INBOX, lambda: inbox.overview(engine, schema=schema), errors)
    if only is not Half.INBOX:
        found.outbox = _seen(Half.OUTBOX, lambda: outbox.overview(engine, schema=schema), errors)
    if found.inbox is None and found.outbox is None:
        raise next((each for _, each in errors if is_limited(each)), errors[0][1])
    hidden = [(half, each) for half, each in errors if not isinstance(each, TablesMissing)]
    found.late = tuple(half for half, each in hidden if is_limited(each))
    found.unseen = tuple(
        not_in_time(half) if half in found.late else f"not seen: {secrets.reason(each)}"
        for half, each in hidden
    )
    return found


def not_in_time(half: Half) -> str:
    """Says that a half is left out."""
    return f"the {half} was not read in time, and is left out"


def _seen(half: Half, overview: Callable[[], T], errors: list[tuple[Half, Unseen]]) -> T | None:
    try:
        return overview()
    except (TablesMissing, UnsafeDatabase, DBAPIError) as error:
        if isinstance(error, DBAPIError) and not (is_denied(error) or is_limited(error)):
            raise
        errors.append((half, error))
        return None
