"""Reading messages without changing them."""

from collections.abc import Mapping, Sequence
from functools import cache
from heapq import merge
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Integer,
    Row,
    Select,
    Table,
    bindparam,
    func,
    literal,
    not_,
    select,
)

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.checks.options import MOST_ROWS
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.errors.outbox import InvalidOption
from inbox_outbox_base.tables.outbox import has_failed
from inbox_outbox_base.tables.storing import storing
from inbox_outbox_base.words.deciding import MOST_SEEN, Listing
from outbox._publishing.buckets import generations
from outbox.schema import OutboxTables, tables

from . import seeing, statements
from .stored_message import MessageState, StoredMessage
from .transact import transact


def peek(
    engine: Engine,
    limit: int = 20,
    *,
    topic: str | None = None,
    key: str | None = None,
    state: MessageState | str | None = None,
    error: str | None = None,
    errors_first: bool = False,
    within: int | None = None,
    schema: str | None = None,
) -> Listing[StoredMessage]:
    """List messages of the outbox, the next ones to be sent first. Changes nothing.

    Without `topic`, `state`, `error` and `errors_first` the cost is low, however many messages there are.
    With them it may read the whole outbox; with `key`, that key's bucket.

    Args:
        engine: the Engine of the outbox's database.
        limit: the most messages to return.
        topic: only messages of this topic; None is any.
        key: only messages of this key; None is any.
        state: only messages in this state. None: pending, waiting, unknown or held. Delayed messages come in
            the order in which they are due, dead ones in the order in which they died.
        error: only messages whose last error contains this text, 1 to 1,000 characters; case matters.
        errors_first: messages whose send has failed, and held ones, before all others, because they are why
            others do not leave; among these and among those, the next ones to be sent first. Only without
            `state`. On PostgreSQL, failed messages are found by an index.
        within: where the whole outbox would be read otherwise on MySQL, MariaDB and SQLite, look only at so
            many of the messages that wait for a relay, the oldest ones; None looks at all.
        schema: the PostgreSQL schema of the tables.

    Returns:
        A list, whose `seen` names its first 10,000 messages for `retry_all` and `drop_all`: these then take
        what was listed here, and nothing that came or changed since.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    outbox_options.count("limit", limit, largest=MOST_ROWS)
    if within is not None:
        outbox_options.count("within", within)
    wanted = None if state is None else seeing.checked_state("state", state)
    filters = seeing.checked_filter(wanted, topic, key, error)
    given: dict[str, Any] = {"limit": limit, "within": within} | {
        f"{name}_": value for name, value in filters.items()
    }
    if errors_first and wanted is not None:
        raise InvalidOption(f"errors_first=True, state={wanted.value!r}: expected one of the two")
    all_tables = tables(schema)

    def read(connection: Connection) -> Sequence[Row[Any]]:
        if wanted in (MessageState.DEAD, MessageState.DELAYED):
            return connection.execute(aside(all_tables, wanted, *filters), given).all()
        if errors_first:
            return _errors_first(connection, all_tables, filters, given)
        return in_line(connection, all_tables, wanted, filters, given)

    rows, table = transact(engine, all_tables, read), seeing.table_of(all_tables, wanted)
    return Listing(
        (StoredMessage.of(row, str(getattr(row, "state", wanted))) for row in rows),
        lambda: seeing.pack(wanted, (seeing.seen_of(row, table) for row in rows[:MOST_SEEN])),
    )


def _errors_first(
    connection: Connection, tables: OutboxTables, filters: Mapping[str, str], given: dict[str, Any]
) -> list[Row[Any]]:
    found = in_line(connection, tables, None, filters, given, failed=True)
    if left := given["limit"] - len(found):
        rest = in_line(connection, tables, None, filters, given | {"limit": left}, failed=False)
        ids = {each.id for each in found}  # one may have been retried in between
        found += [each for each in rest if each.id not in ids]
    return found


def in_line(
    connection: Connection,
    tables: OutboxTables,
    state: MessageState | None,
    filters: Mapping[str, str],
    given: dict[str, Any],
    failed: bool | None = None,
) -> list[Row[Any]]:
    """The oldest messages of each bucket, found by an index and merged. For messages that may be rare, one
    query reads all buckets."""
    if "key" in filters:
        buckets = [each.bucket_of(filters["key"]) for each in generations(connection, tables)]
    else:
        buckets = [row.bucket for row in connection.execute(statements.buckets(tables))]
    statement = _line(tables, state, failed, *filters)
    may_be_rare = state is not None or failed or filters
    if "key" not in filters and len(buckets) > 1 and may_be_rare:
        is_by_number = not storing(connection.dialect.name).numbers_any_column  # the primary key
        if given.get("within") is not None and is_by_number:
            last = connection.execute(
                _last_within(tables), given
            ).scalar()  # MariaDB finds no range otherwise
            statement = statement.where(tables.message.c.sequence <= last)
        found = [connection.execute(statement, given).all()]
    else:
        of_bucket = statement.where(statements.above(tables))
        marks = relaying(connection.dialect.name, tables).marks(connection)
        places = ({"bucket_": bucket, "low_": marks.get(bucket, 0)} for bucket in buckets)
        found = [connection.execute(of_bucket, given | place).all() for place in places]
    return list(merge(*found, key=lambda row: row.sequence))[: given["limit"]]


@cache
def _line(
    tables: OutboxTables, state: MessageState | None, failed: bool | None, *filters: str
) -> Select[Any]:
    """The oldest messages that wait for a relay: all, those whose send has failed, or the others."""
    table = tables.message
    shown = statements.state_of(table)
    found = viewed(table, filters).add_columns(table.c.sequence, table.c.error, shown.label("state"))
    if state is not None:
        found = found.where(shown == literal(state.value))
    if state not in (None, MessageState.PENDING):
        found = found.where(has_failed(table))  # so that PostgreSQL can use its index of these
    if failed is not None:
        found = found.where(has_failed(table) if failed else not_(has_failed(table)))
    return found.order_by(table.c.sequence)


@cache
def _last_within(tables: OutboxTables) -> Select[int]:
    """The highest number of the oldest messages."""
    number = tables.message.c.sequence
    oldest = select(number).order_by(number).limit(bindparam("within", type_=Integer)).subquery("oldest")
    return select(func.coalesce(func.max(oldest.c.sequence), 0))


@cache
def aside(tables: OutboxTables, state: MessageState, *filters: str) -> Select[Any]:
    """Messages that no relay looks at now."""
    if state is MessageState.DEAD:
        c = tables.dead.c
        return viewed(tables.dead, filters).add_columns(c.error).order_by(c.dead_at, c.id)
    c = tables.delayed.c
    return viewed(tables.delayed, filters).order_by(c.available_at, c.sequence)


def viewed(table: Table, filters: tuple[str, ...]) -> Select[Any]:
    c = table.c
    size = func.length(c.payload, type_=Integer).label("payload_bytes")
    found = select(c.topic, c.key, c.content_type, c.headers, size, *seeing.columns(table))
    return seeing.filtered(found, table, filters).limit(bindparam("limit", type_=Integer))
