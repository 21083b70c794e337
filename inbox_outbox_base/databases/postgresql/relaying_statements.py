"""PostgreSQL: the statements of a relay, for all buckets together.

The plans are forced as far as possible: a plan that was made for an empty table is cached, and once millions
of messages wait, a sequential scan would be fatal.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Delete,
    Integer,
    LargeBinary,
    Select,
    TableValuedAlias,
    Text,
    TextClause,
    Update,
    and_,
    any_,
    bindparam,
    cast,
    column,
    delete,
    func,
    select,
    text,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, Insert, array, insert
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeEngine

from inbox_outbox_base.databases import member_statements, relaying_statements
from inbox_outbox_base.tables.columns import utcnow
from inbox_outbox_base.tables.outbox import OutboxTables

from .numbers import array_of

_NOT_TEXT: dict[str, type[TypeEngine[Any]]] = {"bucket": Integer, "own_id": Boolean}
_OFF = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit")
_SCANNING = dict.fromkeys(_OFF, "'off'") | {"TimeZone": "'UTC'"}
"""With these settings the planner reads tables by their indexes, and psycopg has no times to convert."""
_LIMITS = dict.fromkeys(("idle_in_transaction_session_timeout", "tcp_user_timeout"), "CAST(:limit AS text)")
"""The limits for a server that waits for the relay, and for one that sends rows to it. Without them, if a
relay hangs or its machine is gone, its transaction would keep the relay's row locked, and no other relay
could take its buckets."""
_COMMIT = "synchronous_commit"
_WAITING = {_COMMIT: f"replace(current_setting('{_COMMIT}'), 'off', 'on')"}
"""The commit waits for the disk. Then all of the log before it is on disk, too: no crash undoes the
transactions whose messages are sent now."""


def _applied(settings: Mapping[str, str]) -> str:
    """Settings until the transaction ends: in one column, and without parameters for constants, because
    thirty of these cost a client as much as a short statement."""
    calls = [f"set_config('{name}', {value}, true)" for name, value in settings.items()]
    return f"concat({', '.join(calls)})"


@cache
def prepare() -> TextClause:
    """Settings for a scan."""
    return text(f"SELECT {_applied(_SCANNING)}")


@cache
def hold(tables: OutboxTables) -> Select[Any]:
    """Lock the lease, and apply the settings for a scan in the same statement. The parameter `limit` is in
    milliseconds."""
    return member_statements.hold(tables).add_columns(text(_applied(_SCANNING | _LIMITS | _WAITING)))


@cache
def renew(tables: OutboxTables) -> Update:
    """The same, and renew the lease."""
    return member_statements.renew(tables).returning(text(_applied(_SCANNING | _LIMITS | _WAITING)))


@cache
def add_many(tables: OutboxTables, names: tuple[str, ...]) -> Insert:
    """Many messages, numbered in order: the payloads as one value, which the server cuts, and the rest as
    JSON. For client and server, this is many times faster than an array for each column."""
    given = (
        func.json_to_recordset(cast(bindparam("rows", type_=Text), JSON))
        .table_valued(
            *(column(name, _NOT_TEXT.get(name, Text)) for name in names),
            *(column(name, Integer) for name in ("place", "start", "size")),
            name="given",
        )
        .render_derived(with_types=True)
    )
    payload = func.substring(bindparam("payloads", type_=LargeBinary), given.c.start, given.c.size)
    rows = select(*(given.c[name] for name in names), payload).order_by(given.c.place)
    return insert(tables.message).from_select((*names, "payload"), rows)


@cache
def take_ids(tables: OutboxTables) -> ReturningInsert[tuple[str]]:
    """Ids that nobody uses."""
    given = func.json_array_elements_text(cast(bindparam("ids", type_=Text), JSON)).column_valued("given")
    added = insert(tables.ids).from_select(["id"], select(given))
    # Only this key: what another one refuses is not in use, but an error.
    return added.on_conflict_do_nothing(index_elements=["id"]).returning(tables.ids.c.id)


@cache
def scan(tables: OutboxTables, *, unknown: bool, unpaused: bool) -> Select[Any]:
    """The oldest messages of each bucket in turn, until there are enough."""
    c = tables.message.c
    places = _places()
    limit = bindparam("limit", type_=Integer)
    of_bucket = (
        select(*relaying_statements.fetched(tables))
        .where(c.bucket == places.c.bucket, c.sequence > places.c.low)
        .order_by(c.sequence)
        .limit(bindparam("each", type_=Integer))
    )
    if unknown:
        # A sub-select is hashed; older servers would compare each row with each element of an array.
        arrays = array_of("known_buckets", Integer), array_of("known", BigInteger)
        known = func.unnest(*arrays).table_valued("bucket", "sequence", name="known").render_derived()
        of_bucket = of_bucket.where(tuple_(c.bucket, c.sequence).not_in(select(*known.c)))
    if unpaused:
        of_bucket = of_bucket.where(c.topic != func.all(bindparam("paused", type_=ARRAY(Text))))
    found = of_bucket.lateral("found")
    return select(*found.c).select_from(places.join(found, true())).limit(limit)


@cache
def firsts(tables: OutboxTables, *, unpaused: bool) -> Select[Any, Any, Any]:
    """The oldest message of each of these keys in each of these buckets: above a sequence for each bucket,
    and below one for all."""
    c, places = tables.message.c, _places()
    # IS TRUE keeps the planner from a join: the sub-select is hashed, whatever the statistics say.
    keys = select(func.unnest(bindparam("keys", type_=ARRAY(Text))).column_valued("wanted"))
    of_bucket = select(c.key, func.min(c.sequence).label("sequence")).where(
        c.bucket == places.c.bucket,
        c.sequence > places.c.low,
        c.sequence < bindparam("high", type_=BigInteger),
        c.key.in_(keys).is_(true()),
    )
    if unpaused:
        of_bucket = of_bucket.where(c.topic != func.all(bindparam("paused", type_=ARRAY(Text))))
    found = of_bucket.group_by(c.key).lateral("found")
    return select(found.c.key, places.c.bucket, found.c.sequence).select_from(places.join(found, true()))


def _places() -> TableValuedAlias:
    """Buckets, each with a sequence above which to read."""
    given = func.unnest(array_of("buckets", Integer), array_of("lows", BigInteger))
    return given.table_valued("bucket", "low", name="place").render_derived()


def _given(tables: OutboxTables, *, by_id: bool = False) -> ColumnElement[bool]:
    """The messages with the given buckets and sequences. With `by_id` their ids must match too: after a
    failover that lost the last commits, other messages may have their numbers.

    The bucket is compared with an array of one element, so that the planner has to use the index. Otherwise,
    if the table was empty when it was last analysed, the planner would scan the table and compare each row
    with all given places.
    """
    c = tables.message.c
    arrays = [array_of("buckets", Integer), array_of("sequences", BigInteger)]
    if by_id:
        arrays.append(array_of("ids", Text))
    names = ["bucket", "sequence", "id"][: len(arrays)]
    given = func.unnest(*arrays).table_valued(*names, name="given").render_derived()
    found = and_(c.bucket == any_(array([given.c.bucket])), c.sequence == given.c.sequence)
    return and_(found, c.id == given.c.id) if by_id else found


@cache
def fetch(tables: OutboxTables) -> Select[Any]:
    """Some messages."""
    return select(*relaying_statements.fetched(tables)).where(_given(tables))


@cache
def progress(tables: OutboxTables) -> Select[Any]:
    """How much longer some messages must wait."""
    return select(*relaying_statements.progressed(tables)).where(_given(tables))


@cache
def payloads(tables: OutboxTables) -> Select[Any]:
    """The payloads of some messages."""
    c = tables.message.c
    return select(c.bucket, c.sequence, c.payload).where(_given(tables))


@cache
def left(tables: OutboxTables) -> Select[Any]:
    """The messages among these that still exist."""
    return select(tables.message.c.id).where(_given(tables, by_id=True))


@cache
def forget(tables: OutboxTables) -> Delete:
    """Delete messages that have left."""
    return delete(tables.message).where(_given(tables, by_id=True))


@cache
def record_sent(tables: OutboxTables) -> Insert:
    """Delete messages that have left, and record them; somebody else may have written two messages with one
    id."""
    names = relaying_statements.SENT
    gone = forget(tables).returning(*(tables.message.c[name] for name in names)).cte("gone")
    record = select(*relaying_statements.sent(gone.c))
    added = insert(tables.sent).from_select(relaying_statements.RECORD, record)
    return added.on_conflict_do_nothing(index_elements=["id"])


@cache
def gone(tables: OutboxTables) -> Insert:
    """Note that messages of a topic have left without a record."""
    noted = insert(tables.gone)
    return noted.on_conflict_do_update(index_elements=[tables.gone.c.topic], set_={"gone_at": utcnow()})
