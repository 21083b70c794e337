"""A relay's chores: moving delayed messages that are due, and deleting old records of sent messages."""

import math
from collections.abc import Sequence

from sqlalchemy import Connection

from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.relaying import Relaying
from inbox_outbox_base.tables.times import NO_TIME

_MOVED = 1_000


class Overtaken(Exception):
    """Another process changed the rows first; nothing was written, and a retry sees its change."""


def move_due(connection: Connection, database: Relaying, buckets: Sequence[int]) -> float:
    """Move delayed messages that are due to the messages that can be sent; return the seconds until the next
    one is due.

    It moves only those of the relay's own buckets: two relays moving messages of one key could swap them.
    """
    tables = database.tables
    due = database.due(connection, buckets, _MOVED)
    if due:
        connection.execute(relaying_statements.add_due(tables), {"these": due})
        forget = relaying_statements.forget_delayed(tables)
        if connection.execute(forget, [{"id_": each} for each in due]).rowcount < len(due):
            raise Overtaken("a delayed message was dropped before it could be moved")
    if len(due) >= _MOVED:
        return 0.0
    found = connection.execute(relaying_statements.next_due(tables), {"these": buckets}).one()
    return math.inf if found.due in (None, NO_TIME) else max(0.0, (found.due - found.now).total_seconds())


def forget_sent(connection: Connection, database: Relaying) -> float:
    """Delete records of sent messages whose time is over; return 0 if there may be more to delete now."""
    tables = database.tables
    old = connection.execute(relaying_statements.old_sent(tables), {"limit": _MOVED}).all()
    if old:
        these = {"these": [row.id for row in old]}
        forgotten = connection.execute(relaying_statements.forget_sent(tables), these).rowcount
        own = [row.id for row in old if row.own_id]
        if own and forgotten < len(old):
            raise Overtaken(
                "another relay has already deleted records of sent messages, so their ids can be used again"
            )
        database.free_ids(connection, own)
    return 0.0 if len(old) == _MOVED else math.inf
