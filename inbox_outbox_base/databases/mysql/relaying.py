"""MySQL and MariaDB: messages are deleted by their keys, one look-up each. A scan reads only the buckets that
have messages above its place, because each query is a round trip.

With a list of keys the optimizer may scan all of a small table, and a DELETE waits for every row that it
reads: the relay would then wait for each open transaction that has published.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ClauseElement,
    Connection,
    Executable,
    Select,
    Table,
    and_,
    bindparam,
    func,
    or_,
    select,
)
from sqlalchemy.dialects.mysql import Insert, insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import InternalTraversal

from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.relaying import Relaying, Scan, ScanResult, Tally, parts
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.outbox import UnsafeDatabase
from inbox_outbox_base.tables.columns import utcnow
from inbox_outbox_base.tables.outbox import OutboxTables

from .cluster import is_node
from .dialect import TAKEN

# On MariaDB, a column without a character set has the database's, which may have several bytes for a letter.
_ID = "id VARCHAR(128) CHARACTER SET utf8mb4"
_GIVEN = f"JSON_TABLE({{these}}, '$[*]' COLUMNS (sequence BIGINT PATH '$[0]', {_ID} PATH '$[1]')) AS given"
_THEIR_ROWS = (
    " STRAIGHT_JOIN {outbox_message} AS message FORCE INDEX (PRIMARY) ON message.sequence = given.sequence"
    " WHERE CAST(message.id AS BINARY) = CAST(given.id AS BINARY)"
)
_FORGET = f"DELETE message FROM {_GIVEN}{_THEIR_ROWS}"
_KEEP_SENT = (
    # The rows are locked, so that the DELETE finds the same ones; MySQL needs a sub-select for that.
    "INSERT INTO {outbox_sent} (id, topic, `key`, created_at, own_id, keep_until)"  # noqa: S608 - only constants
    " SELECT message.id, message.topic, message.`key`, message.created_at, message.own_id,"
    f" utc_timestamp(6) + INTERVAL {{keep}} SECOND FROM (SELECT * FROM {_GIVEN}) AS given"
    f"{_THEIR_ROWS} FOR UPDATE"
)
_FREE_IDS = (
    f"DELETE used FROM JSON_TABLE({{these}}, '$[*]' COLUMNS ({_ID} PATH '$')) AS given"
    " STRAIGHT_JOIN {outbox_id} AS used FORCE INDEX (PRIMARY) ON used.id = CAST(given.id AS BINARY)"
)


class worded(Executable, ClauseElement):  # noqa: N801
    """SQL in which braces enclose the names of tables and parameters: the names of tables become those that a
    `schema_translate_map` gives."""

    inherit_cache = True
    _traverse_internals = [  # noqa: RUF012 - as in its base
        ("sql", InternalTraversal.dp_string),
        ("tables", InternalTraversal.dp_clauseelement_list),
        ("parameters", InternalTraversal.dp_clauseelement_list),
    ]

    def __init__(self, sql: str, tables: Sequence[Table], *parameters: str) -> None:
        self.sql, self.tables = sql, tables
        self.parameters: list[BindParameter[Any]] = [bindparam(name) for name in parameters]


@compiles(worded, "mysql", "mariadb")
def _worded(element: worded, compiler: SQLCompiler, **kw: Any) -> str:
    names = {table.name: compiler.preparer.format_table(table) for table in element.tables}
    values = {each.key: compiler.process(each, **kw) for each in element.parameters}
    return element.sql.format(**names, **values)


@cache
def forget(tables: OutboxTables) -> worded:
    """Delete messages that have left."""
    return worded(_FORGET, [tables.message], "these")


@cache
def keep_sent(tables: OutboxTables) -> worded:
    """Record messages that are about to be deleted."""
    return worded(_KEEP_SENT, [tables.message, tables.sent], "these", "keep")


@cache
def free_ids(tables: OutboxTables) -> worded:
    """Release producers' own ids for reuse."""
    return worded(_FREE_IDS, [tables.ids], "these")


@cache
def gone(tables: OutboxTables) -> Insert:
    """Note that messages of a topic have left without a record."""
    return insert(tables.gone).on_duplicate_key_update(gone_at=utcnow())


@cache
def used_ids(tables: OutboxTables) -> Select[Any]:
    """Which ids are in use, as far as the transaction sees; locks nothing."""
    c = tables.ids.c
    return select(c.id).where(c.id.in_(bindparam("ids", expanding=True)))


@cache
def add_again(tables: OutboxTables) -> Insert:
    """Refused if the id is in use; else it adds nothing. Unlike a query it sees the newest row, although the
    snapshot is older; and unlike a query with a lock it needs no other rights."""
    c = tables.ids.c
    there = select(c.id).where(c.id == bindparam("id_", type_=c.id.type))
    return insert(tables.ids).from_select(["id"], there)


