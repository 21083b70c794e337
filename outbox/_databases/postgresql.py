"""PostgreSQL: all buckets in one statement, and a low-water mark that keeps a scan off rows that are dead but
cannot be cleaned away while some transaction is old.

Plans are made by hand as far as that goes: a plan made while the table was empty is cached, and one that
reads the table from end to end would be fatal once millions of messages wait.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Delete,
    Insert,
    Integer,
    LargeBinary,
    Select,
    SmallInteger,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    literal,
    select,
    table,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, REGCLASS
from sqlalchemy.sql.elements import ColumnElement

from .. import _statements
from .._letter import Letter, read
from ..schema import OutboxTables
from ._database import Database, Found, Scan, Writers

_MANY, _MOST = 10, 5_000
"""Messages from which on, and up to which, one statement inserts all."""
_IN_JSON = tuple(name for name in _statements.COLUMNS if name != "payload")
_SETTINGS = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")


def _by_index() -> list[ColumnElement[Any]]:
    """Until the transaction ends, the planner reads tables by their indexes."""
    return [func.set_config(name, literal("off"), literal(True)).label(name) for name in _SETTINGS]


@cache
def prepare() -> Select[Any]:
    """Settings for a scan."""
    return select(*_by_index())


@cache
def renew(tables: OutboxTables) -> Update:
    """The lease begins anew, and the settings for a scan hold in the same statement. So does a limit that is
    as long as the lease: the transaction of a relay that stands still, or whose machine is gone, would keep
    the relay's row locked, and nobody could take its buckets."""
    limit = bindparam("milliseconds", type_=Text)
    idle = func.set_config("idle_in_transaction_session_timeout", limit, literal(True))
    return _statements.renew(tables).returning(*_by_index(), idle.label("idle"))


@cache
def add_many(tables: OutboxTables) -> Insert:
    """Many messages, numbered in their order: the payloads in one piece, cut by the server, and the rest as
    JSON, which both ends handle many times faster than an array for each column."""
    given = (
        func.json_to_recordset(cast(bindparam("rows", type_=Text), JSON))
        .table_valued(
            *(column(name, SmallInteger if name == "bucket" else Text) for name in _IN_JSON),
            *(column(name, Integer) for name in ("place", "start", "size")),
            name="given",
        )
        .render_derived(with_types=True)
    )
    payload = func.substring(bindparam("payloads", type_=LargeBinary), given.c.start, given.c.size)
    rows = select(*(given.c[name] for name in _IN_JSON), payload).order_by(given.c.place)
    return insert(tables.message).from_select((*_IN_JSON, "payload"), rows)


@cache
def scan(tables: OutboxTables, *, unblocked: bool, unpaused: bool) -> Select[Any]:
    """The oldest messages of each bucket in turn, until there are enough."""
    c = tables.message.c
    places = (
        func.unnest(_array_of("buckets", SmallInteger), _array_of("lows", BigInteger))
        .table_valued("bucket", "low", name="place")
        .render_derived()
    )
    limit = bindparam("limit", type_=Integer)
    of_bucket = (
        select(*(c[name] for name in _statements.FETCHED))
        .where(c.bucket == places.c.bucket, c.sequence > places.c.low)
        .order_by(c.sequence)
        .limit(bindparam("each", type_=Integer))
    )
    if unblocked:
        waiting = bindparam("blocked", type_=ARRAY(Text))
        of_bucket = of_bucket.where(func.coalesce(c.key, c.id) != func.all(waiting))
    if unpaused:
        of_bucket = of_bucket.where(c.topic != func.all(bindparam("paused", type_=ARRAY(Text))))
    found = of_bucket.lateral("found")
    return select(*found.c).select_from(places.join(found, true())).limit(limit)


