"""The audit's statements: pure, built once, executed elsewhere."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    CompoundSelect,
    Float,
    FromClause,
    Integer,
    Select,
    String,
    Table,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    literal,
    null,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
    union_all,
)
from sqlalchemy.sql.elements import ColumnElement

from inbox_outbox_base.databases.relaying import ALL_TOPICS
from inbox_outbox_base.databases.relaying_statements import since
from inbox_outbox_base.tables.columns import from_now, utcnow
from inbox_outbox_base.tables.inbox import Tables
from inbox_outbox_base.tables.times import readable
from inbox_outbox_base.words.redelivered import AGAIN
from outbox.schema import OutboxTables

from .statements import has_a_time, state_of

_BEHIND = AGAIN[:-1] + chr(ord(AGAIN[-1]) + 1)
"""Behind all ids that begin so."""


@dataclass(frozen=True, slots=True)
class TakenRows:
    """The tables that say what a consumer has taken, one for each mode."""

    message: FromClause
    status: FromClause


@cache
def absent(table: Table) -> FromClause:
    """A table without rows, in place of one that was not made: an application may use one mode only."""
    columns = (type_coerce(null(), each.type).label(each.name) for each in table.c)
    return select(*columns).where(false()).subquery(table.name)


def _of_topic(table: Table) -> ColumnElement[bool]:
    """The messages of the topic that were published since the given time; not those that an operator had
    delivered again, which an inbox knows by another id."""
    c = table.c
    since = bindparam("since_", type_=c.created_at.type)
    is_new = or_(c.id < literal(AGAIN, c.id.type), c.id >= literal(_BEHIND, c.id.type))
    return and_(c.topic == bindparam("topic_", type_=c.topic.type), c.created_at >= since, is_new)


def _sent(tables: OutboxTables) -> ColumnElement[bool]:
    """The same for sent messages; the time is repeated as a condition on the indexed column."""
    table = tables.sent
    since = bindparam("since_", type_=table.c.created_at.type)
    return and_(_of_topic(table), table.c.sent_at >= since)


def _is_recent(time: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a time is within the grace."""
    return time >= from_now(bindparam("age_", type_=Float))


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.count(case((condition, 1)))


def business_key(table: Table, key: str) -> ColumnElement[Any]:
    """The consumer's key for a message: with "key" its key, or its id if it has none; with "id" its id."""
    c = table.c
    return c.id if key == "id" else func.coalesce(c.key, c.id, type_=c.key.type)


def _beside(table: Table, inbox: TakenRows, key: str, own: ColumnElement[bool] | None = None) -> FromClause:
    """Messages joined with the consumer's rows for them in either mode; if a message is not `own`, its row is
    about another message of its key."""
    joined: FromClause = table
    for known in (inbox.message, inbox.status):
        consumer = known.c.consumer == bindparam("consumer_", type_=known.c.consumer.type)
        same = and_(consumer, known.c.key == business_key(table, key))
        joined = joined.outerjoin(known, same if own is None else and_(same, own))
    return joined


def _is_untaken(inbox: TakenRows) -> ColumnElement[bool]:
    status = inbox.status.c.status
    return and_(inbox.message.c.key.is_(None), or_(status.is_(None), status != "consumed"))


def _may_be_taken(table: Table) -> ColumnElement[bool]:
    """Whether a message still in the outbox was sent without an answer, or a relay is sending it, perhaps one
    that was lost."""
    c = table.c
    return c.outcome == "unknown" if "outcome" in c else or_(c.unanswered > 0, _is_being_sent(table))


def _is_being_sent(table: Table) -> ColumnElement[bool]:
    # They are part of the statement's text, because a server limits the number of parameters.
    places: BindParameter[Any] = bindparam("sending_", expanding=True, literal_execute=True)
    return tuple_(table.c.bucket, table.c.sequence).in_(places)


