"""The statements about relays, their leases and their buckets, which are the same on every database."""

from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Delete,
    Insert,
    Integer,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    update,
)

from inbox_outbox_base.tables.inbox import utcnow
from inbox_outbox_base.tables.outbox import OutboxTables

from .relaying_statements import among, in_seconds, since_first


@cache
def count_buckets(tables: OutboxTables) -> Select[Any]:
    """How many buckets the database has."""
    return select(func.count()).select_from(tables.bucket)


@cache
def generations(tables: OutboxTables) -> Select[Any, Any, Any, Any]:
    """The generations of buckets, oldest first: each has neighbouring numbers."""
    c = tables.bucket.c
    first, is_open = func.min(c.bucket).label("first"), (func.count(c.added_at) > 0).label("is_open")
    found = select(c.generation, first, func.count().label("buckets"), is_open)
    return found.group_by(c.generation).order_by(c.generation)


@cache
def aged(tables: OutboxTables) -> Select[Any]:
    """The generations that were added more than a number of seconds ago."""
    c = tables.bucket.c
    ago = select(in_seconds("age")).scalar_subquery()
    return select(c.generation).where(c.added_at < ago).distinct()


@cache
def retire(tables: OutboxTables) -> Delete:
    """Delete the buckets of a generation."""
    return delete(tables.bucket).where(tables.bucket.c.generation == bindparam("generation_"))


@cache
def anything(table: Table) -> Select[Any]:
    """One message, if there is any, in some neighbouring buckets."""
    c = table.c
    between = c.bucket.between(bindparam("first", type_=Integer), bindparam("last", type_=Integer))
    return select(literal(1)).where(between).limit(1)


@cache
def due_strays(tables: OutboxTables) -> Select[Any]:
    """Due delayed messages in buckets that do not exist."""
    c = tables.delayed.c
    is_stray = c.bucket.not_in(select(tables.bucket.c.bucket))
    found = select(c.id, c.key).where(c.available_at <= select(utcnow()).scalar_subquery(), is_stray)
    return found.order_by(c.available_at, c.id).limit(bindparam("limit", type_=Integer))


@cache
def take_in(tables: OutboxTables) -> Update:
    """Move a message to another bucket; it keeps its sequence."""
    c = tables.message.c
    place = and_(c.bucket == bindparam("bucket_"), c.sequence == bindparam("sequence_"))
    this = and_(place, c.id == bindparam("id_", type_=c.id.type))
    return update(tables.message).where(this).values(bucket=bindparam("to", type_=c.bucket.type))


@cache
def take_in_delayed(tables: OutboxTables) -> Update:
    """Move a delayed message to another bucket."""
    c = tables.delayed.c
    this = c.id == bindparam("id_", type_=c.id.type)
    return update(tables.delayed).where(this).values(bucket=bindparam("to", type_=c.bucket.type))


@cache
def join(tables: OutboxTables) -> Insert:
    """Insert a new relay."""
    c = tables.relay.c
    names = ("epoch", "name", "generation", "keeps_sent", "lease_ms")
    given = {name: bindparam(name, type_=c[name].type) for name in names}
    return insert(tables.relay).values(given | {"lease_until": in_seconds("lease")})


def _held(tables: OutboxTables) -> ColumnElement[bool]:
    """The row of a relay that still has its lease and knows the newest generation of buckets."""
    c = tables.relay.c
    return and_(c.epoch == bindparam("epoch_"), c.generation == bindparam("generation_"))


@cache
def hold(tables: OutboxTables) -> Select[Any]:
    """Lock a relay's row, if the relay still has its lease and knows the newest generation of buckets. It
    writes no version of the row: `note` does."""
    return select(tables.relay.c.epoch).where(_held(tables)).with_for_update(key_share=True)


@cache
def renew(tables: OutboxTables) -> Update:
    """The same, and renew the lease."""
    return update(tables.relay).where(_held(tables)).values(lease_until=in_seconds("lease"))


@cache
def announced(tables: OutboxTables) -> Select[Any]:
    """The newest generation of buckets announced to a relay, if the relay still exists."""
    return select(tables.relay.c.generation).where(tables.relay.c.epoch == bindparam("epoch_"))


@cache
def note(tables: OutboxTables) -> Update:
    """Record the messages that a relay is about to send, and renew its lease: one version of the row."""
    mine = tables.relay.c.epoch == bindparam("epoch_")
    sending: BindParameter[Any] = bindparam("sending", type_=tables.relay.c.sending.type)
    given = (tables.relay.c.sending, sending), (tables.relay.c.lease_until, in_seconds("lease"))
    return update(tables.relay).where(mine).ordered_values(*given)