def _in_pieces(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The parameters of `add_many`."""
    described, start = [], 1
    for place, row in enumerate(rows):
        size = len(row["payload"])
        named = {name: row[name] for name in _IN_JSON}
        described.append(named | {"place": place, "start": start, "size": size})
        start += size
    return {
        "rows": json.dumps(described, ensure_ascii=False, separators=(",", ":")),
        "payloads": b"".join(row["payload"] for row in rows),
    }


def _array_of(name: str, number: Any) -> ColumnElement[Any]:
    return cast(bindparam(name, type_=Text), ARRAY(number))


def _array(numbers: Iterable[int]) -> str:
    """An array as the server reads it: many times faster than to hand its numbers to the driver."""
    return f"{{{','.join(map(str, numbers))}}}"


def _given(tables: OutboxTables) -> ColumnElement[bool]:
    """The messages of which buckets and sequences are given."""
    c = tables.message.c
    given = (
        func.unnest(_array_of("buckets", SmallInteger), _array_of("sequences", BigInteger))
        .table_valued("bucket", "sequence", name="given")
        .render_derived()
    )
    return and_(c.bucket == given.c.bucket, c.sequence == given.c.sequence)


@cache
def forget(tables: OutboxTables) -> Delete:
    """Messages that have left."""
    return delete(tables.message).where(_given(tables))


@cache
def record_sent(tables: OutboxTables) -> Insert:
    """Messages that have left, and a record of them."""
    names = ("id", "topic", "key", "created_at")
    gone = forget(tables).returning(*(tables.message.c[name] for name in names)).cte("gone")
    return insert(tables.sent).from_select(names, select(*gone.c))


@cache
def highest(tables: OutboxTables) -> Select[Any]:
    """The highest sequence that any transaction has drawn."""
    numbers = func.pg_get_serial_sequence(_name(tables.message), "sequence")
    drawn = func.pg_sequence_last_value(cast(numbers, REGCLASS), type_=BigInteger)
    return select(func.coalesce(drawn, 0))


@cache
def estimate(name: str) -> Select[Any]:
    """The rows that ANALYZE or VACUUM last found, in proportion to the pages that there are now."""
    names = ("oid", "reltuples", "relpages")
    statistics = table("pg_class", *(column(each) for each in names)).c
    pages = func.pg_relation_size(cast(name, REGCLASS)) / cast(func.current_setting("block_size"), BigInteger)
    density = statistics.reltuples / func.nullif(statistics.relpages, 0)
    return select(func.coalesce(density * pages, 0)).where(statistics.oid == cast(name, REGCLASS))


@cache
def transactions(tables: OutboxTables) -> Select[Any]:
    """Whoever has inserted messages holds this lock until the end of the transaction."""
    names = ("virtualtransaction", "database", "relation", "mode", "pid")
    here = table("pg_database", column("oid"), column("datname"))
    locks = table("pg_locks", *(column(name) for name in names))
    return select(locks.c.virtualtransaction).where(
        locks.c.database
        == select(here.c.oid).where(here.c.datname == func.current_database()).scalar_subquery(),
        locks.c.relation == cast(_name(tables.message), REGCLASS),
        locks.c.mode == "RowExclusiveLock",
        locks.c.pid.is_distinct_from(func.pg_backend_pid()),  # it is NULL where a transaction is prepared
    )


def _name(table: Table) -> str:
    """The table, as PostgreSQL's own functions want to have it named."""
    schema, name = table.schema, table.name
    if schema is None:
        return name
    escaped = schema.replace('"', '""')
    return f'"{escaped}".{name}'


class PostgreSQL(Database):
    """One statement for all buckets; arrays in place of long lists of parameters."""

    def add(self, connection: Connection, tables: OutboxTables, rows: list[dict[str, Any]]) -> None:
        if len(rows) < _MANY:
            super().add(connection, tables, rows)
        else:
            for start in range(0, len(rows), _MOST):
                connection.execute(add_many(tables), _in_pieces(rows[start : start + _MOST]))

    def prepare(self, connection: Connection) -> None:
        connection.execute(prepare())

    def renew(self, connection: Connection, tables: OutboxTables, epoch: int, lease: float) -> bool:
        given = {"epoch_": epoch, "lease": lease, "milliseconds": f"{lease * 1_000:.0f}"}
        return connection.execute(renew(tables), given).first() is not None

    def scan(self, connection: Connection, tables: OutboxTables, wanted: Scan) -> Found:
        parameters: dict[str, Any] = {
            "buckets": _array(bucket for bucket, _ in wanted.places),
            "lows": _array(low for _, low in wanted.places),
            "limit": wanted.limit,
            "each": wanted.each,
        }
        if wanted.blocked:
            parameters["blocked"] = wanted.blocked
        if wanted.paused:
            parameters["paused"] = wanted.paused
        statement = scan(tables, unblocked=bool(wanted.blocked), unpaused=bool(wanted.paused))
        letters = [read(row) for row in connection.execute(statement, parameters).all()]
        buckets = [bucket for bucket, _ in wanted.places]
        if len(letters) >= wanted.limit:  # it stopped at the last one's bucket
            buckets = buckets[: buckets.index(letters[-1].bucket)]
        cut = Counter(letter.bucket for letter in letters)
        return Found(letters, {bucket for bucket in buckets if cut[bucket] < wanted.each})

    def forget(
        self, connection: Connection, tables: OutboxTables, letters: Sequence[Letter], *, keep_sent: bool
    ) -> None:
        given = {
            "buckets": _array(letter.bucket for letter in letters),
            "sequences": _array(letter.sequence for letter in letters),
        }
        connection.execute(record_sent(tables) if keep_sent else forget(tables), given)

    def writers(self, connection: Connection, tables: OutboxTables) -> Writers | None:
        # In this order: whoever draws a sequence has taken the lock before.
        drawn = connection.execute(highest(tables)).scalar_one()
        writing = frozenset(connection.execute(transactions(tables)).scalars())
        return Writers(drawn, writing, any(each.startswith("-") for each in writing))

    def estimate(self, connection: Connection, table: Table) -> int:
        return int(connection.execute(estimate(_name(table))).scalar_one())