def _is_late(table: Table) -> ColumnElement[bool]:
    """Whether a message that waits for a relay should have been sent by now, or moved there."""
    c = table.c
    if "available_at" in c:
        return and_(has_a_time(c.available_at), ~_is_recent(c.available_at))
    return or_(c.state == "held", ~_is_recent(since(table)))


@cache
def count_unsent(tables: OutboxTables, inbox: TakenRows | None, key: str) -> CompoundSelect[Any]:
    """Count the messages that wait for a relay, that are dead, and that are delayed; and of each, those that
    were not taken, and those that are late. It is one statement, so that it sees each message in one place.

    Without an inbox, messages that were sent without an answer count as not taken.
    """
    counts = []
    for table, late in (
        (tables.message, _is_late(tables.message)),
        (tables.dead, true()),
        (tables.delayed, _is_late(tables.delayed)),
    ):
        source: FromClause = table
        untaken: ColumnElement[bool] = true()
        if inbox is not None and table is not tables.delayed:
            source = _beside(table, inbox, key, _may_be_taken(table))
            untaken = _is_untaken(inbox)
        found = (
            literal(table.name, String).label("place"),
            func.count().label("messages"),
            _count(untaken).label("untaken"),
            _count(and_(untaken, late)).label("late"),
        )
        counts.append(select(*found).select_from(source).where(_of_topic(table)))
    return union_all(*counts)


@cache
def unsent(tables: OutboxTables, inbox: TakenRows | None, key: str) -> Select[Any]:
    """Some overdue messages, among them delayed ones, and some dead ones that were not taken.

    Without an inbox, messages that were sent without an answer are left out.
    """
    message, dead, delayed = tables.message, tables.dead, tables.delayed
    status: ColumnElement[Any] = literal(None, String) if inbox is None else inbox.status.c.status
    found = (
        _found(message, state_of(message), since(message), status)
        .add_columns(literal(0).label("place"), message.c.sequence.label("line"))
        .where(_of_topic(message), _is_late(message))
        .order_by(message.c.sequence),
        _found(dead, literal("dead", String), dead.c.dead_at, status)
        .add_columns(literal(1).label("place"), literal(0).label("line"))
        .where(_of_topic(dead))
        .order_by(dead.c.id),
    )
    parts = []
    for table, each in zip((message, dead), found, strict=True):
        own = _may_be_taken(table)
        chosen = (
            each.where(~own)
            if inbox is None
            else each.select_from(_beside(table, inbox, key, own)).where(_is_untaken(inbox))
        )
        parts.append(select(chosen.subquery()))
    overdue = (
        _found(delayed, literal("delayed", String), readable(delayed.c.available_at), literal(None, String))
        .add_columns(literal(0).label("place"), literal(0).label("line"))
        .where(_of_topic(delayed), _is_late(delayed))
        .order_by(delayed.c.available_at)
    )
    parts.append(select(overdue.subquery()))
    both = union_all(*parts).subquery()
    named = (both.c[name] for name in ("id", "key", "state", "since", "status"))
    return select(*named).order_by(both.c.place, both.c.line, both.c.id)


def _found(
    table: Table, state: ColumnElement[Any], time: ColumnElement[Any], status: ColumnElement[Any]
) -> Select[Any]:
    """Some of the missing messages."""
    c = table.c
    columns = c.id, c.key, state.label("state"), time.label("since"), status.label("status")
    return select(*columns).limit(bindparam("limit_", type_=Integer))


def _page(
    table: Table, state: ColumnElement[Any], time: ColumnElement[Any], late: ColumnElement[bool], key: str
) -> Select[Any]:
    """The same with the consumer's key, from an id on: not from a number, which several rows may have."""
    c = table.c
    asked = business_key(table, key).label("taken_by"), case((late, 1), else_=0).label("late")
    found = _found(table, state, time, literal(None, String)).add_columns(*asked)
    return found.where(c.id > bindparam("after_", type_=c.id.type)).order_by(c.id)


