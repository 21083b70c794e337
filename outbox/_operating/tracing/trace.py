"""Where messages are, and why they wait."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Connection,
    Engine,
    Integer,
    Row,
    Select,
    Table,
    bindparam,
    select,
    union_all,
)

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.checks.options import MOST_ROWS
from inbox_outbox_base.databases.registry import looking
from inbox_outbox_base.errors.outbox import InvalidOption, MessageNotFound
from inbox_outbox_base.tables.times import readable
from outbox._operating import seeing, statements
from outbox._operating.peek import aside, in_line, viewed
from outbox._operating.stored_message import MessageState, StoredMessage
from outbox._operating.transact import transact
from outbox._operating.writing import find
from outbox._publishing.buckets import generations
from outbox.schema import OutboxTables, tables

from .reasons import Reasons


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """A message of the outbox, and why it has not left."""

    message: StoredMessage
    bucket: int
    why: str
    """Why it is not sent now, as a sentence without a full stop."""
    behind: str | None
    """The id of the message of its key that must leave before it, if that is why."""
    seen: str
    """Names it, as it is, for `retry_all` and `drop_all`."""


@dataclass(frozen=True, slots=True)
class SentRecord:
    """The record of a message that a relay with `keep_sent` has sent."""

    id: str
    topic: str
    key: str | None
    created_at: datetime
    sent_at: datetime
    keep_until: datetime
    """When the record may be deleted."""


def trace(
    engine: Engine,
    *,
    message_id: str | None = None,
    key: str | None = None,
    limit: int = 20,
    schema: str | None = None,
) -> list[TracedMessage]:
    """Find a message by its id, or the messages of a key, and say why each waits. Changes nothing.

    By key, it reads the key's bucket and the dead messages by an index, and all delayed messages. Only dead
    and delayed messages have an index by id; to find another one, the whole outbox may be read.

    Args:
        engine: the Engine of the outbox's database.
        message_id: the id that `Outbox.publish` returned.
        key: the messages' key; one of the two is needed.
        limit: the most messages of a key: first of those that wait for a relay, in their order, then of the
            delayed and of the dead ones.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    _check_one(message_id, key, limit)
    all_tables = tables(schema)

    def read(connection: Connection) -> list[TracedMessage]:
        rows = [*_rows(connection, all_tables, message_id, key, limit)]
        if not rows:
            return []
        reasons = Reasons(connection, all_tables)
        return [_traced(row, table, state, reasons) for row, table, state in rows]

    return transact(engine, all_tables, read)


def sent_messages(
    engine: Engine,
    *,
    message_id: str | None = None,
    key: str | None = None,
    limit: int = 20,
    schema: str | None = None,
) -> list[SentRecord]:
    """The records of sent messages, the newest first. Only relays with `keep_sent` keep any. By key, all
    records may be read.

    Args:
        engine: the Engine of the outbox's database.
        message_id: the message's id.
        key: the messages' key; one of the two is needed.
        limit: the most records.
        schema: the PostgreSQL schema of the tables.

    Raises the errors of `trace`.
    """
    _check_one(message_id, key, limit)
    all_tables = tables(schema)
    given = {"limit": limit, "given": message_id if key is None else key}
    statement = _sent(all_tables, "id" if key is None else "key")

    def read(connection: Connection) -> list[SentRecord]:
        return [SentRecord(**row) for row in connection.execute(statement, given).mappings()]

    return transact(engine, all_tables, read, [all_tables.sent])


def read_payload(
    engine: Engine, message_id: str, *, key: str | None = None, schema: str | None = None
) -> bytes | None:
    """The payload of a message that has not left, as it was published. Changes nothing.

    It reads the bucket that the message has in each generation, by an index, and the delayed and dead
    messages by theirs. It does not find a message in a bucket of which relays know nothing.

    Args:
        engine: the Engine of the outbox's database.
        message_id: the id that `Outbox.publish` returned.
        key: the message's key; None if it has none.
        schema: the PostgreSQL schema of the tables.

    Returns:
        The bytes; None if there is no such message.

    Raises the errors of `trace`.
    """
    outbox_options.text("message_id", message_id, 255)
    outbox_options.key(key)
    all_tables = tables(schema)

    def read(connection: Connection) -> bytes | None:
        buckets = [each.bucket_of(key or message_id) for each in generations(connection, all_tables)]
        given = {"id_": message_id, "buckets": buckets}
        found: bytes | None = connection.execute(_payload(all_tables), given).scalar()
        return found

    return transact(engine, all_tables, read)


