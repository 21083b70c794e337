"""PostgreSQL: all buckets in one statement, and a low-water mark that keeps scans away from dead rows that an
old transaction keeps from being cleaned up.

The plans are forced as far as possible: a plan made while the table was empty is cached, and a sequential
scan would be fatal once millions of messages wait.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import cache
from itertools import chain
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    Delete,
    Integer,
    LargeBinary,
    Select,
    SmallInteger,
    Table,
    Text,
    Update,
    and_,
    any_,
    bindparam,
    cast,
    column,
    delete,
    func,
    literal,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, Insert, array, insert
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeEngine

from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.letter import Letter, read
from inbox_outbox_base.databases.relaying import Found, Marks, Relaying, Scan, Writers, waits
from inbox_outbox_base.errors.outbox import UnsafeSequence
from inbox_outbox_base.tables.outbox import OutboxTables

from . import numbers
from .numbers import array_of, name_of

_MANY, _MOST = 10, 5_000
"""The least and the most messages that one statement inserts together."""
_NOT_TEXT: dict[str, type[TypeEngine[Any]]] = {"bucket": SmallInteger, "own_id": Boolean}
_OFF = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit")
_SCANNING = dict.fromkeys(_OFF, "off") | {"TimeZone": "UTC"}
"""The planner reads tables by their indexes, and psycopg has nothing to convert."""
_LIMITS = ("idle_in_transaction_session_timeout", "tcp_user_timeout")


def _scanning() -> list[ColumnElement[Any]]:
    """Settings for a scan, until the transaction ends."""
    return [
        func.set_config(name, literal(value), literal(True)).label(name) for name, value in _SCANNING.items()
    ]


@cache
def prepare() -> Select[Any]:
    """Settings for a scan."""
    return select(*_scanning())


@cache
def renew(tables: OutboxTables) -> Update:
    """Renew the lease, and apply the settings for a scan in the same statement. It also sets limits as long
    as the lease: otherwise the transaction of a relay that hangs, or whose machine is gone, would keep the
    relay's row locked, and nobody could take its buckets. One limit is for a server waiting for the relay,
    one for a server sending rows to it."""
    limit = bindparam("milliseconds", type_=Text)
    limits = (func.set_config(name, limit, literal(True)).label(name) for name in _LIMITS)
    return relaying_statements.renew(tables).returning(*_scanning(), *limits)


@cache
def add_many(tables: OutboxTables, names: tuple[str, ...]) -> Insert:
    """Many messages, numbered in order: the payloads in one piece, cut by the server, and the rest as JSON.
    Both ends handle that many times faster than an array for each column."""
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
    taken = insert(tables.ids).from_select(["id"], select(given)).on_conflict_do_nothing()
    return taken.returning(tables.ids.c.id)


@cache
def scan(tables: OutboxTables, *, unblocked: bool, unpaused: bool) -> Select[Any]:
    """The oldest messages of each bucket in turn, until there are enough."""
    c = tables.message.c
    places = (
        func.unnest(array_of("buckets", SmallInteger), array_of("lows", BigInteger))
        .table_valued("bucket", "low", name="place")
        .render_derived()
    )
    limit = bindparam("limit", type_=Integer)
    of_bucket = (
        select(*relaying_statements.fetched(tables))
        .where(c.bucket == places.c.bucket, c.sequence > places.c.low)
        .order_by(c.sequence)
        .limit(bindparam("each", type_=Integer))
    )
    if unblocked:
        # A sub-select with an unknown number of rows is hashed: with an array, each row would be
        # compared with each blocked key.
        blocked = func.json_array_elements_text(cast(bindparam("blocked", type_=Text), JSON), type_=Text)
        of_bucket = of_bucket.where(func.coalesce(c.key, c.id).not_in(select(blocked)))
    if unpaused:
        of_bucket = of_bucket.where(c.topic != func.all(bindparam("paused", type_=ARRAY(Text))))
    found = of_bucket.lateral("found")
    return select(*found.c).select_from(places.join(found, true())).limit(limit)


def _in_pieces(rows: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
    """The parameters of `add_many`."""
    described, start = [], 1
    for place, row in enumerate(rows):
        size = len(row["payload"])
        named = {name: row.get(name) for name in names}
        described.append(named | {"place": place, "start": start, "size": size})
        start += size
    return {
        "rows": json.dumps(described, ensure_ascii=False, separators=(",", ":")),
        "payloads": b"".join(row["payload"] for row in rows),
    }


def _array(values: Iterable[int | str]) -> str:
    """An array literal of numbers or ids: many times faster than passing each to the driver."""
    return f"{{{','.join(map(str, values))}}}"


def _ids(letters: Sequence[Letter]) -> str:
    """An array of ids; ids chosen by producers may contain any characters."""
    ids = [letter.envelope.id for letter in letters]
    text = '","'.join(ids)
    if "\\" in text or text.count('"') > 2 * len(ids) - 2:
        text = '","'.join(each.replace("\\", "\\\\").replace('"', '\\"') for each in ids)
    return f'{{"{text}"}}'


def _of(letters: Sequence[Letter]) -> list[tuple[int, int]]:
    return [(letter.bucket, letter.sequence) for letter in letters]


def _places(places: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The parameters of `_given`, except the ids."""
    return {
        "buckets": _array(bucket for bucket, _ in places),
        "sequences": _array(sequence for _, sequence in places),
    }


