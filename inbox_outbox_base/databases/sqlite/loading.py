"""SQLite: one writer for the whole file, on one machine, so partitions are written one after the other.

A transaction that has read cannot wait for the write lock: what it read may be outdated by then. So a
transaction that is going to write waits for the lock first.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Column as SqlColumn
from sqlalchemy import (
    Connection,
    LargeBinary,
    MetaData,
    Row,
    Select,
    Table,
    bindparam,
    delete,
    select,
    text,
    true,
)
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.dml import ReturningInsert

from inbox_outbox_base.databases.loading_values import (
    Column,
    KnownKeys,
    TakenKeys,
    Target,
    UniqueKey,
    Write,
    WriterClaim,
)
from inbox_outbox_base.databases.on_conflict import OnConflict
from inbox_outbox_base.databases.results import Upsert
from inbox_outbox_base.errors.spark import ColumnMismatch
from inbox_outbox_base.tables.inbox import Bytewise, Tables

from . import types
from .taking import has_begun

_GIVEN = Table(
    "inbox_keys",
    MetaData(),
    SqlColumn("key", Bytewise(512)),
    SqlColumn("digest", LargeBinary),
    prefixes=["TEMPORARY"],
)
_TARGETS = text("""
    SELECT name, type AS kind, "notnull" AS is_not_null, dflt_value IS NOT NULL AS has_default, pk AS is_key,
           hidden <> 0 AS is_generated
    FROM pragma_table_xinfo(:name, :schema) ORDER BY cid
""")


# An INTEGER PRIMARY KEY has no index. Other primary keys may hold NULL, but the writer refuses NULL in them.
_UNIQUE = text("""
    SELECT i.name, x.name AS part, i.partial AS is_partial,
           coalesce(NOT c."notnull" AND c.pk = 0, false) AS is_nullable
    FROM pragma_index_list(:name, :schema) AS i
    JOIN pragma_index_xinfo(i.name, :schema) AS x ON x.key
    LEFT JOIN pragma_table_xinfo(:name, :schema) AS c ON c.name = x.name
    WHERE i."unique"
    UNION ALL
    SELECT 'PRIMARY KEY', name, false, false FROM pragma_table_xinfo(:name, :schema) WHERE pk > 0
""")


_WORDS = """
    SELECT type, name, coalesce(sql, '') AS sql FROM {schema}.sqlite_master
    WHERE tbl_name = :name COLLATE NOCASE AND type IN ('table', 'trigger')