@cache
def highest(tables: OutboxTables) -> Select[Any]:
    """The highest sequences of some buckets, with one look-up each, whatever the statistics say."""
    c, message = tables.bucket.c, tables.message.c
    last = (
        _by_bucket(select(message.sequence), tables)
        .where(message.bucket == c.bucket)
        .order_by(message.bucket.desc(), message.sequence.desc())
        .limit(1)
        .scalar_subquery()
    )
    return select(c.bucket, last.label("highest")).where(c.bucket.in_(bindparam("buckets", expanding=True)))


def tallies(tables: OutboxTables, ends: Mapping[int, int]) -> Select[Any]:
    """For some buckets, how many messages there are up to a sequence, and the sum of their sequences."""
    c = tables.message.c
    places = (and_(c.bucket == bucket, c.sequence <= end) for bucket, end in ends.items())
    found = _by_bucket(select(c.bucket, func.count(), func.sum(c.sequence)), tables)
    return found.where(or_(*places)).group_by(c.bucket)


def _by_bucket(read: Select[Any, *tuple[Any, ...]], tables: OutboxTables) -> Select[Any, *tuple[Any, ...]]:
    """Read by the index; if it has all columns, read nothing else."""
    return read.with_hint(tables.message, "FORCE INDEX (outbox_message_bucket)")


_by_bucket_kept = cache(_by_bucket)
"""For statements that are themselves built once."""


class MySQLRelaying(Relaying):
    """The portable way, except where it would wait."""

    retiring_isolation = "READ UNCOMMITTED"

    def has_one_clock(self, connection: Connection) -> bool:
        return not is_node(connection)

    def scan(self, connection: Connection, wanted: Scan) -> ScanResult:
        buckets = [bucket for bucket, _ in wanted.places]
        rows = connection.execute(highest(self.tables), {"buckets": buckets})
        ends = {row.bucket: row.highest or 0 for row in rows}
        # Another relay may have deleted a bucket of an old generation.
        places = [(bucket, low) for bucket, low in wanted.places if ends.get(bucket, 0) > low]
        result = super().scan(connection, replace(wanted, places=places))
        return replace(result, seen=result.seen | set(buckets).difference(bucket for bucket, _ in places))

    def tally(self, connection: Connection, ends: Mapping[int, int]) -> dict[int, Tally]:
        rows = connection.execute(tallies(self.tables, ends))
        return {bucket: Tally(messages, int(total)) for bucket, messages, total in rows}

    def _by_bucket(self, read: Select[Any, *tuple[Any, ...]]) -> Select[Any, *tuple[Any, ...]]:
        return _by_bucket_kept(read, self.tables)

    def forget(self, connection: Connection, letters: Sequence[Letter], *, keep: float | None) -> None:
        for part in parts(letters):
            these = json.dumps([(letter.sequence, letter.id) for letter in part])
            if keep is not None:
                self._record(connection, part, {"these": these, "keep": keep})
            connection.execute(forget(self.tables), {"these": these})

    def _record(self, connection: Connection, letters: Sequence[Letter], given: dict[str, Any]) -> None:
        # IGNORE would also drop records that have no place in any partition.
        if not self._adds(connection, keep_sent(self.tables), given):
            # One of the ids has a record: others may have written two messages with one id.
            these = [
                {"bucket_": each.bucket, "sequence_": each.sequence, "id_": each.id, "keep": given["keep"]}
                for each in letters
            ]
            connection.execute(relaying_statements.keep_sent(self.tables), these)

    def _gone(self) -> Insert:
        return gone(self.tables)

    def take_ids(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        # An INSERT that finds an id locks its row until the transaction ends, and a relay that deletes the id
        # must wait. So only ids that are not visible are inserted.
        taken: set[str] = set()
        for part in parts(ids):
            used = set(connection.execute(used_ids(self.tables), {"ids": part}).scalars())
            taken |= self._take_unused(connection, [each for each in part if each not in used])
        return taken

    def _take_unused(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        """Halve the list until the ids that somebody has just taken are alone: a statement inserts all or
        none."""
        if not ids:
            return set()
        if self._adds(connection, insert(self.tables.ids).values([{"id": each} for each in ids])):
            return set(ids)
        if len(ids) == 1:
            if self._adds(connection, add_again(self.tables), {"id_": ids[0]}):
                raise UnsafeDatabase(
                    f"table {self.tables.ids.name}: id={ids[0]!r} is refused, but it is not in use: "
                    "something else is unique there; run `inbox-outbox check`"
                )
            return set()
        half = len(ids) // 2
        halves = ids[:half], ids[half:]
        return set().union(*(self._take_unused(connection, each) for each in halves))

    def _adds(
        self, connection: Connection, added: Executable, given: Mapping[str, Any] | None = None
    ) -> bool:
        """Whether no unique key refused it."""
        try:
            connection.execute(added, given)
        except IntegrityError as error:
            if codes.code_of(error) not in TAKEN:
                raise
            return False
        return True

    def free_ids(self, connection: Connection, ids: Sequence[str]) -> None:
        for part in parts(ids):
            connection.execute(free_ids(self.tables), {"these": json.dumps(part)})
