"""PostgreSQL: who is drawing message numbers, and which messages a relay has overlooked."""

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Integer,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    extract,
    func,
    literal_column,
    select,
    table,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, OID, REGCLASS
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import Subquery
from sqlalchemy.types import UserDefinedType

from inbox_outbox_base.tables.inbox import utcnow
from inbox_outbox_base.tables.outbox import OutboxTables

from .relations import name_of, relation


class Tid(UserDefinedType[str]):
    """A row's place in the table: its page, and its number there."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Its name in SQL."""
        return "tid"


def array_of(name: str, number: Any) -> ColumnElement[Any]:
    """A parameter that holds an array, as text."""
    return cast(bindparam(name, type_=Text), ARRAY(number))


def _sequence(tables: OutboxTables) -> ColumnElement[Any]:
    return cast(func.pg_get_serial_sequence(name_of(tables.message), "sequence"), REGCLASS)


def _origin(tables: OutboxTables) -> ColumnElement[str]:
    """When the server started, and the sequence's file: ALTER SEQUENCE ... RESTART and TRUNCATE ... RESTART
    IDENTITY give it a new one."""
    started = extract("epoch", func.pg_postmaster_start_time())
    return func.concat(started, "/", func.pg_relation_filenode(_sequence(tables)), type_=Text)


@cache
def highest(tables: OutboxTables) -> Select[Any, Any, Any]:
    """The highest sequence drawn so far, its origin, and how many numbers a session draws at a time."""
    of_sequence = _sequence(tables)
    drawn = func.pg_sequence_last_value(of_sequence, type_=BigInteger)
    settings = table("pg_sequence", column("seqrelid"), column("seqcache", BigInteger))
    cached = select(settings.c.seqcache).where(settings.c.seqrelid == of_sequence).scalar_subquery()
    return select(
        func.coalesce(drawn, 0).label("drawn"),
        _origin(tables).label("origin"),
        func.coalesce(cached, 1).label("cached"),
    )


def behind(column: str, name: str, drawn: int, highest: int) -> str:
    """Why a sequence that will draw the numbers of rows again cannot be used."""
    quoted = name.replace("'", "''")
    return (
        f"the sequence of {column} is at {drawn}, but there are rows up to {highest}, as after a copy of the "
        "rows without their sequence (logical replication, or a dump of the data alone): their numbers would "
        "be drawn again; stop the programs that write, run "
        f"SELECT setval('{quoted}', {highest}), and start them again"
    )


def refusal(tables: OutboxTables, cached: int) -> str:
    """Why a sequence that caches numbers for each session cannot be used."""
    return (
        f"the sequence of {tables.message.fullname}.sequence has CACHE {cached}: messages would lose their "
        "order, and relays could overlook some; run ALTER SEQUENCE ... CACHE 1, then reconnect the programs "
        "that publish"
    )


@cache
def above(tables: OutboxTables) -> Select[Any]:
    """The highest sequence of a message above a number, with one look-up in each bucket."""
    c = tables.message.c
    last = (
        select(c.sequence)
        .where(c.bucket == tables.bucket.c.bucket, c.sequence > bindparam("drawn", type_=BigInteger))
        .order_by(c.sequence.desc())
        .limit(1)
        .lateral("last")
    )
    return select(func.max(last.c.sequence)).select_from(tables.bucket.join(last, true()))


@cache
def last_drawn(table: Table, column: str) -> Select[Any, Any]:
    """The last number that a column's sequence has drawn, and the sequence's name, as `setval` takes it; no
    name for a role without rights to the sequence, which cannot see its number."""
    name = func.pg_get_serial_sequence(name_of(table), column)
    may_look = func.has_sequence_privilege(cast(name, REGCLASS), "USAGE, SELECT")
    drawn = case((may_look, func.pg_sequence_last_value(cast(name, REGCLASS), type_=BigInteger)))
    return select(func.coalesce(drawn, 0), case((may_look, name)))


