"""A relay's chores: moving delayed messages that are due, and deleting old records of sent messages."""

import math
from collections.abc import Sequence

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.relaying import Relaying
from inbox_outbox_base.tables.outbox import OutboxTables
from inbox_outbox_base.tables.times import NO_TIME

from .refusals import Refusals, write_apart

_MOVED = 1_000
_MOST_REFUSED = 10
"""Once this many messages are refused, the others wait for the next try, since each may use up a number."""


class Overtaken(Exception):
    """Another process changed the rows first; nothing was written, and a retry sees its change."""


def move_due(
    connection: Connection, database: Relaying, buckets: Sequence[int], *, apart: Refusals | None = None
) -> float:
    """Move delayed messages that are due to the messages that can be sent; return the seconds until the next
    one is due.

    It moves only those of the relay's own buckets: two relays moving messages of one key could swap them.
    With `apart`, those that the database refuses stay, and `apart` has its error.
    """
    tables = database.tables
    due = database.due(connection, buckets, _MOVED)
    if apart is not None:
        apart.has(_move_apart(connection, tables, due), "that due delayed messages are moved")
        if apart.error is not None:
            return apart.seconds()
    elif due:
        _move(connection, tables, due)
    if len(due) >= _MOVED:
        return 0.0
    found = connection.execute(relaying_statements.next_due(tables), {"these": buckets}).one()
    return math.inf if found.due in (None, NO_TIME) else max(0.0, (found.due - found.now).total_seconds())


def _move_apart(connection: Connection, tables: OutboxTables, due: Sequence[str]) -> DBAPIError | None:
    """Move those that the database takes, but none behind another of its key; return the error of the last
    other one."""
    keys: dict[str, str | None] = {}
    if due:
        found = connection.execute(relaying_statements.keys_delayed(tables), {"these": due})
        keys = {row.id: row.key for row in found}
    left, last = set[str](), None

    def move(ids: Sequence[str]) -> None:
        free = [each for each in ids if keys.get(each) not in left]
        if free:
            _move(connection, tables, free)

    number = 0
    for refused, error in write_apart(connection, due, move):
        if error is not None:
            last, number = error, number + 1
            left.update(key for each in refused if (key := keys.get(each)) is not None)
            if number == _MOST_REFUSED:
                break
    return last


def _move(connection: Connection, tables: OutboxTables, ids: Sequence[str]) -> None:
    connection.execute(relaying_statements.add_due(tables), {"these": ids})
    forget = relaying_statements.forget_delayed(tables)
    if connection.execute(forget, [{"id_": each} for each in ids]).rowcount < len(ids):
        raise Overtaken("a delayed message was dropped before it could be moved")


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