@cache
def note_topics(tables: OutboxTables) -> Update:
    """Record which topic fills a relay's memory, and which ones the broker rejects."""
    c = tables.relay.c
    given = {name: bindparam(name, type_=c[name].type) for name in ("crowded_by", "lanes")}
    return update(tables.relay).where(c.epoch == bindparam("epoch_")).values(given)


@cache
def leave(tables: OutboxTables) -> Delete:
    """Delete a relay."""
    return delete(tables.relay).where(tables.relay.c.epoch == bindparam("epoch_"))


@cache
def expired(tables: OutboxTables) -> Select[Any]:
    """Lock the other relays whose lease is over, skipping those that somebody else is retiring.

    The transaction has renewed this relay's own lease, which may be over by now if it had to wait.
    """
    c = tables.relay.c
    return (
        select(c.epoch, c.name, c.sending, c.keeps_sent)
        .where(c.lease_until < utcnow(), c.epoch != bindparam("epoch_"))
        .order_by(c.epoch)
        .with_for_update(skip_locked=True)
    )


@cache
def suspect(tables: OutboxTables) -> Update:
    """Mark a message that a relay was sending when it was lost: the broker may have it."""
    c = tables.message.c
    this = and_(c.bucket == bindparam("bucket_"), c.sequence == bindparam("sequence_"))
    return (
        update(tables.message)
        .where(this, c.state != "held")
        .values(
            attempts=c.attempts + 1,
            unanswered=c.unanswered + 1,
            state="unknown",
            retry_at=null(),
            error=bindparam("error_"),
            failing_since=since_first(tables),
        )
    )


@cache
def live(tables: OutboxTables) -> Select[Any, Any, Any, Any]:
    """The relays at work, oldest first, with their leases and the ends of these, and the database's clock."""
    c = tables.relay.c
    now = utcnow()
    return (
        select(c.epoch, c.lease_until, c.lease_ms, now.label("now"))
        .where(c.lease_until >= now)
        .order_by(c.epoch)
    )


@cache
def owned(tables: OutboxTables) -> Select[Any, Any, Any]:
    """The buckets of one relay, with their marks."""
    c = tables.bucket.c
    return select(c.bucket, c.mark, c.mark_origin).where(c.epoch == bindparam("epoch_")).order_by(c.bucket)


@cache
def gone(tables: OutboxTables) -> Select[Any]:
    """Epochs of buckets whose relay has no row, as after a DELETE by hand."""
    epoch = tables.bucket.c.epoch
    return select(epoch).where(epoch.is_not(None), epoch.not_in(select(tables.relay.c.epoch))).distinct()


@cache
def free(tables: OutboxTables) -> Select[Any, Any, Any]:
    """Lock buckets that are free or have one of these epochs, skipping those that somebody else is taking.

    (The epochs come from `gone`, an earlier statement: a relay that joins meanwhile has none of them.)
    """
    c = tables.bucket.c
    return (
        select(c.bucket, c.mark, c.mark_origin)
        .where(or_(c.epoch.is_(None), c.epoch.in_(bindparam("gone", expanding=True))))
        .order_by(c.bucket)
        .limit(bindparam("limit", type_=Integer))
        .with_for_update(skip_locked=True)
    )


@cache
def take(tables: OutboxTables) -> Update:
    """Give buckets to a relay or, without an epoch, to nobody."""
    epoch: BindParameter[Any] = bindparam("epoch", type_=tables.bucket.c.epoch.type)
    return update(tables.bucket).where(among(tables.bucket, "bucket")).values(epoch=epoch)


@cache
def free_all(tables: OutboxTables) -> Update:
    """Free all buckets of a relay."""
    mine = tables.bucket.c.epoch == bindparam("epoch_")
    return update(tables.bucket).where(mine).values(epoch=null(), freed_at=utcnow())


@cache
def keep_mark(tables: OutboxTables) -> Update:
    """Store the mark of a bucket, if the relay still owns it."""
    c = tables.bucket.c
    mine = and_(c.bucket == bindparam("bucket_"), c.epoch == bindparam("epoch_"))
    given = {name: bindparam(f"{name}_", type_=c[name].type) for name in ("mark", "mark_origin")}
    return update(tables.bucket).where(mine).values(given)


@cache
def forget_marks(tables: OutboxTables) -> Update:
    """Forget the marks of all buckets."""
    c = tables.bucket.c
    return update(tables.bucket).where(c.mark.is_not(None)).values(mark=null(), mark_origin=null())