"""
_CLAUSE = re.compile(r"\bON\s+CONFLICT\b", re.IGNORECASE)
_OWN_CLAUSE = re.compile(r"\b(?:INSERT|UPDATE)\s+OR\b|\bREPLACE\s+INTO\b", re.IGNORECASE)


class SQLiteLoading(OnConflict):
    """Rows one by one, in one prepared statement."""

    isolation = "SERIALIZABLE"
    # SQLITE_CONSTRAINT_PRIMARYKEY, _UNIQUE and _ROWID.
    taken = frozenset({1555, 2067, 2579})

    def __init__(self) -> None:
        self._version: str | None = None
        self._deciding: set[tuple[str, str]] = set()
        """Schema and name of targets whose own ON CONFLICT clauses would drop or replace rows."""

    def isolation_level(self, wanted: str | None) -> str:
        return self.isolation  # there is no lower level

    def guard(self, connection: Connection, write: Write) -> None:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(write.lock_timeout * 1000):d}")
        # The driver sends BEGIN itself, but not before a savepoint: then its RELEASE would commit.
        connection.exec_driver_sql("BEGIN")
        has_begun(connection)

    def place(self, connection: Connection, write: Write) -> str:
        return f"{write.table_schema or 'main'}.{write.table}"

    def targets(self, connection: Connection, write: Write) -> list[Target]:
        self._version = write.results.version if isinstance(write.results, Upsert) else None
        where = {"name": write.table, "schema": write.table_schema or "main"}
        self._look_for_clauses(connection, where)
        return [
            types.SQLiteTarget(
                row.name,
                types.affinity(row.kind),
                row.kind,
                None,
                bool(row.is_not_null and not row.has_default and not row.is_generated),
                bool(row.is_generated),
                bool(row.is_key),
            )
            for row in connection.execute(_TARGETS, where)
        ]

    def _look_for_clauses(self, connection: Connection, where: dict[str, Any]) -> None:
        quote = connection.dialect.identifier_preparer.quote_identifier
        found = connection.execute(text(_WORDS.format(schema=quote(where["schema"]))), where).all()
        if not any(row.type == "table" and _CLAUSE.search(row.sql) for row in found):
            return
        for row in found:
            if row.type == "trigger" and _OWN_CLAUSE.search(row.sql):
                raise ColumnMismatch(
                    f"table={where['name']!r}: it has ON CONFLICT clauses, and so has a statement of its "
                    f"trigger {row.name!r}: SQLite cannot overrule one of them without the other"
                )
        self._deciding.add((where["schema"], where["name"]))

    def unique_keys(self, connection: Connection, write: Write) -> list[UniqueKey]:
        where = {"name": write.table, "schema": write.table_schema or "main"}
        columns: dict[str, list[Row[Any]]] = {}
        for row in connection.execute(_UNIQUE, where):
            columns.setdefault(row.name, []).append(row)
        return [
            UniqueKey(name, frozenset(row.part for row in rows), _problem(rows))
            for name, rows in columns.items()
        ]

    def column(self, field: pa.Field, target: Target | None) -> Column:
        assert target is None or isinstance(target, types.SQLiteTarget)  # noqa: S101 - from targets()
        return types.column(field, target, is_version=field.name == self._version)

    def note(self, connection: Connection, tables: Tables, row: dict[str, Any]) -> int | None:
        # This transaction has only read so far: begin again, and wait.
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return connection.execute(_begin(tables), row).scalar()

    def take(self, connection: Connection, claim: WriterClaim, given: pa.Table) -> TakenKeys:
        self._give(connection, given)
        parameters = {"consumer": claim.consumer, "claim": claim.id}
        known = KnownKeys()
        if connection.execute(_add(claim.tables), parameters).rowcount != len(given):
            known.add(connection.execute(_others(claim.tables), parameters))
        keys = given.column("key").combine_chunks()
        fresh = pc.invert(pc.is_in(keys, pa.array(list(known.owners), pa.string())))
        return TakenKeys(fresh, known)

    def found(self, connection: Connection, tables: Tables, consumer: str, keys: pa.StringArray) -> KnownKeys:
        self._give(connection, pa.table({"key": keys}))
        known = KnownKeys()
        known.add(connection.execute(_find(tables), {"consumer": consumer}))
        return known

    def _give(self, connection: Connection, keys: pa.Table) -> None:
        """The keys, and their digests if they have any, as a temporary table."""
        connection.execute(CreateTable(_GIVEN, if_not_exists=True))
        connection.execute(delete(_GIVEN))
        self.load(connection, _GIVEN.name, None, keys, 20_000)

    def can_load_into(self, connection: Connection, write: Write) -> bool:
        return True

    def load(
        self, connection: Connection, name: str, schema: str | None, rows: pa.Table, batch_size: int
    ) -> None:
        quote = connection.dialect.identifier_preparer.quote_identifier
        relation = ".".join(quote(part) for part in (schema, name) if part)
        columns = ", ".join(quote(column) for column in rows.column_names)
        places = ", ".join(["?"] * rows.num_columns)
        clause = " OR ABORT" if (schema or "main", name) in self._deciding else ""
        added = f"INSERT{clause} INTO {relation} ({columns}) VALUES ({places})"
        for batch in rows.to_batches(max_chunksize=batch_size):
            connection.exec_driver_sql(added, list(_tuples(batch)))

    def clear_temporary(self, connection: Connection, name: str, *, is_large: bool) -> None:
        quote = connection.dialect.identifier_preparer.quote_identifier
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS temp.{quote(name)}")

    def insert(self, target: Table) -> Insert:
        is_deciding = (target.schema or "main", target.name) in self._deciding
        return insert(target).prefix_with("OR ABORT") if is_deciding else insert(target)


def _problem(rows: list[Row[Any]]) -> str | None:
    if any(row.is_partial for row in rows):
        return "is partial"
    return "allows NULL, and NULLs are distinct" if any(row.is_nullable for row in rows) else None


def _tuples(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


@cache
def _begin(tables: Tables) -> ReturningInsert[Any]:
    """Insert the ledger's row, unless it exists."""
    return insert(tables.ledger).on_conflict_do_nothing().returning(tables.ledger.c.id)


@cache
def _add(tables: Tables) -> Insert:
    """Insert the given keys, except those that exist."""
    c = tables.message.c
    shared = (bindparam("consumer", type_=c.consumer.type), bindparam("claim", type_=LargeBinary))
    rows = select(*shared, _GIVEN.c.key, _GIVEN.c.digest)
    # Without a WHERE, SQLite parses ON CONFLICT as the condition of a join.
    rows = rows.where(true()).order_by(_GIVEN.c.key)
    added = insert(tables.message).from_select(["consumer", "claim", "key", "digest"], rows)
    return added.on_conflict_do_nothing().execution_options(preserve_rowcount=True)


@cache
def _find(tables: Tables) -> Select[Any]:
    """Which of the given keys exist."""
    c = tables.message.c
    joined = _GIVEN.join(tables.message, c.key == _GIVEN.c.key)
    of_consumer = c.consumer == bindparam("consumer", type_=c.consumer.type)
    return select(c.key, c.claim, c.load, c.digest).select_from(joined).where(of_consumer)


@cache
def _others(tables: Tables) -> Select[Any]:
    """The given keys that others have taken."""
    return _find(tables).where(tables.message.c.claim != bindparam("claim", type_=LargeBinary))
