"""The operators' statements: pure, built once, executed elsewhere."""

from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    CompoundSelect,
    Delete,
    Float,
    Insert,
    Integer,
    Select,
    String,
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
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from inbox_outbox_base.databases.relaying_statements import CONTENT, content, since, this
from inbox_outbox_base.tables.columns import from_now
from inbox_outbox_base.tables.inbox import utcnow
from inbox_outbox_base.tables.times import readable
from outbox.schema import OutboxTables


def state_of(table: Table) -> ColumnElement[str]:
    """The state of messages that wait for a relay, as operators know it."""
    return case((_is_waiting(table), literal("waiting", String)), else_=table.c.state)


def _is_waiting(table: Table) -> ColumnElement[bool]:
    """Sent and not accepted. `retry_at` alone does not tell: a delayed message has it before it is sent."""
    c = table.c
    return and_(c.state == "pending", c.retry_at.is_not(None), c.attempts > 0)


@cache
def pauses(tables: OutboxTables) -> Select[Any]:
    """The paused topics, with who has paused them and why."""
    c = tables.pause.c
    paused_at = readable(c.paused_at).label("paused_at")
    return select(c.topic, paused_at, c.paused_by, c.why).order_by(c.topic)


@cache
def find_aside(tables: OutboxTables) -> CompoundSelect[Any]:
    """A dead or delayed message, by its id."""
    return union_all(*(_aside(table, state) for table, state in _asides(tables)))


@cache
def find(tables: OutboxTables) -> CompoundSelect[Any]:
    """A message by its id, in any table: one statement, which sees it in one place."""
    c = tables.message.c
    waiting = select(c.id, c.topic, c.key, state_of(tables.message).label("state"), c.bucket, c.sequence)
    return union_all(
        waiting.where(c.id == bindparam("id_")),
        *(_aside(table, state) for table, state in _asides(tables)),
    )


def _asides(tables: OutboxTables) -> tuple[tuple[Table, str], ...]:
    return (tables.dead, "dead"), (tables.delayed, "delayed")


def _aside(table: Table, state: str) -> Select[Any]:
    c = table.c
    number = (c.sequence if "sequence" in c else literal(0)).label("sequence")
    found = select(c.id, c.topic, c.key, literal(state, String).label("state"), c.bucket, number)
    return found.where(c.id == bindparam("id_"))


@cache
def let_go(tables: OutboxTables) -> Update:
    """Make held messages pending again, with zero attempts; the last error stays readable."""
    anew = {"state": "pending", "retry_at": null(), "attempts": 0, "unanswered": 0, "failing_since": null()}
    return update(tables.message).where(tables.message.c.state == "held").values(anew)


@cache
def let_go_one(tables: OutboxTables) -> Update:
    """The same for one message."""
    return let_go(tables).where(this(tables))


@cache
def end_wait(tables: OutboxTables) -> Update:
    """Send waiting messages now instead of at their next retry."""
    return update(tables.message).where(tables.message.c.state != "held").values(retry_at=null())


@cache
def end_one_wait(tables: OutboxTables) -> Update:
    """The same for one message, if it still waits."""
    return end_wait(tables).where(this(tables))


def of_bucket(tables: OutboxTables) -> ColumnElement[bool]:
    """Some messages of one bucket, by their sequences."""
    c = tables.message.c
    return and_(c.bucket == bindparam("bucket_"), c.sequence.in_(bindparam("these", expanding=True)))


def is_old(tables: OutboxTables) -> ColumnElement[bool]:
    """Whether a letter died longer ago than a number of seconds."""
    return tables.dead.c.dead_at < select(from_now(bindparam("age", type_=Float))).scalar_subquery()


@cache
def lock_messages(tables: OutboxTables) -> Update:
    """Lock some messages of a bucket until the transaction ends, by a write: SQLite has no other lock."""
    return update(tables.message).where(of_bucket(tables)).values(attempts=tables.message.c.attempts)


@cache
def drop_messages(tables: OutboxTables) -> Delete:
    """Delete some messages of a bucket."""
    return delete(tables.message).where(of_bucket(tables))


@cache
def lock_dead(tables: OutboxTables) -> Update:
    """Lock some dead letters until the transaction ends, by a write: SQLite has no other lock."""
    these = tables.dead.c.id.in_(bindparam("these", expanding=True))
    return update(tables.dead).where(these).values(outcome=tables.dead.c.outcome)


