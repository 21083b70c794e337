"""The statements of the audit: pure, built once, executed elsewhere."""

from functools import cache
from typing import Any

from sqlalchemy import (
    Float,
    FromClause,
    Integer,
    Select,
    String,
    Table,
    and_,
    bindparam,
    case,
    func,
    literal,
    null,
    or_,
    select,
)
from sqlalchemy.sql.elements import ColumnElement

from inbox._columns import from_now
from inbox.schema import Tables

from ..schema import OutboxTables
from .statements import state_of


def _of_topic(table: Table) -> ColumnElement[bool]:
    """The messages of the topic that were published since the time of interest."""
    c = table.c
    since = bindparam("since_", type_=c.created_at.type)
    return and_(c.topic == bindparam("topic_", type_=c.topic.type), c.created_at >= since)


def _sent(tables: OutboxTables) -> ColumnElement[bool]:
    """The same of those that have left; said once more in terms of the column that has an index."""
    table = tables.sent
    since = bindparam("since_", type_=table.c.created_at.type)
    return and_(_of_topic(table), table.c.sent_at >= since)


def _is_recent(time: ColumnElement[Any]) -> ColumnElement[bool]:
    """Not older than the grace that messages have to get on."""
    return time >= from_now(bindparam("age_", type_=Float))


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.count(case((condition, 1)))


def _found(
    table: Table, state: ColumnElement[Any], since: ColumnElement[Any], status: ColumnElement[Any]
) -> Select[Any]:
    """Messages that are missing, some of them."""
    c = table.c
    columns = c.id, c.key, state.label("state"), since.label("since"), status.label("status")
    return select(*columns).limit(bindparam("limit_", type_=Integer))


@cache
def count_unsent(tables: OutboxTables) -> Select[int, int]:
    """How many messages wait for a relay, and how many of them may simply be on their way."""
    table = tables.message
    recent = and_(table.c.state != "held", _is_recent(table.c.created_at))
    counts = func.count().label("messages"), _count(recent).label("recent")
    return select(*counts).select_from(table).where(_of_topic(table))


@cache
def unsent(tables: OutboxTables) -> Select[Any]:
    """Messages that wait for a relay, and should have left."""
    table = tables.message
    c = table.c
    late = or_(c.state == "held", ~_is_recent(c.created_at))
    found = _found(table, state_of(table), c.created_at, null())
    return found.where(_of_topic(table), late).order_by(c.sequence)


@cache
def count_aside(table: Table) -> Select[Any]:
    """How many messages are dead, or delayed."""
    return select(func.count()).select_from(table).where(_of_topic(table))


@cache
def dead(tables: OutboxTables) -> Select[Any]:
    """Dead letters."""
    table = tables.dead
    found = _found(table, literal("dead", String), table.c.dead_at, null())
    return found.where(_of_topic(table)).order_by(table.c.id)


def business_key(tables: OutboxTables, key: str) -> ColumnElement[Any]:
    """What the consumer takes a message by: its key, or its id if it has none; or always its id."""
    c = tables.sent.c
    return c.id if key == "id" else func.coalesce(c.key, c.id, type_=c.key.type)


def _beside(tables: OutboxTables, inbox: Tables, key: str) -> FromClause:
    """What has left, beside what the consumer knows of it in either mode."""
    joined: FromClause = tables.sent
    for table in (inbox.message, inbox.status):
        consumer = table.c.consumer == bindparam("consumer_", type_=table.c.consumer.type)
        same = and_(consumer, table.c.key == business_key(tables, key))
        joined = joined.outerjoin(table, same)
    return joined


def _is_untaken(inbox: Tables) -> ColumnElement[bool]:
    status = inbox.status.c.status
    return and_(inbox.message.c.key.is_(None), or_(status.is_(None), status != "consumed"))


@cache
def count_sent(tables: OutboxTables, inbox: Tables, key: str) -> Select[int, int, int, Any]:
    """How many messages have left, and since when; how many of them were not taken, and how many of those
    may simply be on their way."""
    c = tables.sent.c
    is_untaken = _is_untaken(inbox)
    counts = (
        func.count().label("messages"),
        _count(is_untaken).label("untaken"),
        _count(and_(is_untaken, _is_recent(c.sent_at))).label("recent"),
        func.min(c.sent_at, type_=c.sent_at.type).label("oldest"),
    )
    return select(*counts).select_from(_beside(tables, inbox, key)).where(_sent(tables))


@cache
def untaken(tables: OutboxTables, inbox: Tables, key: str) -> Select[Any]:
    """Messages that have left, and should have been taken."""
    c = tables.sent.c
    found = _found(tables.sent, literal("sent", String), c.sent_at, inbox.status.c.status)
    late = ~_is_recent(c.sent_at)
    beside = found.select_from(_beside(tables, inbox, key))
    return beside.where(_sent(tables), _is_untaken(inbox), late).order_by(c.id)


@cache
def sent_page(tables: OutboxTables, key: str) -> Select[Any]:
    """Messages that have left, by their ids: those behind one."""
    c = tables.sent.c
    found = _found(tables.sent, literal("sent", String), c.sent_at, null())
    taken_by = business_key(tables, key).label("taken_by")
    recent = case((_is_recent(c.sent_at), 1), else_=0).label("recent")
    page = found.add_columns(taken_by, recent)
    return page.where(_sent(tables), c.id > bindparam("after_")).order_by(c.id)


@cache
def taken(inbox: Tables) -> Select[Any]:
    """Which of some keys the consumer has taken on the exactly-once path."""
    return select(inbox.message.c.key).where(_these_keys(inbox.message))


@cache
def statuses(inbox: Tables) -> Select[Any]:
    """How far some keys are in status-table mode."""
    return select(inbox.status.c.key, inbox.status.c.status).where(_these_keys(inbox.status))


def _these_keys(table: Table) -> ColumnElement[bool]:
    consumer = table.c.consumer == bindparam("consumer_", type_=table.c.consumer.type)
    return and_(consumer, table.c.key.in_(bindparam("keys_", expanding=True, type_=table.c.key.type)))


@cache
def oldest_taken(inbox: Tables) -> Select[Any]:
    """When the consumer took the oldest message that its inbox still knows on the exactly-once path."""
    c = inbox.message.c
    mine = c.consumer == bindparam("consumer_", type_=c.consumer.type)
    return select(func.min(c.accepted_at, type_=c.accepted_at.type)).where(mine)
