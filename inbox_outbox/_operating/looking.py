"""Both overviews of a database."""

from sqlalchemy import Engine

import inbox
import outbox
from inbox import InboxOverview
from inbox.errors import TablesMissing
from outbox import OutboxOverview


def look(engine: Engine, schema: str | None) -> tuple[InboxOverview | None, OutboxOverview | None]:
    """The overviews; None for a half whose tables have not been made.

    Raises:
        TablesMissing: neither half has any.
    """
    missing: TablesMissing | None = None
    inbox_found = outbox_found = None
    try:
        inbox_found = inbox.overview(engine, schema=schema)
    except TablesMissing as error:
        missing = error
    try:
        outbox_found = outbox.overview(engine, schema=schema)
    except outbox.errors.TablesMissing:
        if missing is not None:
            raise missing from None
    return inbox_found, outbox_found
