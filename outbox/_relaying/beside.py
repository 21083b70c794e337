"""What a relay does beside sending: it moves delayed messages that are due, and forgets old records."""

import math
from collections.abc import Sequence

from sqlalchemy import Connection

from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.relaying import Relaying
from inbox_outbox_base.tables.times import NO_TIME
from outbox.schema import OutboxTables

_MOVED = 1_000


class Overtaken(Exception):
    """Somebody was quicker; nothing was written, and the next try will find it."""


def move_due(
    connection: Connection, database: Relaying, tables: OutboxTables, buckets: Sequence[int]
) -> float:
    """Move delayed messages whose time has come to the others; seconds until the next ones are due.

    Only those of the relay's own buckets: two relays that moved messages of one key could swap them.
    """
    due = database.due(connection, tables, buckets, _MOVED)
    if due:
        connection.execute(relaying_statements.add_due(tables), {"these": due})
        forget = relaying_statements.forget_delayed(tables)
        if connection.execute(forget, [{"id_": each} for each in due]).rowcount < len(due):
            raise Overtaken("somebody has dropped a delayed message that was about to be moved")
    if len(due) >= _MOVED:
        return 0.0
    found = connection.execute(relaying_statements.next_due(tables), {"these": buckets}).one()
    return math.inf if found.due in (None, NO_TIME) else max(0.0, (found.due - found.now).total_seconds())


def forget_sent(
    connection: Connection, database: Relaying, tables: OutboxTables, keep: float | None
) -> float:
    """Delete the oldest records of what was sent; 0 if there may be more to delete at once."""
    if keep is None:
        return math.inf
    old = connection.execute(relaying_statements.old_sent(tables), {"age": -keep, "limit": _MOVED}).all()
    if old:
        these = {"these": [row.id for row in old]}
        forgotten = connection.execute(relaying_statements.forget_sent(tables), these).rowcount
        own = [row.id for row in old if row.own_id]
        if own and forgotten < len(old):
            raise Overtaken("another relay has forgotten what was sent; its producer may use an id again")
        database.free_ids(connection, tables, own)
    return 0.0 if len(old) == _MOVED else math.inf