@cache
def still_dead(tables: OutboxTables) -> Select[Any]:
    """The dead letters that now have the given ids."""
    c = tables.dead.c
    return select(c.id, c.topic, c.key).where(c.id.in_(bindparam("these", expanding=True)))


@cache
def revive(tables: OutboxTables) -> Insert:
    """Insert a dead letter as a message, at the end of its bucket."""
    c = tables.dead.c
    kept = [name for name in CONTENT if name != "bucket"]
    row = select(bindparam("bucket_", type_=c.bucket.type), *content(tables.dead, "bucket"))
    return insert(tables.message).from_select(["bucket", *kept], row.where(c.id == bindparam("id_")))


@cache
def forget_dead(tables: OutboxTables) -> Delete:
    """Delete dead letters."""
    return delete(tables.dead).where(tables.dead.c.id.in_(bindparam("these", expanding=True)))


@cache
def old_dead(tables: OutboxTables) -> Select[Any]:
    """Ids of some dead letters that died longer ago than a number of seconds."""
    return select(tables.dead.c.id).where(is_old(tables)).limit(bindparam("limit", type_=Integer))


@cache
def count_old_dead(tables: OutboxTables) -> Select[Any]:
    """How many dead letters died longer ago than a number of seconds."""
    return select(func.count()).select_from(tables.dead).where(is_old(tables))


@cache
def drop(tables: OutboxTables) -> Delete:
    """Delete a message that waits for a relay."""
    return delete(tables.message).where(this(tables))


@cache
def drop_delayed(tables: OutboxTables) -> Delete:
    """Delete a delayed message, and none that was published later with its id."""
    c = tables.delayed.c
    return delete(tables.delayed).where(c.id == bindparam("id_"), c.sequence == bindparam("sequence_"))


@cache
def lock_relays(tables: OutboxTables) -> Update:
    """Keep relays from noting a batch until the transaction ends, by a write: SQLite has no other lock."""
    return update(tables.relay).values(name=tables.relay.c.name)


@cache
def relays(tables: OutboxTables) -> Select[Any]:
    """The relays with their buckets and the database's clock, in the order in which they joined."""
    c, bucket = tables.relay.c, tables.bucket.c
    owned = select(func.count()).where(bucket.epoch == c.epoch).scalar_subquery().label("buckets")
    its = (c.epoch, c.name, c.lease_until, c.lease_ms, c.sending, c.joined_at, c.generation)
    return select(*its, c.crowded_by, c.lanes, owned, utcnow().label("now")).order_by(c.epoch)


@cache
def pause(tables: OutboxTables) -> Insert:
    """Pause a topic, unless it is paused."""
    c = tables.pause.c
    topic = bindparam("topic_", type_=c.topic.type)
    said = (bindparam(name, type_=c[name].type) for name in ("paused_by", "why"))
    is_new = ~exists(select(literal(1)).where(c.topic == topic))
    row = select(topic, *said).where(is_new)
    added = insert(tables.pause).from_select(["topic", "paused_by", "why"], row)
    return added.execution_options(preserve_rowcount=True)


@cache
def is_paused(tables: OutboxTables) -> Select[Any]:
    """Whether a topic is paused by its name."""
    c = tables.pause.c
    return select(c.topic).where(c.topic == bindparam("topic_", type_=c.topic.type))


@cache
def resume(tables: OutboxTables) -> Delete:
    """End the pause of a topic."""
    return delete(tables.pause).where(tables.pause.c.topic == bindparam("topic_"))


@cache
def buckets(tables: OutboxTables) -> Select[Any]:
    """All buckets with their owners."""
    return select(tables.bucket.c.bucket, tables.bucket.c.epoch).order_by(tables.bucket.c.bucket)


@cache
def add_buckets(tables: OutboxTables) -> Insert:
    """Insert buckets without an owner, which are not used yet."""
    c = tables.bucket.c
    names = ("bucket", "generation")
    return insert(tables.bucket).values({name: bindparam(f"{name}_", type_=c[name].type) for name in names})


def _unused(tables: OutboxTables) -> ColumnElement[bool]:
    c = tables.bucket.c
    return and_(c.generation == bindparam("generation_"), c.added_at.is_(None))