def _given(tables: OutboxTables, *, by_id: bool = False) -> ColumnElement[bool]:
    """The messages with the given buckets and sequences, and ids: after a failover that lost the last
    commits, other messages may have their numbers.

    Each place is an array of one, so that the planner can only look it up in the index. If it believed the
    table to be empty, as it was when analysed, it would otherwise scan it and compare each row with
    everything given.
    """
    c = tables.message.c
    arrays = [array_of("buckets", SmallInteger), array_of("sequences", BigInteger)]
    place = ["bucket", "sequence"]
    if by_id:
        arrays.append(array_of("ids", Text))
    given = func.unnest(*arrays).table_valued(*place, *["id"] * by_id, name="given").render_derived()
    found = and_(*(c[name] == any_(array([given.c[name]])) for name in place))
    return and_(found, c.id == given.c.id) if by_id else found


@cache
def progress(tables: OutboxTables) -> Select[Any]:
    """How long some messages still have to wait."""
    return select(*relaying_statements.progressed(tables)).where(_given(tables))


@cache
def payloads(tables: OutboxTables) -> Select[Any, Any]:
    """The payloads of some messages."""
    c = tables.message.c
    return select(c.sequence, c.payload).where(_given(tables))


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
    """Delete messages that have left, and record them."""
    gone = (
        forget(tables).returning(*(tables.message.c[name] for name in relaying_statements.SENT)).cte("gone")
    )
    return insert(tables.sent).from_select(relaying_statements.SENT, select(*gone.c))


class PostgreSQLRelaying(Relaying):
    """One statement for all buckets; arrays instead of long parameter lists."""

    has_notifications = True

    def add(self, connection: Connection, rows: list[dict[str, Any]]) -> None:
        if len(rows) < _MANY:
            super().add(connection, rows)
        else:
            names = tuple(name for name in relaying_statements.columns(rows) if name != "payload")
            for start in range(0, len(rows), _MOST):
                pieces = _in_pieces(rows[start : start + _MOST], names)
                connection.execute(add_many(self.tables, names), pieces)

    def take_ids(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        return {row.id for row in connection.execute(take_ids(self.tables), {"ids": json.dumps(ids)})}

    def prepare(self, connection: Connection) -> None:
        connection.execute(prepare())

    def renew(self, connection: Connection, epoch: int, lease: float) -> bool:
        given = {"epoch_": epoch, "lease": lease, "milliseconds": f"{lease * 1_000:.0f}"}
        return connection.execute(renew(self.tables), given).first() is not None

    def scan(self, connection: Connection, wanted: Scan) -> Found:
        parameters: dict[str, Any] = {
            "buckets": _array(bucket for bucket, _ in wanted.places),
            "lows": _array(low for _, low in wanted.places),
            "limit": wanted.limit,
            "each": wanted.each,
            "light": wanted.light,
        }
        if wanted.blocked:
            parameters["blocked"] = json.dumps([*chain.from_iterable(wanted.blocked.values())])
        if wanted.paused:
            parameters["paused"] = wanted.paused
        statement = scan(self.tables, unblocked=bool(wanted.blocked), unpaused=bool(wanted.paused))
        with closing(connection.execute(statement, parameters)) as result:
            rows = result.cursor.fetchall()  # the driver's own rows: there is nothing to convert
        letters = [read(row) for row in rows]
        buckets = [bucket for bucket, _ in wanted.places]
        if len(letters) >= wanted.limit:  # the scan stopped in the last one's bucket
            buckets = buckets[: buckets.index(letters[-1].bucket)]
        cut = Counter(letter.bucket for letter in letters)
        return Found(letters, {bucket for bucket in buckets if cut[bucket] < wanted.each})

    def progress(self, connection: Connection, places: Sequence[tuple[int, int]]) -> dict[int, float]:
        return waits(connection.execute(progress(self.tables), _places(places)).all())

    def payloads(self, connection: Connection, letters: Sequence[Letter]) -> dict[int, bytes]:
        found = connection.execute(payloads(self.tables), _places(_of(letters)))
        return {row.sequence: row.payload for row in found}

    def left(self, connection: Connection, letters: Sequence[Letter]) -> list[str]:
        given = _places(_of(letters)) | {"ids": _ids(letters)}
        return list(connection.execute(left(self.tables), given).scalars())

    def forget(self, connection: Connection, letters: Sequence[Letter], *, keep_sent: bool) -> None:
        given = _places(_of(letters)) | {"ids": _ids(letters)}
        connection.execute(record_sent(self.tables) if keep_sent else forget(self.tables), given)

    def writers(self, connection: Connection) -> Writers | None:
        # In this order: a transaction takes the lock before it draws a sequence.
        drawn, server, cached = connection.execute(numbers.highest(self.tables)).one()
        if cached > 1:
            raise UnsafeSequence(numbers.refusal(self.tables, cached))
        writing = frozenset(connection.execute(numbers.transactions(self.tables)).scalars())
        return Writers(drawn, writing, server, any(each.startswith("-") for each in writing))

    def pages(self, connection: Connection) -> int:
        return int(connection.execute(numbers.pages(name_of(self.tables.message))).scalar_one())

    def overlooked(self, connection: Connection, marks: Marks, pages: range) -> dict[int, int]:
        given = {
            "first": f"({pages.start},0)",
            "last": f"({pages.stop},0)",
            "highest": max((start for _, _, start in marks.places), default=0),
            "buckets": _array(bucket for bucket, _, _ in marks.places),
            "lows": _array(low for _, low, _ in marks.places),
            "starts": _array(start for _, _, start in marks.places),
            "blocked": json.dumps(marks.blocked),
            "paused": marks.paused,
        }
        return {
            row.bucket: row.messages for row in connection.execute(numbers.overlooked(self.tables), given)
        }

    def estimate(self, connection: Connection, table: Table) -> int:
        return int(connection.execute(numbers.density(name_of(table))).scalar_one())