@cache
def marks(tables: OutboxTables) -> Select[Any, Any]:
    """The stored marks of buckets whose relays are running: these search for messages that appear below. None
    for a role without rights to the sequence."""
    of_sequence, bucket, relay = _sequence(tables), tables.bucket.c, tables.relay.c
    # Older servers raise an error for such a role.
    may_look = func.has_sequence_privilege(of_sequence, "USAGE, SELECT")
    drawn = case((may_look, func.pg_sequence_last_value(of_sequence, type_=BigInteger)))
    return (
        select(bucket.bucket, bucket.mark)
        .join_from(tables.bucket, tables.relay, relay.epoch == bucket.epoch)
        .where(relay.lease_until >= utcnow(), bucket.mark_origin == _origin(tables), bucket.mark <= drawn)
    )


@cache
def transactions(tables: OutboxTables) -> Select[Any]:
    """The transactions that have inserted messages: each holds this lock until it ends."""
    names = ("virtualtransaction", "database", "relation", "mode", "pid")
    here = table("pg_database", column("oid"), column("datname"))
    locks = table("pg_locks", *(column(name) for name in names))
    return select(locks.c.virtualtransaction).where(
        locks.c.database
        == select(here.c.oid).where(here.c.datname == func.current_database()).scalar_subquery(),
        locks.c.relation == cast(relation(tables.message), OID),
        locks.c.mode == "RowExclusiveLock",
        locks.c.pid.is_distinct_from(func.pg_backend_pid()),  # it is NULL for a prepared transaction
    )


@cache
def running() -> Select[Any]:
    """All other transactions: each holds a lock on itself, and a prepared one holds locks on its tables."""
    locks = table("pg_locks", column("virtualtransaction"), column("pid"))
    others = locks.c.pid.is_distinct_from(func.pg_backend_pid())
    return select(locks.c.virtualtransaction).where(others).distinct()


def parts(of: Table) -> Subquery:
    """The table and its partitions: a partitioned table has no pages and no size of its own."""
    itself = relation(of)
    tree = func.pg_partition_tree(itself).table_valued(column("relid", REGCLASS), name="tree")
    return select(itself.label("relid")).union(select(tree.c.relid)).subquery("part")


@cache
def pages(of: Table) -> Select[Any]:
    """How many pages a table has, or its largest partition."""
    return select(func.max(func.pg_relation_size(parts(of).c.relid)) / _block_size())


def _block_size() -> ColumnElement[Any]:
    return cast(func.current_setting("block_size"), BigInteger)


@cache
def density(of: Table) -> Select[Any]:
    """The rows at the last ANALYZE or VACUUM, in proportion to the current number of pages."""
    part = parts(of)
    names = ("oid", "reltuples", "relpages")
    statistics = table("pg_class", *(column(each) for each in names))
    now = func.pg_relation_size(part.c.relid) / _block_size()
    of_page = statistics.c.reltuples / func.nullif(statistics.c.relpages, 0)
    rows = func.sum(func.coalesce(of_page * now, 0))
    return select(rows).select_from(statistics.join(part, part.c.relid == statistics.c.oid))


@cache
def below(tables: OutboxTables) -> Select[Any, Any]:
    """The messages in some pages of the table up to the marks of their buckets, without paused topics.

    It reads by page and not by index: dead rows that cannot be cleaned up, because of an old transaction, are
    then read once and sequentially, for all buckets.
    """
    message = tables.message.alias("message")
    c = message.c
    page = literal_column("message.ctid", Tid())
    first, last = (cast(bindparam(name, type_=Text), Tid()) for name in ("first", "last"))
    marks = (
        func.unnest(array_of("buckets", Integer), array_of("marks", BigInteger))
        .table_valued("bucket", "mark", name="mark")
        .render_derived()
    )
    return (
        select(c.bucket, c.sequence)
        # The sums keep the planner from reading by the index.
        .select_from(message.join(marks, marks.c.bucket == c.bucket + 0))
        .where(
            and_(page >= first, page < last),
            c.sequence <= bindparam("highest", type_=BigInteger),
            c.sequence + 0 <= marks.c.mark,
            c.topic != func.all(bindparam("paused", type_=ARRAY(Text))),
        )
    )
