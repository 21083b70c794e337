"""PostgreSQL: rows are sent by COPY. Keys that a probe did not find are inserted by COPY as well, in a
savepoint; if another writer was faster, the slower ON CONFLICT inserts them.

Binary COPY into a column of another type with the same width silently stores wrong values. So a column whose
type is not exactly the same goes through a temporary table and a CAST.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    ARRAY,
    Connection,
    LargeBinary,
    Table,
    Text,
    bindparam,
    cast,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import ReturningInsert

from inbox_outbox_base.databases import arrow
from inbox_outbox_base.databases.key_range import KeyRange
from inbox_outbox_base.databases.loading import driver_errors
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
from inbox_outbox_base.dialect import Code
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import TransientError
from inbox_outbox_base.errors.spark import InvalidRow, SparkWriterError
from inbox_outbox_base.tables.inbox import Tables, utcnow

from . import arrays, probing
from .numbers import behind, last_drawn
from .taking_statements import batch_lock
from .targets import PostgreSQLTarget, place, quoted, relation, targets, unique_keys
from .types import column

try:
    import pgpq
except ImportError:  # the extra is not fully installed: psycopg's own COPY works, more slowly
    pgpq = None  # type: ignore[assignment]

_SHARED = {
    "consumer": pa.string(),
    "accepted_at": pa.timestamp("us", "UTC"),
    "claim": pa.binary(),
    "load": pa.int64(),
}
"""The columns with the same value in all rows of an attempt."""
_GUARD = text("""
    SELECT set_config('lock_timeout', :lock_timeout, true), set_config('quote_all_identifiers', 'off', true),
           set_config('idle_in_transaction_session_timeout', :idle_in_transaction_session_timeout, true),
           -- Temporary tables come first, unless the path names their schema: new_rows must be the writer's.
           CASE WHEN current_setting('search_path') LIKE '%pg_temp%'
                THEN set_config('search_path', array_to_string(array(
                    SELECT part FROM unnest(string_to_array(current_setting('search_path'), ',')) AS part
                    WHERE trim(part, ' "') <> 'pg_temp'), ','), true) END,
           CASE WHEN :statement_timeout <> '0'
                THEN set_config('statement_timeout', :statement_timeout, true) END,
           -- Otherwise the server would finish a statement, and hold its locks, after the client has died.
           -- Not every system supports this check.
           CASE WHEN version() LIKE '%linux%'
                THEN set_config('client_connection_check_interval', '5s', true) END
""")
# Not a view: its lock would be one on all that it reads. A type that a view uses cannot be changed anyway.
_MAY_LOCK = text("""
    SELECT relkind IN ('r', 'p') AND has_table_privilege(oid, 'INSERT')
    FROM pg_class WHERE oid = to_regclass(:name)
""")
_PLAIN = text("""
    SELECT relkind IN ('r', 'p') AND NOT relrowsecurity AND NOT relhasrules
    FROM pg_class WHERE oid = to_regclass(:name)
