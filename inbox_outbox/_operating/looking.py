"""Both overviews of a database."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

import inbox
import outbox
from inbox import InboxOverview
from inbox.errors import TablesMissing
from inbox_outbox_base.errors import secrets
from inbox_outbox_base.errors.codes import is_denied
from outbox import OutboxOverview

T = TypeVar("T")


@dataclass(slots=True)
class Halves:
    """The overviews; None for a half whose tables have not been made, or that this role may not see."""

    inbox: InboxOverview | None = None
    outbox: OutboxOverview | None = None
    unseen: tuple[str, ...] = ()
    """What this role may not see."""


def look(engine: Engine, schema: str | None) -> Halves:
    """Look at both halves.

    Raises:
        TablesMissing, sqlalchemy.exc.DBAPIError: neither half can be seen.
    """
    errors: list[TablesMissing | DBAPIError] = []
    found = Halves(
        _seen(lambda: inbox.overview(engine, schema=schema), errors),
        _seen(lambda: outbox.overview(engine, schema=schema), errors),
    )
    if found.inbox is None and found.outbox is None:
        raise errors[0]
    denied = (each for each in errors if isinstance(each, DBAPIError))
    found.unseen = tuple(f"not seen: {secrets.reason(each)}" for each in denied)
    return found


def _seen(overview: Callable[[], T], errors: list[TablesMissing | DBAPIError]) -> T | None:
    try:
        return overview()
    except (TablesMissing, DBAPIError) as error:
        if isinstance(error, DBAPIError) and not is_denied(error):
            raise
        errors.append(error)
        return None