def _check_one(message_id: str | None, key: str | None, limit: int) -> None:
    if (message_id is None) == (key is None):
        raise InvalidOption("message_id, key: expected one of the two")
    if key is None:
        outbox_options.text("message_id", message_id, 255)
    outbox_options.key(key)
    outbox_options.count("limit", limit, largest=MOST_ROWS)


_Found = tuple[Row[Any], Table, MessageState | None]
"""A row, its table, and the state that all rows of this table have."""


def _rows(
    connection: Connection, tables: OutboxTables, message_id: str | None, key: str | None, limit: int
) -> Iterator[_Found]:
    if key is not None:
        yield from _of_key(connection, tables, key, limit)
        return
    try:
        place = find(connection, tables, message_id or "")
    except MessageNotFound:
        return
    state = MessageState(place.state)
    table = seeing.table_of(tables, state)
    given = {"limit": 1, "id_": place.id, "bucket_": place.bucket, "sequence_": place.sequence}
    row = connection.execute(_one(table), given).first()
    if row is not None:  # else it has just left
        yield row, table, None if table is tables.message else state


def _of_key(connection: Connection, tables: OutboxTables, key: str, limit: int) -> Iterator[_Found]:
    given = {"limit": limit, "key_": key}
    asides: list[_Found] = []
    for state in (MessageState.DELAYED, MessageState.DEAD):
        table = seeing.table_of(tables, state)
        rows = connection.execute(aside(tables, state, "key"), given)
        asides += [(row, table, state) for row in rows]
    looking(connection.dialect.name).prepare(connection)  # from here on, what an index can answer is asked
    for row in in_line(connection, tables, None, {"key": key}, given):
        yield row, tables.message, None
    yield from asides


def _traced(row: Row[Any], table: Table, state: MessageState | None, reasons: Reasons) -> TracedMessage:
    message = StoredMessage.of(row, str(getattr(row, "state", state)))
    why, behind = reasons.of(message, row)
    return TracedMessage(message, row.bucket, why, behind, seeing.pack(state, [seeing.seen_of(row, table)]))


@cache
def _one(table: Table) -> Select[Any]:
    """One message, by its place or its id."""
    c = table.c
    found = viewed(table, ())
    if table.name != "outbox_message":
        return found.add_columns(*([c.error] if "error" in c else [])).where(c.id == bindparam("id_"))
    found = found.add_columns(c.sequence, c.error, statements.state_of(table).label("state"))
    return found.where(c.bucket == bindparam("bucket_"), c.sequence == bindparam("sequence_"))


@cache
def _payload(tables: OutboxTables) -> CompoundSelect[Any]:
    """A message's payload, wherever it is: one statement, which sees it in one place."""
    found = []
    for table in (tables.message, tables.delayed, tables.dead):
        one = select(table.c.payload).where(table.c.id == bindparam("id_", type_=table.c.id.type))
        if table is tables.message:
            one = one.where(table.c.bucket.in_(bindparam("buckets", expanding=True)))
        found.append(one)
    return union_all(*found)


@cache
def _sent(tables: OutboxTables, by: str) -> Select[Any]:
    """The newest records with this id or key."""
    c = tables.sent.c
    times = (readable(c[name]).label(name) for name in ("created_at", "sent_at", "keep_until"))
    found = select(c.id, c.topic, c.key, *times)
    found = found.where(c[by] == bindparam("given", type_=c[by].type))
    return found.order_by(c.sent_at.desc()).limit(bindparam("limit", type_=Integer))