@cache
def asked_page(tables: OutboxTables, key: str) -> Select[Any]:
    """Messages that were sent without an answer, and are still in the outbox."""
    table = tables.message
    page = _page(table, state_of(table), since(table), _is_late(table), key)
    return page.where(
        _of_topic(table), or_(table.c.state != "pending", _is_being_sent(table)), _may_be_taken(table)
    )


@cache
def dead_page(tables: OutboxTables, key: str) -> Select[Any]:
    """Dead letters that may have been taken."""
    table = tables.dead
    page = _page(table, literal("dead", String), table.c.dead_at, true(), key)
    return page.where(_of_topic(table), _may_be_taken(table))


@cache
def sent_page(tables: OutboxTables, key: str) -> Select[Any]:
    """Messages that were sent."""
    table = tables.sent
    late = ~_is_recent(table.c.sent_at)
    return _page(table, literal("sent", String), table.c.sent_at, late, key).where(_sent(tables))


@cache
def count_sent(tables: OutboxTables, inbox: TakenRows, key: str) -> Select[int, int, int, Any]:
    """Count the sent messages, those not taken, and those that should have been taken by now; with the oldest
    time."""
    c = tables.sent.c
    is_untaken = _is_untaken(inbox)
    counts = (
        func.count().label("messages"),
        _count(is_untaken).label("untaken"),
        _count(and_(is_untaken, ~_is_recent(c.sent_at))).label("late"),
        func.min(c.sent_at, type_=c.sent_at.type).label("oldest"),
    )
    return select(*counts).select_from(_beside(tables.sent, inbox, key)).where(_sent(tables))


@cache
def untaken(tables: OutboxTables, inbox: TakenRows, key: str) -> Select[Any]:
    """Messages that were sent and should have been taken."""
    c = tables.sent.c
    found = _found(tables.sent, literal("sent", String), c.sent_at, inbox.status.c.status)
    beside = found.select_from(_beside(tables.sent, inbox, key))
    return beside.where(_sent(tables), _is_untaken(inbox), ~_is_recent(c.sent_at)).order_by(c.id)


@cache
def taken(inbox: TakenRows) -> Select[Any]:
    """The given keys that the consumer has taken on the exactly-once path."""
    return select(inbox.message.c.key).where(_these_keys(inbox.message))


@cache
def statuses(inbox: TakenRows) -> Select[Any]:
    """The statuses of the given keys in status-table mode."""
    return select(inbox.status.c.key, inbox.status.c.status).where(_these_keys(inbox.status))


def _these_keys(table: FromClause) -> ColumnElement[bool]:
    consumer = table.c.consumer == bindparam("consumer_", type_=table.c.consumer.type)
    return and_(consumer, table.c.key.in_(bindparam("keys_", expanding=True, type_=table.c.key.type)))


@cache
def unrecorded(tables: OutboxTables) -> Select[Any, Any, Any]:
    """When messages of the topic last left without a record; whether relays are at work that keep none; and
    the database's clock."""
    c = tables.gone.c
    topic = bindparam("topic_", type_=c.topic.type)
    last = select(func.max(c.gone_at, type_=c.gone_at.type)).where(c.topic.in_((topic, ALL_TOPICS)))
    keep_none = exists(select(literal(1)).where(tables.relay.c.keeps_sent.is_(None)))
    asked = last.scalar_subquery().label("last"), keep_none.label("goes_on"), utcnow().label("now")
    return select(*asked)


@cache
def oldest_taken(inbox: Tables) -> Select[Any]:
    """When the consumer took the oldest message in its inbox, on the exactly-once path."""
    return _oldest(inbox.message.c.consumer, inbox.message.c.accepted_at)


@cache
def oldest_load(inbox: Tables) -> Select[Any]:
    """When a job took the oldest messages that it wrote in bulk."""
    return _oldest(inbox.ledger.c.consumer, inbox.ledger.c.committed_at)


def _oldest(consumer: ColumnElement[str], time: ColumnElement[Any]) -> Select[Any]:
    mine = consumer == bindparam("consumer_", type_=consumer.type)
    return select(func.min(time, type_=time.type)).where(mine)