@cache
def open_buckets(tables: OutboxTables) -> Update:
    """Let messages be published to buckets that were added before."""
    return update(tables.bucket).where(_unused(tables)).values(added_at=utcnow())


@cache
def drop_unused(tables: OutboxTables) -> Delete:
    """Delete buckets that were added and never used."""
    return delete(tables.bucket).where(_unused(tables))


@cache
def announce(tables: OutboxTables) -> Update:
    """Announce a new generation of buckets to the relays that know generations."""
    c = tables.relay.c
    generation: BindParameter[int] = bindparam("generation_", type_=c.generation.type)
    return update(tables.relay).where(c.generation.between(1, generation - 1)).values(generation=generation)


@cache
def added_at(tables: OutboxTables) -> Select[Any, Any]:
    """By generation, when its buckets were added."""
    c = tables.bucket.c
    return select(c.generation, readable(func.min(c.added_at)).label("added_at")).group_by(c.generation)


@cache
def count_up_to(table: Table) -> Select[Any]:
    """Count the rows, up to a limit."""
    rows = select(literal(1).label("row")).select_from(table)
    return select(func.count()).select_from(rows.limit(bindparam("limit", type_=Integer)).subquery())


@cache
def count_between(table: Table) -> Select[Any]:
    """Count the rows in some neighbouring buckets, up to a limit."""
    between = table.c.bucket.between(bindparam("first", type_=Integer), bindparam("last", type_=Integer))
    rows = select(literal(1).label("row")).select_from(table).where(between)
    return select(func.count()).select_from(rows.limit(bindparam("limit", type_=Integer)).subquery())


@cache
def count_states(tables: OutboxTables, *, few: bool) -> Select[Any]:
    """Count the messages in each state, with the oldest time: all messages, or one bucket's oldest few."""
    c = tables.message.c
    chosen = select(state_of(tables.message).label("state"), since(tables.message).label("since"))
    if few:
        chosen = chosen.where(above(tables))
        chosen = chosen.order_by(c.sequence).limit(bindparam("limit", type_=Integer))
    found = chosen.subquery()
    oldest = readable(func.min(found.c.since)).label("since")
    return select(found.c.state, func.count().label("messages"), oldest).group_by(found.c.state)


def above(tables: OutboxTables) -> ColumnElement[bool]:
    """The messages of a bucket above a sequence."""
    c = tables.message.c
    return and_(c.bucket == bindparam("bucket_"), c.sequence > bindparam("low_"))


@cache
def can_leave(tables: OutboxTables, *, of_bucket: bool, across: bool) -> Select[Any]:
    """One message, if there is any, that can be sent: not held, not behind a held one of its key (with
    `across`, in any bucket), and not paused. It looks in all existing buckets, or in one above a sequence."""
    c, before = tables.message.c, tables.message.alias().c
    is_first = and_(before.key == c.key, before.sequence < c.sequence, before.state == "held")
    is_near = true() if across else before.bucket == c.bucket
    is_behind = exists(select(literal(1)).where(is_first, is_near))
    is_paused = exists(select(literal(1)).where(or_(tables.pause.c.topic == c.topic, _all_topics(tables))))
    place = above(tables) if of_bucket else c.bucket.in_(select(tables.bucket.c.bucket))
    return select(literal(1)).where(c.state != "held", ~is_behind, ~is_paused, place).limit(1)


def has_a_time(due: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a message's due time may be one: a foreign program may have written another value."""
    return due > datetime(1970, 1, 1, tzinfo=UTC)


@cache
def oldest_due(tables: OutboxTables) -> Select[Any]:
    """When the delayed message that is due for the longest time was due, if there is one."""
    due = tables.delayed.c.available_at
    is_over = due <= select(utcnow()).scalar_subquery()
    return select(readable(due)).where(has_a_time(due), is_over).order_by(due).limit(1)


@cache
def is_due(tables: OutboxTables) -> Select[Any]:
    """One delayed message, if there is any, that is due. It looks in all existing buckets."""
    c = tables.delayed.c
    is_over = c.available_at <= select(utcnow()).scalar_subquery()
    return select(literal(1)).where(is_over, c.bucket.in_(select(tables.bucket.c.bucket))).limit(1)


def _all_topics(tables: OutboxTables) -> ColumnElement[bool]:
    return tables.pause.c.topic == "*"
