"""Messages published on an ORM Session: staged, and written last.

They are written right before the COMMIT, when the transaction holds the locks of its business rows: if two
transactions change the same row, their messages have the order of the changes. The connection knows when the
COMMIT comes: after the session's own events, flushes and other listeners may still publish. It also knows
when a savepoint is rolled back, the session's or another one.
"""

from collections.abc import Callable

from sqlalchemy import Connection

from inbox_outbox_base.errors.outbox import TransactionEnded
from inbox_outbox_base.transactions import unwritten
from inbox_outbox_base.transactions.owed import Owed
from inbox_outbox_base.transactions.savepoints import innermost
from inbox_outbox_base.words.outgoing import Draft

Write = Callable[[Connection, list[Draft]], None]


def stage(connection: Connection, drafts: list[Draft], write: Write, savepoint: int | None = None) -> None:
    """Stage messages until the connection commits; rolling back the savepoint removes them. The savepoint is
    the innermost one, unless its number is given."""
    if not drafts:
        return
    if savepoint is None:
        savepoint = innermost(connection)
    why = "only the Session's own commit writes it"
    owed = Owed(named(drafts), TransactionEnded, TransactionEnded, why, savepoint, write=write, rows=drafts)
    unwritten.owe(connection, owed)


def named(drafts: list[Draft]) -> str:
    """For an error about this call."""
    return f"publish of message {drafts[0].row['id']}"
