"""The statements about messages that are the same on every database: pure, built once."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Float,
    Insert,
    Integer,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    null,
    select,
    type_coerce,
    update,
)
from sqlalchemy.types import NullType

from inbox_outbox_base.tables.columns import from_now
from inbox_outbox_base.tables.inbox import utcnow
from inbox_outbox_base.tables.outbox import OutboxTables
from inbox_outbox_base.tables.times import movable, readable

COLUMNS = ("bucket", "id", "topic", "key", "payload", "content_type", "headers")
"""The columns of a new message's row; the rest are the database's defaults."""

OWN_COLUMNS = (*COLUMNS, "own_id")
"""The same with the column for ids that producers choose."""

CONTENT = ("id", "bucket", "topic", "key", "payload", "content_type", "headers", "created_at", "own_id")
"""The columns that a message keeps in every table."""


SENT = ("id", "topic", "key", "created_at", "own_id")
"""The columns kept of a message that has left."""

RECORD = (*SENT, "keep_until")
"""The same with the time until which they are kept."""


def _bound(table: Table, *names: str) -> dict[str, ColumnElement[Any]]:
    return {name: bindparam(name, type_=table.c[name].type) for name in names}


def in_seconds(name: str) -> from_now:
    """The time that is this parameter's number of seconds from now, by the database's clock."""
    return from_now(bindparam(name, type_=Float))


def _now() -> ColumnElement[Any]:
    """The database's clock, read once: a comparison with a volatile function could not use an index."""
    return select(utcnow()).scalar_subquery()


def among(table: Table, column: str = "sequence") -> ColumnElement[bool]:
    """The rows that the parameter `these` lists."""
    return table.c[column].in_(bindparam("these", expanding=True))


def this(tables: OutboxTables) -> ColumnElement[bool]:
    """One message, by its place and its id: after a failover that lost the last commits, another message may
    be in its place."""
    c = tables.message.c
    place = and_(c.bucket == bindparam("bucket_"), c.sequence == bindparam("sequence_"))
    return and_(place, c.id == bindparam("id_", type_=c.id.type))


