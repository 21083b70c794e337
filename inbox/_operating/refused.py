"""Which messages were refused."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, Connection, Engine, Select, Table, bindparam, select
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.missing import is_there, raise_clearer
from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.tables.inbox import Tables, tables
from inbox_outbox_base.transactions.connect import connected
from inbox_outbox_base.transactions.safety import check_sees_all
from inbox_outbox_base.words.deciding import Listing

from . import overview_statements
from .dismissing import REJECTED, SeenRefusal, pack


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """The refusals of one key."""

    consumer: str
    key: str | None
    """As it is stored; None for all messages together whose key cannot be had (it has none, or `key=` or
    another function of the handler fails), and for those that a consumer has refused beyond its first 10,000
    keys, or a process beyond a thousand within a second."""
    kind: str
    """The last verdict: "mismatch", "too_old" or "dead" (a listener has given up a message of the
    exactly-once path). "rejected": the target of a bulk writer refused the row."""
    digest: str | None
    """Hexadecimal digest of the payload that was delivered last, if one was given."""
    stored_digest: str | None
    """For a mismatch: that of the payload with which the key was taken."""
    error: str | None
    """For a dead message, the handler's last error; for a rejected row, why it was refused."""
    message_id: str | None
    """Of the last message, as `topic` and `place`, if a consumer or a listener of ours decided about it."""
    topic: str | None
    place: str | None
    """Where the broker had it: a queue, or topic, partition and offset; for a row, run, batch and part."""
    times: int
    """How many messages were refused: each delivery counts."""
    first_seen: datetime
    """By the database's clock, when it was recorded, as for `last_seen`."""
    last_seen: datetime
    taken_since: bool = False
    """Whether the key was taken after all: nobody is needed any more. Never so for a mismatch, whose key was
    taken before."""


def refused(
    engine: Engine, *, consumer: str | None = None, limit: int = 100, schema: str | None = None
) -> Listing[RefusedMessage]:
    """Messages that inboxes have refused, and rows that bulk writers' targets have refused, the latest first.

    Payloads and headers are not stored. Status-table mode has dead and halted messages in its own records
    (`list_messages`), and records none of these refusals on Redis.

    Args:
        engine: the database.
        consumer: whose refusals; None: those of all.
        limit: the most to return.
        schema: the PostgreSQL schema of the tables.

    Returns:
        A list, whose `seen` names its first 10,000 messages and rows for `dismiss_all`.

    Raises:
        InvalidOption: an argument cannot be used.
        TablesMissing: the table does not exist.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    options.count("limit", limit, largest=options.MOST_ROWS)
    if consumer is not None:
        options.consumer(consumer)
    taking(engine.dialect.name)
    all_tables = tables(schema)
    with connected(engine) as connection:
        try:
            found = _refused(connection, all_tables, consumer, limit)
        except DBAPIError as error:
            raise_clearer(connection, all_tables.refused, error)
    return Listing(found, lambda: pack([_seen(each) for each in found]))


def _seen(refusal: RefusedMessage) -> SeenRefusal:
    times = 0 if refusal.kind == REJECTED else refusal.times
    return SeenRefusal.of(refusal.consumer, refusal.key or "", times, refusal.last_seen)


def _refused(
    connection: Connection, all_tables: Tables, consumer: str | None, limit: int
) -> list[RefusedMessage]:
    noted, rejected = all_tables.refused, all_tables.rejected
    both = is_there(connection, rejected)
    check_sees_all(connection, [noted, rejected] if both else [noted])
    takers = takers_of(connection, all_tables)
    of: BindParameter[Any] | None = None if consumer is None else bindparam("of", consumer)
    over = overview_statements.taken_since(noted, takers, of).label("over")
    rows = connection.execute(_latest(noted, "last_seen", consumer, limit).add_columns(over)).all()
    found = [
        RefusedMessage(
            row.consumer,
            row.key or None,
            row.verdict,
            row.digest and row.digest.hex(),
            row.stored_digest and row.stored_digest.hex(),
            row.error,
            row.message_id,
            row.topic,
            row.place,
            row.times,
            row.first_seen,
            row.last_seen,
            bool(row.over),
        )
        for row in rows
    ]
    if both:
        its = connection.execute(_latest(rejected, "rejected_at", consumer, limit))
        found += [
            RefusedMessage(
                consumer=row.consumer,
                key=row.key,
                kind=REJECTED,
                digest=None,
                stored_digest=None,
                error=row.error,
                message_id=None,
                topic=None,
                place=f"run {row.run}, batch {row.batch}, part {row.part}",
                times=1,
                first_seen=row.rejected_at,
                last_seen=row.rejected_at,
            )
            for row in its
        ]
    return sorted(found, key=lambda each: each.last_seen, reverse=True)[:limit]


def takers_of(connection: Connection, all_tables: Tables) -> tuple[Table, ...]:
    """The tables that say which keys were taken, as far as they are there."""
    return tuple(each for each in (all_tables.message, all_tables.status) if is_there(connection, each))


def _latest(table: Table, time: str, consumer: str | None, limit: int) -> Select[Any]:
    c = table.c
    if consumer is None:
        return select(table).order_by(c[time].desc(), c.consumer, c.key).limit(limit)
    # In the order of the index.
    its = select(table).where(c.consumer == consumer)
    return its.order_by(c.consumer.desc(), c[time].desc()).limit(limit)
