"""What operators have seen: the places of messages, and how the messages were.

A message is read in one of three groups of tables' rows: those that wait for a relay, delayed ones and dead
ones. Of each, the place finds it again, and the version tells whether it has changed since.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, Table, bindparam, literal, select
from sqlalchemy.sql.elements import ColumnElement

from inbox_outbox_base.checks import deciding, outbox_options
from inbox_outbox_base.checks.options import shown
from inbox_outbox_base.errors.outbox import InvalidOption
from inbox_outbox_base.tables.columns import contains
from inbox_outbox_base.tables.times import readable
from inbox_outbox_base.words.deciding import packed
from outbox.schema import OutboxTables

from . import statements
from .stored_message import MessageState

_VERSION = {
    "outbox_message": ("created_at", "attempts", "unanswered", "retry_at", "failing_since"),
    "outbox_delayed": ("created_at", "available_at"),
    "outbox_dead": ("created_at", "attempts", "dead_at"),
}
"""What changes whenever a message does; times may be invalid."""
_TIMES = ("created_at", "retry_at", "available_at", "dead_at", "failing_since")
_KINDS = {MessageState.DEAD: "dead messages", MessageState.DELAYED: "delayed messages"}
_WAITING = "messages that wait for a relay"


def checked_state(option: str, value: Any) -> MessageState:
    """The value as a state.

    Raises:
        InvalidOption: it is not a state.
    """
    return MessageState(outbox_options.one_of(option, value, [*MessageState]))


def checked_filter(
    state: MessageState | None, topic: str | None, key: str | None, error: str | None
) -> dict[str, str]:
    """What of it is given.

    Raises:
        InvalidOption: a value is invalid, or there is no such column.
    """
    if error is not None and state is MessageState.DELAYED:
        raise InvalidOption(f"error={shown(error)}: delayed messages have none")
    given = {
        "topic": None if topic is None else outbox_options.topic(topic),
        "key": outbox_options.key(key),
        "error": deciding.reason("error", error, InvalidOption),
    }
    return {name: value for name, value in given.items() if value is not None}


def is_chosen(row: Row[Any], state: MessageState, filters: Mapping[str, str]) -> bool:
    """Whether a message is in this state and matches, as `filtered` says it in SQL."""
    found = row._mapping  # noqa: SLF001 - public, in spite of its name
    if found.get("state", state) != state or filters.get("error", "") not in (row.error or ""):
        return False
    return all(found[name] == value for name, value in filters.items() if name != "error")


class SeenMessage(NamedTuple):
    """The place of a message, and its version."""

    bucket: int
    sequence: int
    """0 for dead and delayed messages, which are found by their id."""
    id: str
    version: str


def columns(table: Table) -> list[ColumnElement[Any]]:
    """The columns of a `SeenMessage`, without the sequence."""
    c = table.c
    version = (readable(c[name]).label(name) if name in _TIMES else c[name] for name in _VERSION[table.name])
    return [c.bucket, c.id, *version]


def seen_of(row: Row[Any], table: Table) -> SeenMessage:
    """From a row with these columns; and, of messages that wait for a relay, with their sequence and state,
    as operators know it."""
    found = row._mapping  # noqa: SLF001 - public, in spite of its name
    named = ("state", *_VERSION[table.name]) if "state" in found else _VERSION[table.name]
    version = "|".join(str(found[name]) for name in named)
    digest = blake2b(version.encode(), digest_size=6).hexdigest()
    return SeenMessage(row.bucket, found.get("sequence", 0), row.id, digest)


def table_of(tables: OutboxTables, state: MessageState | None) -> Table:
    """The table of messages in a state; None is any that waits for a relay."""
    aside = {MessageState.DEAD: tables.dead, MessageState.DELAYED: tables.delayed}
    return tables.message if state is None else aside.get(state, tables.message)


def pack(state: MessageState | None, seen: Iterable[SeenMessage]) -> str:
    """The `seen` of a listing of messages in a state."""
    return packed(_kind(state), [*seen])


def unpack(text: str, state: MessageState) -> list[SeenMessage]:
    """What such a listing has seen.

    Raises:
        InvalidOption: it did not come with a listing in which messages in this state can be.
    """
    parts = (deciding.INTEGER, deciding.BIG_INTEGER, str, str)
    found = deciding.places(text, _kind(state), parts, InvalidOption)
    return [SeenMessage(*each) for each in found]


def _kind(state: MessageState | None) -> str:
    return _WAITING if state is None else _KINDS.get(state, _WAITING)


def filtered(statement: Select[Any], table: Table, names: Iterable[str]) -> Select[Any]:
    """Only messages with this topic and key, and with this text in their error."""
    for name in names:
        column = table.c[name]
        given = bindparam(f"{name}_", type_=column.type)
        statement = statement.where(contains(column, given) if name == "error" else column == given)
    return statement


@cache
def every(tables: OutboxTables, state: MessageState, *names: str) -> Select[Any]:
    """All messages in a state, in the order in which a bulk decision takes them: dead letters as they died,
    the others by their places, which a transaction finds together."""
    table = table_of(tables, state)
    found = filtered(_seen(table), table, names)
    if state is MessageState.DEAD:
        return found.order_by(table.c.dead_at, table.c.id)
    if state is MessageState.DELAYED:
        return found.order_by(table.c.available_at, table.c.sequence)
    return found.where(statements.state_of(table) == literal(state.value)).order_by(
        table.c.bucket, table.c.sequence
    )


@cache
def _seen(table: Table) -> Select[Any]:
    """Messages with what a decision about them needs."""
    c = table.c
    error = c.error if "error" in c else literal(None).label("error")
    found = select(c.topic, c.key, error, *columns(table))
    if table.name == "outbox_message":
        found = found.add_columns(c.sequence, statements.state_of(table).label("state"))
    if table.name == "outbox_delayed":
        found = found.add_columns(c.sequence.label("number"))
    return found


def as_seen(
    connection: Connection, tables: OutboxTables, state: MessageState, seen: Sequence[SeenMessage]
) -> list[Row[Any]]:
    """Of these messages, the rows of those that have not changed."""
    table = table_of(tables, state)
    expected = {each[:3]: each for each in seen}
    rows = (
        row for part in _parts(tables, state, seen) for row in connection.execute(_again(tables, state), part)
    )
    found = {place[:3]: row for row in rows if expected.get((place := seen_of(row, table))[:3]) == place}
    return [found[each[:3]] for each in seen if each[:3] in found]


def lock(
    connection: Connection, tables: OutboxTables, state: MessageState, seen: Sequence[SeenMessage]
) -> None:
    """Lock these messages until the transaction ends. Delayed ones need none: they never change, and no other
    one ever has the number by which they are deleted."""
    if state is MessageState.DELAYED:
        return
    is_dead = state is MessageState.DEAD
    statement = statements.lock_dead(tables) if is_dead else statements.lock_messages(tables)
    for part in _parts(tables, state, seen):
        connection.execute(statement, part)


@cache
def _again(tables: OutboxTables, state: MessageState) -> Select[Any]:
    table = table_of(tables, state)
    if table is tables.message:
        return _seen(table).where(statements.of_bucket(tables))
    return _seen(table).where(table.c.id.in_(bindparam("these", expanding=True)))


def _parts(tables: OutboxTables, state: MessageState, seen: Sequence[SeenMessage]) -> list[Mapping[str, Any]]:
    """The parameters of the statements that find these messages."""
    if table_of(tables, state) is not tables.message:
        return [{"these": [each.id for each in seen]}]
    return in_buckets(seen)


def in_buckets(messages: Iterable[Any]) -> list[Mapping[str, Any]]:
    """The same for messages that wait for a relay, one for each bucket, in one order: two decisions about the
    same messages wait for each other instead of locking each other out."""
    by_bucket: dict[int, list[int]] = {}
    for each in messages:
        by_bucket.setdefault(each.bucket, []).append(each.sequence)
    return [{"bucket_": bucket, "these": sorted(by_bucket[bucket])} for bucket in sorted(by_bucket)]