def columns(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns of some new rows."""
    return OWN_COLUMNS if any("own_id" in row for row in rows) else COLUMNS


def content(table: Table, *but: str) -> list[ColumnElement[Any]]:
    """The columns of `CONTENT`, for moving a message, except some."""
    names = (name for name in CONTENT if name not in but)
    return [movable(table.c[name]) if name == "created_at" else table.c[name] for name in names]


@cache
def add(tables: OutboxTables, names: tuple[str, ...] = COLUMNS) -> Insert:
    """Insert a message, in the caller's transaction."""
    # inline(), or SQLAlchemy would fetch the new sequence, which nobody needs.
    return insert(tables.message).inline().values(_bound(tables.message, *names))


@cache
def add_delayed(tables: OutboxTables, names: tuple[str, ...], *, from_clock: bool) -> Insert:
    """Insert a message for later: this many seconds from now by the database's clock, or at a point in
    time."""
    due = in_seconds("due") if from_clock else bindparam("due", type_=tables.delayed.c.available_at.type)
    values = _bound(tables.delayed, *names) | {"available_at": due}
    return insert(tables.delayed).inline().values(values)


@cache
def free_ids(tables: OutboxTables) -> Delete:
    """Release producers' own ids for reuse."""
    return delete(tables.ids).where(among(tables.ids, "id"))


def fetched(tables: OutboxTables) -> list[ColumnElement[Any]]:
    """The columns of a message that a relay reads; large payloads are left out, because the message may have
    to wait."""
    c = tables.message.c
    size = func.length(c.payload, type_=Integer)
    # The driver's own value: for one that is not bytes, SQLAlchemy would raise and so stop the whole scan.
    payload = type_coerce(c.payload, NullType())
    light = case((size <= bindparam("light", type_=Integer), payload), else_=null()).label("payload")
    return [
        *(c[name] for name in ("id", "bucket", "topic", "key", "content_type", "headers")),
        _time(c.created_at),
        light,
        size.label("size"),
        *(c[name] for name in ("sequence", "attempts", "unanswered", "state")),
        _time(c.retry_at),
        c.own_id,
        _time(c.failing_since),
    ]


def _time(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return readable(column).label(column.key)


def progressed(tables: OutboxTables) -> list[ColumnElement[Any]]:
    """The columns that tell how much longer a message must wait."""
    c = tables.message.c
    return [c.bucket, c.sequence, c.state, _time(c.retry_at), _now().label("now")]


@cache
def progress(tables: OutboxTables) -> Select[Any]:
    """How much longer some messages must wait."""
    return select(*progressed(tables)).where(among(tables.message))


@cache
def payloads(tables: OutboxTables) -> Select[Any]:
    """The payloads of some messages."""
    c = tables.message.c
    payload = type_coerce(c.payload, NullType()).label("payload")
    return select(c.bucket, c.sequence, payload).where(among(tables.message))


@cache
def ids(tables: OutboxTables) -> Select[Any]:
    """The ids of some messages."""
    c = tables.message.c
    return select(c.sequence, c.id).where(among(tables.message))


@cache
def pending(tables: OutboxTables, *, unknown: bool, unpaused: bool) -> Select[Any]:
    """The oldest messages of one bucket above a sequence, without known ones and paused topics."""
    c = tables.message.c
    found = (
        select(*fetched(tables))
        .where(c.bucket == bindparam("bucket"), c.sequence > bindparam("low"))
        .order_by(c.sequence)
        .limit(bindparam("limit", type_=Integer))
    )
    if unknown:
        found = found.where(c.sequence.not_in(bindparam("known", expanding=True)))
    if unpaused:
        found = found.where(c.topic.not_in(bindparam("paused", expanding=True)))
    return found


@cache
def first_used(tables: OutboxTables) -> Select[Any]:
    """The lowest bucket between two numbers that has a message."""
    bucket = tables.message.c.bucket
    between = bucket.between(bindparam("first", type_=Integer), bindparam("last", type_=Integer))
    return select(func.min(bucket)).where(between)


@cache
def oldest(tables: OutboxTables) -> Select[Any]:
    """The places, ids and keys of the oldest messages of a bucket above a sequence."""
    c = tables.message.c
    place = and_(c.bucket == bindparam("bucket"), c.sequence > bindparam("low"))
    found = select(c.bucket, c.sequence, c.id, c.key).where(place)
    return found.order_by(c.sequence).limit(bindparam("limit", type_=Integer))


@cache
def tally(tables: OutboxTables) -> Select[Any]:
    """For one bucket, how many messages there are up to a sequence, and the sum of their sequences."""
    c = tables.message.c
    found = select(func.count(), func.coalesce(func.sum(c.sequence), 0))
    return found.where(c.bucket == bindparam("bucket"), c.sequence <= bindparam("end"))


@cache
def paused_between(tables: OutboxTables) -> Select[Any, *tuple[Any, ...]]:
    """For one bucket, how many messages of paused topics there are between two sequences (the upper one is
    included), the sum of their sequences, and the highest sequence."""
    c = tables.message.c
    return select(func.count(), func.sum(c.sequence), func.max(c.sequence)).where(
        c.bucket == bindparam("bucket"),
        c.sequence > bindparam("low"),
        c.sequence <= bindparam("high"),
        c.topic.in_(bindparam("paused", expanding=True)),
    )


@cache
def firsts(tables: OutboxTables, *, unpaused: bool) -> Select[Any, Any, Any]:
    """The oldest message of each of these keys in each of these buckets, below a sequence, without paused
    topics."""
    c = tables.message.c
    found = select(c.key, c.bucket, func.min(c.sequence).label("sequence")).where(
        c.bucket.in_(bindparam("buckets", expanding=True)),
        c.sequence < bindparam("high"),
        c.key.in_(bindparam("keys", expanding=True)),
    )
    if unpaused:
        found = found.where(c.topic.not_in(bindparam("paused", expanding=True)))
    return found.group_by(c.key, c.bucket)


@cache
def fetch(tables: OutboxTables) -> Select[Any]:
    """Some messages."""
    return select(*fetched(tables)).where(among(tables.message))


@cache
def forget(tables: OutboxTables) -> Delete:
    """Delete a message that the broker has, or that has been moved."""
    return delete(tables.message).where(this(tables))


@cache
def keep_sent(tables: OutboxTables) -> Insert:
    """Record a message that the broker has, from its row, unless its id has a record: somebody else may have
    written two messages with one id."""
    is_known = exists(select(literal(1)).where(tables.sent.c.id == tables.message.c.id))
    row = select(*sent(tables.message.c)).where(this(tables), ~is_known)
    return insert(tables.sent).from_select(RECORD, row)


def sent(row: Any) -> list[ColumnElement[Any]]:
    """The record of a message that has left, from the columns of its row; it is kept for `keep` seconds."""
    return [*(row[name] for name in SENT), in_seconds("keep")]


@cache
def wait(tables: OutboxTables) -> Update:
    """Record that a message was sent and not taken: when it is sent again, and why."""
    names = ("attempts", "unanswered", "state", "error")
    changed: dict[str, ColumnElement[Any]] = {
        name: bindparam(f"{name}_", type_=tables.message.c[name].type) for name in names
    }
    changed["retry_at"] = in_seconds("delay_")
    changed["failing_since"] = since_first(tables)
    return update(tables.message).where(this(tables)).values(changed)


def since(table: Table) -> ColumnElement[Any]:
    """When a waiting message was published; for a delayed one that was never sent, when it was due."""
    c = table.c
    due = func.coalesce(c.retry_at, c.created_at, type_=c.created_at.type)
    return case((c.attempts == 0, due), else_=c.created_at)


def since_first(tables: OutboxTables) -> ColumnElement[Any]:
    """When the message's first failed send was recorded; if this is the first, now."""
    return func.coalesce(tables.message.c.failing_since, utcnow())


@cache
def bury(tables: OutboxTables) -> Insert:
    """Make a dead letter from the message's row."""
    given = [bindparam(name, type_=tables.dead.c[name].type) for name in ("attempts", "outcome", "error")]
    row = select(*content(tables.message), *given).where(this(tables))
    return insert(tables.dead).from_select((*CONTENT, "attempts", "outcome", "error"), row)


@cache
def hold(tables: OutboxTables) -> Update:
    """Mark a message as dead but leave it in its place, so that its key waits for an operator."""
    c = tables.message.c
    names = ("attempts", "unanswered", "error")
    given: dict[str, Any] = {name: bindparam(f"{name}_", type_=c[name].type) for name in names}
    held = given | {"state": literal("held"), "retry_at": null(), "failing_since": since_first(tables)}
    return update(tables.message).where(this(tables)).values(held)


@cache
def paused(tables: OutboxTables) -> Select[Any]:
    """Topics whose messages wait."""
    return select(tables.pause.c.topic)


@cache
def due(tables: OutboxTables) -> Select[Any]:
    """Due delayed messages of some buckets, in the order in which they leave. It takes no locks: some
    databases lock a row before they know its bucket, and so would lock rows of other relays."""
    c = tables.delayed.c
    return (
        select(c.id)
        .where(c.available_at <= _now(), among(tables.delayed, "bucket"))
        .order_by(c.available_at, c.sequence)
        .limit(bindparam("limit", type_=Integer))
    )


@cache
def next_due(tables: OutboxTables) -> Select[Any, Any]:
    """The database's clock, and when the next delayed message of some buckets is due."""
    c = tables.delayed.c
    mine = select(readable(c.available_at)).where(among(tables.delayed, "bucket"))
    soonest = mine.order_by(c.available_at).limit(1).scalar_subquery()
    return select(utcnow().label("now"), soonest.label("due"))


@cache
def add_due(tables: OutboxTables) -> Insert:
    """Add delayed messages to those that can be sent, in the order in which they leave; they keep their due
    times."""
    c = tables.delayed.c
    rows = select(*content(tables.delayed), movable(c.available_at))
    rows = rows.where(among(tables.delayed, "id")).order_by(c.available_at, c.sequence)
    return insert(tables.message).from_select((*CONTENT, "retry_at"), rows)


@cache
def keys_delayed(tables: OutboxTables) -> Select[Any, Any]:
    """The keys of some delayed messages."""
    c = tables.delayed.c
    return select(c.id, c.key).where(among(tables.delayed, "id"))


@cache
def forget_delayed(tables: OutboxTables) -> Delete:
    """Delete a delayed message that can be sent now; by its id alone, so that it waits for no other row."""
    return delete(tables.delayed).where(tables.delayed.c.id == bindparam("id_"))


@cache
def old_sent(tables: OutboxTables) -> Select[Any]:
    """Some of the records of sent messages whose time is over, the oldest first."""
    c = tables.sent.c
    is_over = c.keep_until < _now()
    return (
        select(c.id, c.own_id).where(is_over).order_by(c.keep_until).limit(bindparam("limit", type_=Integer))
    )


@cache
def forget_sent(tables: OutboxTables) -> Delete:
    """Delete records of sent messages."""
    return delete(tables.sent).where(among(tables.sent, "id"))
