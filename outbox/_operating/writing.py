"""Writes that several decisions share."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Delete, Row, Update

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.errors.outbox import MessageNotFound, WrongState
from outbox._publishing.buckets import newest
from outbox._waking.hints import ANY, notify
from outbox.schema import OutboxTables

from . import statements


def find(connection: Connection, tables: OutboxTables, message_id: str) -> Row[Any]:
    """A message in any state.

    Raises:
        MessageNotFound: there is none with this id.
    """
    given = {"id_": outbox_options.text("message_id", message_id, 255)}
    # Dead and delayed messages have an index by id; any other may cost a scan of the whole table.
    for statement in (statements.find_aside(tables), statements.find(tables)):
        found = connection.execute(statement, given).first()
        if found is not None:
            return found
    raise MessageNotFound(f"the outbox has no message {message_id!r}; it may have been sent")


def change(connection: Connection, statement: Update | Delete, message: Row[Any]) -> None:
    """Change a message that waits for a relay.

    Raises:
        WrongState: it has changed since it was read.
    """
    place = {"bucket_": message.bucket, "sequence_": message.sequence, "id_": message.id}
    if connection.execute(statement, place).rowcount != 1:
        raise changed(message.id)


def changed(message_id: str) -> WrongState:
    """Somebody else was faster."""
    return WrongState(f"id={message_id!r}: it has just been changed; look at it again")


def lock_letter(connection: Connection, tables: OutboxTables, message_id: str) -> Row[Any]:
    """Lock the dead letter that has this id now: since one was read, others may have retried or dropped it,
    and used its id again.

    Raises:
        WrongState: there is none any more.
    """
    these = {"these": [message_id]}
    connection.execute(statements.lock_dead(tables), these)
    letter = connection.execute(statements.still_dead(tables), these).first()
    if letter is None:
        raise changed(message_id)
    return letter


def revive(connection: Connection, tables: OutboxTables, letters: Sequence[Row[Any]]) -> None:
    """Make dead letters, which this transaction has locked, messages again, in newly computed buckets: the
    number of buckets may have changed."""
    bucket_of = newest(connection, tables).bucket_of
    given = [{"id_": letter.id, "bucket_": bucket_of(letter.key or letter.id)} for letter in letters]
    connection.execute(statements.revive(tables), given)
    these = {"these": [letter.id for letter in letters]}
    if connection.execute(statements.forget_dead(tables), these).rowcount != len(letters):
        raise changed(letters[0].id)
    notify(connection, ANY, tables.message.schema)


def let_go(connection: Connection, tables: OutboxTables, messages: Sequence[Row[Any]]) -> None:
    """After messages were deleted: release the ids that producers chose, so that they can be used again, and
    let the audit know that it cannot count these messages."""
    database = relaying(connection.dialect.name, tables)
    database.free_ids(connection, [each.id for each in messages])
    database.note_gone(connection, {each.topic for each in messages})