""")
# A lock of the transaction: it is free again even if the task dies.
_SLOT = text("SELECT pg_try_advisory_xact_lock(hashtext(:scope), :slot)")


class PostgreSQLLoading(OnConflict):
    """COPY throughout."""

    connect_args = MappingProxyType(
        {
            "application_name": "inbox-outbox spark",
            "connect_timeout": 10,
            # A server that vanishes silently is noticed within a minute.
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
        }
    )
    temporary = MappingProxyType({"postgresql_on_commit": "DROP"})
    keeps_temporary = True
    taken = frozenset({"23505"})
    renews = True

    def __init__(self) -> None:
        self.transport = "copy" if pgpq is None else "pgpq"

    def renew(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        with driver_errors(connection):
            # The driver does not notice that its prepared statements are gone.
            driver.prepare_threshold = None
            # It would begin a transaction, where this command cannot run.
            driver.autocommit = True
            driver.execute("DISCARD ALL")
            driver.autocommit = False

    def guard(self, connection: Connection, write: Write) -> None:
        limits = {
            "lock_timeout": write.lock_timeout,
            "idle_in_transaction_session_timeout": max(60, write.lock_timeout),
            "statement_timeout": write.query_timeout,
        }
        parameters = {name: f"{seconds * 1000:.0f}" for name, seconds in limits.items()}
        connection.execute(_GUARD, parameters)

    def place(self, connection: Connection, write: Write) -> str:
        return place(connection, write)

    def lock_types(self, connection: Connection, write: Write) -> None:
        # The lock that an INSERT takes later. A role that may insert some columns only cannot take it now.
        name = relation(write.table_schema, write.table)
        if connection.execute(_MAY_LOCK, {"name": name}).scalar():
            connection.exec_driver_sql(f"LOCK TABLE ONLY {name.replace('%', '%%')} IN ROW EXCLUSIVE MODE")

    def targets(self, connection: Connection, write: Write) -> list[Target]:
        return [*targets(connection, write)]

    def unique_keys(self, connection: Connection, write: Write) -> list[UniqueKey]:
        return unique_keys(connection, write)

    def column(self, field: pa.Field, target: Target | None) -> Column:
        assert target is None or isinstance(target, PostgreSQLTarget)  # noqa: S101 - from targets()
        return column(field, target)

    def can_load_into(self, connection: Connection, write: Write) -> bool:
        # COPY ignores rules (a view has one) and row-level security.
        return bool(connection.execute(_PLAIN, {"name": relation(write.table_schema, write.table)}).scalar())

    def note(self, connection: Connection, tables: Tables, row: dict[str, Any]) -> int | None:
        added = insert(tables.ledger).on_conflict_do_nothing().returning(tables.ledger.c.id)
        return connection.execute(added, row).scalar()

    def check_numbers(self, connection: Connection, tables: Tables) -> None:
        drawn, name = connection.execute(last_drawn(tables.ledger, "id")).one()
        highest = connection.execute(select(func.max(tables.ledger.c.id))).scalar() or 0
        if name is not None and highest > drawn:
            raise SparkWriterError(behind(f"{tables.ledger.fullname}.id", name, drawn, highest))

    def announce(self, connection: Connection, claim: WriterClaim) -> None:
        held = func.pg_advisory_xact_lock_shared(batch_lock(claim.tables))
        connection.execute(select(held), {"consumer": claim.consumer})

    def take(self, connection: Connection, claim: WriterClaim, given: pa.Table) -> TakenKeys:
        keys = _whole(given, "key")
        known = self.found(connection, claim.tables, claim.consumer, keys)
        return self._take(connection, claim, given, pc.invert(_among(keys, known.owners)), known)

    def take_in_range(
        self, connection: Connection, claim: WriterClaim, given: pa.Table, look: Callable[[], KeyRange]
    ) -> tuple[TakenKeys, pa.BooleanArray]:
        # There may be no partition for a key outside of the range: its row would be an error.
        keys = _whole(given, "key")
        known = self.found(connection, claim.tables, claim.consumer, keys)
        fresh, its = pc.invert(_among(keys, known.owners)), look()
        old = pc.and_(fresh, pc.less(keys, its.first))
        fresh = pc.and_not(fresh, old)
        if its.until is not None and len(left := keys.filter(fresh)) and left[-1].as_py() >= its.until:
            raise TransientError(
                f"consumer={claim.consumer!r}: its partitions end at {its.until!r}; make more with "
                "`inbox-outbox partitions`, and write the rows again"
            )
        return self._take(connection, claim, given, fresh, known), old

    def _take(
        self, connection: Connection, claim: WriterClaim, given: pa.Table, fresh: Any, known: KnownKeys
    ) -> TakenKeys:
        """Take those of the keys that are fresh."""
        keys, left = _whole(given, "key"), given.filter(fresh)
        if not self._copy_keys(connection, claim, left):
            raced = _add_unless_there(claim.tables)
            arrays = {"keys": probing.literal(_whole(left, "key")), "digests": "{}"}
            if "digest" in left.column_names:
                arrays["digests"] = probing.literal(arrow.bytea(_whole(left, "digest")))
            parameters = _row(connection, claim) | arrays
            fresh = _among(keys, connection.execute(raced, parameters).scalars())
            known = self.found(connection, claim.tables, claim.consumer, keys.filter(pc.invert(fresh)))
        return TakenKeys(fresh, known)

    def _copy_keys(self, connection: Connection, claim: WriterClaim, keys: pa.Table) -> bool:
        """Copy the keys, with their digests; False if somebody else was faster."""
        if len(keys) == 0:
            return True
        values, rows = _row(connection, claim), keys
        for name, kind in _SHARED.items():
            rows = rows.append_column(name, pa.repeat(pa.scalar(values[name], kind), len(keys)))
        message = claim.tables.message
        try:
            # A key that somebody else has inserted aborts everything since the last savepoint.
            with connection.begin_nested():
                self.load(connection, message.name, message.schema, rows, 20_000)
        except DBAPIError as error:
            if codes.code_of(error) not in self.taken:
                raise
            return False
        return True

    def found(self, connection: Connection, tables: Tables, consumer: str, keys: pa.StringArray) -> KnownKeys:
        return probing.found(connection, tables, consumer, keys)

    def by_index(self, connection: Connection) -> AbstractContextManager[None]:
        return probing.by_index(connection)

    def load(
        self, connection: Connection, name: str, schema: str | None, rows: pa.Table, batch_size: int
    ) -> None:
        columns = ", ".join(quoted(column) for column in rows.column_names)
        batches = rows.to_batches(max_chunksize=batch_size)
        is_binary = pgpq is not None and all(arrays.is_binary(kind) for kind in rows.schema.types)
        if not is_binary:
            self.transport = "copy"
        form = " (FORMAT BINARY)" if is_binary else ""
        with _copy(connection, f"COPY {relation(schema, name)} ({columns}) FROM STDIN{form}") as copy:
            for piece in _binary(rows.schema, batches) if is_binary else _lines(batches):
                copy.write(piece)

    def check_at_once(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")

    def clear_temporary(self, connection: Connection, name: str, *, is_large: bool) -> None:
        # TRUNCATE makes a new file, DELETE leaves its rows there to be read.
        command = "TRUNCATE" if is_large else "DELETE FROM"
        connection.exec_driver_sql(f"{command} pg_temp.{quoted(name)}")

    def refuses(self, code: Code | None) -> bool:
        # Syntax error or access rule violation, and feature not supported. Errors of other classes come from
        # functions that the planner calls.
        return str(code)[:2] in ("42", "0A")

    def insert(self, target: Table) -> Insert:
        return insert(target)

    def inserted(self, connection: Connection, statement: Any) -> int:
        # ON CONFLICT first looks at its key. If another writer commits the row after that, the table's other
        # unique keys raise an error.
        run = super().inserted
        return self.beside_others(connection, lambda: run(connection, statement))

    def slot(self, connection: Connection, write: Write) -> bool:
        scope = f"inbox-outbox connections {write.consumer}"
        slots = range(write.max_connections or 0)
        return any(connection.execute(_SLOT, {"scope": scope, "slot": slot}).scalar() for slot in slots)


def _row(connection: Connection, claim: WriterClaim) -> dict[str, Any]:
    """The values that all rows of an attempt share. A row of a load has neither time nor claim, which are in
    the ledger; it is in no index but the primary key."""
    if claim.load is not None:
        return {"consumer": claim.consumer, "accepted_at": None, "claim": None, "load": claim.load}
    now: datetime = connection.execute(select(utcnow())).scalar_one()
    return {"consumer": claim.consumer, "accepted_at": now, "claim": claim.id, "load": None}


@contextmanager
def _copy(connection: Connection, statement: str) -> Iterator[Any]:
    driver: Any = connection.connection.driver_connection
    with driver_errors(connection), driver.cursor() as cursor, cursor.copy(statement) as copy:
        yield copy


def _binary(schema: pa.Schema, batches: list[pa.RecordBatch]) -> Iterator[bytes]:
    encoder = pgpq.ArrowToPostgresBinaryEncoder(schema)
    yield encoder.write_header()
    for batch in batches:
        try:
            yield encoder.write_batch(batch)
        except ValueError:  # its text may quote the value
            raise InvalidRow("a value that pgpq cannot send") from None
    yield encoder.finish()


def _lines(batches: list[pa.RecordBatch]) -> Iterator[bytes]:
    return (arrow.lines(arrays.literals(batch), arrow.escaped_bytea) for batch in batches)


def _among(keys: pa.StringArray, some: Any) -> pa.BooleanArray:
    return pc.is_in(keys, pa.array(list(some), pa.string()))


def _whole(rows: pa.Table, name: str) -> pa.Array:
    return rows.column(name).combine_chunks()


@cache
def _add_unless_there(tables: Tables) -> ReturningInsert[Any]:
    """Insert the keys, in order, except those that exist or that another transaction commits first."""
    c = tables.message.c
    # There is a digest for each key, or none at all: then unnest gives NULL.
    arrays = (
        cast(bindparam("keys", type_=Text), ARRAY(Text)),
        cast(bindparam("digests", type_=Text), ARRAY(LargeBinary)),
    )
    given = func.unnest(*arrays).table_valued("key", "digest").render_derived(name="given")
    # In byte order, as in every batch, so that two batches cannot deadlock.
    shared = (bindparam(name, type_=c[name].type) for name in _SHARED)
    rows = select(given.c.key, given.c.digest, *shared).order_by(given.c.key.collate("C"))
    added = insert(tables.message).from_select(["key", "digest", *_SHARED], rows)
    return added.on_conflict_do_nothing().returning(c.key)
