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
from inbox_outbox_base.errors.codes import is_denied
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
    """What this role may not see, or only in part."""


def look(engine: Engine, schema: str | None, only: Half | None = None) -> Halves:
    """Look at both halves, or at one.

    Raises:
        TablesMissing, UnsafeDatabase, sqlalchemy.exc.DBAPIError: nothing of it can be seen.
    """
    errors: list[Unseen] = []
    found = Halves()
    if only is not Half.OUTBOX:
        found.inbox = _seen(lambda: inbox.overview(engine, schema=schema), errors)
    if only is not Half.INBOX:
        found.outbox = _seen(lambda: outbox.overview(engine, schema=schema), errors)
    if found.inbox is None and found.outbox is None:
        raise errors[0]
    hidden = (each for each in errors if not isinstance(each, TablesMissing))
    found.unseen = tuple(f"not seen: {secrets.reason(each)}" for each in hidden)
    return found


def _seen(overview: Callable[[], T], errors: list[Unseen]) -> T | None:
    try:
        return overview()
    except (TablesMissing, UnsafeDatabase, DBAPIError) as error:
        if isinstance(error, DBAPIError) and not is_denied(error):
            raise
        errors.append(error)
        return None
