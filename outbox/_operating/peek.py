"""Reading messages without changing them."""

from functools import cache
from heapq import merge
from typing import Any

from sqlalchemy import Connection, Engine, Integer, Row, Select, Table, bindparam, func, literal, not_, select

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.checks.options import MOST_ROWS
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.errors.outbox import InvalidOption
from inbox_outbox_base.tables.times import readable
from outbox._publishing.buckets import generations
from outbox.schema import OutboxTables, tables

from . import statements
from .stored_message import MessageState, StoredMessage
from .transact import transact

_IN_LINE = ("attempts", "retry_at", "error")
_DEAD = ("attempts", "dead_at", "error")
_TIMES = ("created_at", "retry_at", "available_at", "dead_at")


def peek(
    engine: Engine,
    limit: int = 20,
    *,
    topic: str | None = None,
    key: str | None = None,
    state: MessageState | str | None = None,
    errors_first: bool = False,
    schema: str | None = None,
) -> list[StoredMessage]:
    """List messages of the outbox, the next ones to be sent first. Changes nothing.

    Without `topic`, `state` and `errors_first` the cost is low, however many messages there are. With them it
    may read the whole outbox; with `key`, that key's bucket.

    Args:
        engine: the Engine of the outbox's database.
        limit: the most messages to return.
        topic: only messages of this topic; None is any.
        key: only messages of this key; None is any.
        state: only messages in this state. None: pending, waiting, unknown or held. Delayed messages come in
            the order in which they are due, dead ones in the order in which they died.
        errors_first: messages whose send has failed, and held ones, before all others, because they are why
            others do not leave; among these and among those, the next ones to be sent first. Only without
            `state`. On PostgreSQL, failed messages are found by an index.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    outbox_options.count("limit", limit, largest=MOST_ROWS)
    given: dict[str, Any] = {"limit": limit}
    if topic is not None:
        given["topic_"] = outbox_options.topic(topic)
    if key is not None:
        given["key_"] = outbox_options.key(key)
    wanted = None if state is None else checked_state("state", state)
    if errors_first and wanted is not None:
        raise InvalidOption(f"errors_first=True, state={wanted.value!r}: expected one of the two")
    all_tables = tables(schema)

    def read(connection: Connection) -> list[StoredMessage]:
        if wanted in (MessageState.DEAD, MessageState.DELAYED):
            statement = _aside(all_tables, wanted, *_filters(given))
            return [StoredMessage.of(row, wanted) for row in connection.execute(statement, given)]
        if errors_first:
            return _errors_first(connection, all_tables, given)
        return _in_line(connection, all_tables, wanted, given)

    return transact(engine, all_tables, read)


def checked_state(option: str, value: Any) -> MessageState:
    """The value as a state.

    Raises:
        InvalidOption: it is not a state.
    """
    return MessageState(outbox_options.one_of(option, value, [*MessageState]))


def _filters(given: dict[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in ("topic", "key") if f"{name}_" in given)


def _errors_first(connection: Connection, tables: OutboxTables, given: dict[str, Any]) -> list[StoredMessage]:
    found = _in_line(connection, tables, None, given, failed=True)
    if left := given["limit"] - len(found):
        rest = _in_line(connection, tables, None, given | {"limit": left}, failed=False)
        ids = {each.id for each in found}  # one may have been retried in between
        found += [each for each in rest if each.id not in ids]
    return found


def _in_line(
    connection: Connection,
    tables: OutboxTables,
    state: MessageState | None,
    given: dict[str, Any],
    failed: bool | None = None,
) -> list[StoredMessage]:
    """The oldest messages of each bucket, found by an index and merged. For messages that may be rare, one
    query reads all buckets."""
    if "key_" in given:
        buckets = [each.bucket_of(given["key_"]) for each in generations(connection, tables)]
    else:
        buckets = [row.bucket for row in connection.execute(statements.buckets(tables))]
    statement = _line(tables, state, failed, *_filters(given))
    may_be_rare = state is not None or failed or "topic_" in given
    if "key_" not in given and len(buckets) > 1 and may_be_rare:
        found = [connection.execute(statement, given).all()]
    else:
        of_bucket = statement.where(statements.above(tables))
        marks = relaying(connection.dialect.name, tables).marks(connection)
        places = ({"bucket_": bucket, "low_": marks.get(bucket, 0)} for bucket in buckets)
        found = [connection.execute(of_bucket, given | place).all() for place in places]
    oldest: list[Row[Any]] = list(merge(*found, key=lambda row: row.sequence))
    return [StoredMessage.of(row, row.state) for row in oldest[: given["limit"]]]


@cache
def _line(
    tables: OutboxTables, state: MessageState | None, failed: bool | None, *filters: str
) -> Select[Any]:
    """The oldest messages that wait for a relay: all, those whose send has failed, or the others."""
    table = tables.message
    shown = statements.state_of(table)
    found = _viewed(table, _IN_LINE, filters).add_columns(table.c.sequence, shown.label("state"))
    if state is not None:
        found = found.where(shown == literal(state.value))
    if failed is not None:
        has_failed = statements.has_failed(table)
        found = found.where(has_failed if failed else not_(has_failed))
    return found.order_by(table.c.sequence)


@cache
def _aside(tables: OutboxTables, state: MessageState, *filters: str) -> Select[Any]:
    """Messages that no relay looks at now."""
    if state is MessageState.DEAD:
        return _viewed(tables.dead, _DEAD, filters).order_by(tables.dead.c.dead_at, tables.dead.c.id)
    c = tables.delayed.c
    return _viewed(tables.delayed, ("available_at",), filters).order_by(c.available_at, c.sequence)


def _viewed(table: Table, names: tuple[str, ...], filters: tuple[str, ...]) -> Select[Any]:
    c = table.c
    size = func.length(c.payload, type_=Integer).label("payload_bytes")
    viewed = (c[name] for name in (*statements.VIEWED, *names))
    found = select(*(readable(each).label(each.key) if each.key in _TIMES else each for each in viewed), size)
    for name in filters:
        found = found.where(c[name] == bindparam(f"{name}_", type_=c[name].type))
    return found.limit(bindparam("limit", type_=Integer))
