"""PostgreSQL: an INSERT that meets an uncommitted row waits without limit, and a lock timeout aborts the
whole transaction. So the hot statement first asks for an advisory lock on the key, and inserts only if it
gets it; otherwise a patient statement runs inside a savepoint with its own lock timeout.

Batches take no lock for each key (the server's lock table is shared by all its databases). They announce
themselves with one shared lock per consumer, and single messages use the patient statement meanwhile.
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import cache
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Connection,
    Executable,
    LargeBinary,
    Select,
    Subquery,
    Table,
    Text,
    any_,
    bindparam,
    case,
    cast,
    column,
    delete,
    false,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, REGCLASS, Insert, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.sql.visitors import InternalTraversal

from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.taking import Attempt, Batch, Found, Stored, Taking
from inbox_outbox_base.databases.taking_statements import Aging
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import UnsupportedDatabase
from inbox_outbox_base.tables.inbox import Tables

# From psycopg.pq.TransactionStatus: importing that fails without libpq, which other databases do not need.
_IDLE, _INERROR = 0, 3
_CANCEL = 2
"""Seconds for the connection that cancels another one's wait."""
_END_WAIT = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"

_COLUMNS = tuple(taking_statements.ROW)
_HAS_WRITTEN = text("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
_WRITES = text("SELECT pg_logical_emit_message(true, 'inbox-outbox', '')")
"""Makes a COMMIT wait for a synchronous standby, which then also has everything committed before."""
_RISKS = text("""
    SELECT name || '=' || setting FROM pg_settings
    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off'
       OR name = 'synchronous_commit' AND setting = 'local'
          AND current_setting('synchronous_standby_names') <> ''
    ORDER BY name
""")
_NO_TIME_LIMIT = text("SET LOCAL statement_timeout = 0")
_PURGE_GUARD = text("SET LOCAL idle_in_transaction_session_timeout = '10s'")


@cache
def add_at_once(tables: Tables) -> Insert:
    """The hot statement: inserts the row unless its key, or a batch of its consumer, is in flight."""
    key_lock, batch_lock = _key_lock(tables), _batch_lock(tables)
    # The batch lock is only probed, and released immediately; CASE, unlike AND, guarantees that order. The
    # key's lock comes last: kept without its row, it would report "in flight" for a key that nobody takes.
    given_back, take = func.pg_advisory_unlock(batch_lock), func.pg_try_advisory_xact_lock(key_lock)
    ours = case((given_back, take), else_=false())
    is_free = case((func.pg_try_advisory_lock(batch_lock), ours), else_=false())
    row = select(*_row(tables).values()).where(is_free)
    added = insert(tables.message).from_select(_COLUMNS, row).on_conflict_do_nothing()
    return added.execution_options(preserve_rowcount=True)


@cache
def add_in_order(tables: Tables, lock: Literal["key", "batch"], *, with_digests: bool = False) -> Select[Any]:
    """The patient statement: takes a lock, waits for keys in flight, restores the lock timeout, and returns
    the inserted keys. The ORDER BY makes the guard run before the first row is written, and makes two batches
    meet their common keys in the same order, so that they cannot deadlock."""
    c, row = tables.message.c, _row(tables)
    if lock == "key":
        held: ColumnElement[Any] = func.pg_advisory_xact_lock(_key_lock(tables))
    else:
        held = func.pg_advisory_xact_lock_shared(_batch_lock(tables))
    guard = select(
        func.current_setting("lock_timeout").label("before"),
        func.set_config("lock_timeout", bindparam("timeout", type_=Text), literal(True)).label("during"),
        held.label("held"),
    ).cte("guard")
    keys = _given_keys_and_digests() if with_digests else _given_keys()
    rows = (
        select(
            row["consumer"],
            keys.c.key,
            row["claim"],
            keys.c.digest if with_digests else row["digest"],
        )
        .select_from(guard.join(keys, literal(True)))
        .order_by(keys.c.key.collate("C"))
    )
    added = insert(tables.message).from_select(_COLUMNS, rows).on_conflict_do_nothing()
    taken = added.returning(c.key).cte("taken")
    before = select(guard.c.before).scalar_subquery()
    restored = func.set_config("lock_timeout", before, literal(True))
    keys_taken = func.array_agg(taken.c.key, type_=ARRAY(Text))
    return select(keys_taken.label("keys"), restored.label("restored"))


@cache
def wait_for_key(tables: Tables) -> Select[Any]:
    """Wait, for a limited time, until no transaction is taking the key any more."""
    timeout = func.set_config("lock_timeout", bindparam("timeout", type_=Text), literal(True))
    held: ColumnElement[Any] = func.pg_advisory_xact_lock(_key_lock(tables))
    return select(timeout.label("during"), held.label("held"))


@cache
def _row(tables: Tables) -> dict[str, BindParameter[Any]]:
    """The parameters of a new row. SQLAlchemy's time for a statement grows with their number, so all places
    in a statement share them."""
    return {name: bindparam(name, type_=tables.message.c[name].type) for name in _COLUMNS}


def _key_lock(tables: Tables) -> ColumnElement[int]:
    """The number of a key's advisory lock. It has 64 bits, so two keys rarely share one; then one of them
    waits for the other needlessly. The server computes it, which costs no parameters."""
    row = _row(tables)
    return func.hashtextextended(row["key"], func.hashtextextended(row["consumer"], row_type(tables.message)))


def _batch_lock(tables: Tables) -> ColumnElement[int]:
    """The number of the advisory lock shared by all batches of a consumer."""
    seed = row_type(tables.message) + literal_column("4294967296")  # no oid, so no key's lock is this one
    return func.hashtextextended(_row(tables)["consumer"], seed)


class row_type(ColumnElement[int]):  # noqa: N801
    """The oid of a table's row type, which distinguishes tables of the same name in different schemas.

    The server finds the table as elsewhere in the statement: by `search_path`, and by the name that a
    `schema_translate_map` gives it. (In `'name'::regclass` it would be in a literal, unquoted.)
    """

    inherit_cache = True
    type = BigInteger()
    _traverse_internals = [("table", InternalTraversal.dp_clauseelement)]  # noqa: RUF012 - as in its base

    def __init__(self, table: Table) -> None:
        self.table = table


@compiles(row_type, "postgresql")
def _row_type(element: row_type, compiler: SQLCompiler, **kw: Any) -> str:
    return f"pg_typeof(NULL::{compiler.preparer.format_table(element.table)})::oid::bigint"


@cache
def delete_batch(aging: Aging) -> Executable:
    """Delete the oldest rows that nobody has locked, found by index and deleted by their place in the
    table."""
    place: ColumnElement[Any] = literal_column("ctid")
    chosen = taking_statements.oldest(aging).with_only_columns(place).with_for_update(skip_locked=True)
    places = func.array(chosen.scalar_subquery())
    return delete(aging.table).where(place == any_(places)).returning(aging.table.c[aging.time])


@cache
def find_many(tables: Tables) -> Select[Any]:
    """Which of some keys exist: one parameter, so that the statement is the same for any number."""
    c = tables.message.c
    keys = func.array(select(_given_keys().c.key).scalar_subquery())
    return select(c.key, c.claim, c.digest).where(c.consumer == bindparam("consumer_"), c.key == any_(keys))


def _given_keys() -> TableValuedAlias:
    """The keys of a batch as rows. They are sent as JSON, which both ends handle faster than a text array."""
    keys = cast(bindparam("keys", type_=Text), JSON)
    return func.json_array_elements_text(keys).table_valued("key", name="given").render_derived()


def _given_keys_and_digests() -> Subquery:
    """The same with each key's digest, in hexadecimal or null."""
    pairs = func.json_array_elements(cast(bindparam("keys", type_=Text), JSON)).table_valued(
        column("pair", JSON), name="given"
    )
    pair = pairs.render_derived().c.pair
    digest = func.decode(pair[1].as_string(), "hex", type_=LargeBinary)
    return select(pair[0].as_string().label("key"), digest.label("digest")).subquery()


def _as_json(keys: Sequence[object]) -> str:
    return json.dumps(keys, ensure_ascii=False)


class PostgreSQLTaking(Taking):
    """Advisory locks distinguish "in flight" from "taken"; a savepoint limits the wait."""

    def take(self, connection: Connection, attempt: Attempt, wait: float) -> Literal[True] | Stored | None:
        if connection.execute(add_at_once(attempt.tables), attempt.row()).rowcount == 1:
            return True
        stored = self.find(connection, attempt)
        if stored is None:
            if self._take_patiently(connection, attempt, "key", [attempt.key], wait):
                return True
            stored = self.find(connection, attempt)
        return stored

    def take_many(self, connection: Connection, batch: Batch, wait: float) -> set[str] | None:
        prototype = Attempt(batch.tables, batch.consumer, "", batch.claim, None)
        if batch.digests is None:
            return self._take_patiently(connection, prototype, "batch", batch.keys, wait)
        pairs = [(key, digest and digest.hex()) for key in batch.keys for digest in [batch.digests.get(key)]]
        return self._take_patiently(connection, prototype, "batch", pairs, wait, with_digests=True)

    def _take_patiently(
        self,
        connection: Connection,
        attempt: Attempt,
        lock: Literal["key", "batch"],
        keys: Sequence[object],
        wait: float,
        *,
        with_digests: bool = False,
    ) -> set[str] | None:
        """The keys that are ours now; None if the wait ran out."""
        parameters = attempt.row() | {"keys": _as_json(keys), "timeout": _milliseconds(wait)}
        try:
            with connection.begin_nested():
                statement = add_in_order(attempt.tables, lock, with_digests=with_digests)
                taken = connection.execute(statement, parameters).scalar_one()
        except DBAPIError as error:
            if not codes.ends_wait(error):
                raise
            return None
        return set(taken or ())

    def find_many(self, connection: Connection, batch: Batch) -> dict[str, Found]:
        parameters = batch.where() | {"keys": _as_json(batch.keys)}
        rows = connection.execute(find_many(batch.tables), parameters)
        return {key: Found(claim, digest) for key, claim, digest in rows}

    def settled(self, connection: Connection, attempt: Attempt, wait: float) -> Stored | None:
        names = {"consumer": attempt.consumer, "key": attempt.key, "timeout": _milliseconds(wait)}
        connection.execute(_NO_TIME_LIMIT)
        connection.execute(wait_for_key(attempt.tables), names)
        found = self.find(connection, attempt)
        if found is not None:
            connection.execute(_WRITES)
        return found

    def delete_oldest(
        self, connection: Connection, aging: Aging, parameters: dict[str, Any]
    ) -> list[datetime]:
        # If this process hangs before it commits, those waiting for a row of the batch do not hang as well.
        connection.execute(_PURGE_GUARD)
        return list(connection.execute(delete_batch(aging), parameters).scalars())

    def size(self, connection: Connection, tables: Tables) -> int:
        name = connection.dialect.identifier_preparer.format_table(tables.message)
        size = func.pg_total_relation_size(cast(name, REGCLASS))
        return int(connection.execute(select(size)).scalar_one())

    def risks(self, connection: Connection) -> list[str]:
        return list(connection.scalars(_RISKS))

    def is_autocommit(self, connection: Connection) -> bool:
        return bool(_driver(connection).autocommit)

    def protected(self, connection: Connection) -> AbstractContextManager[object]:
        return nullcontext() if self.is_autocommit(connection) else connection.begin_nested()

    def cancel(self, driver: Any) -> None:
        # Its backend would wait for a table's lock even without the connection. No cancel request: that
        # would also end a COMMIT's wait for a standby, as if the standby had the transaction.
        import psycopg

        parameters, password = driver.info.get_parameters(), driver.info.password
        options = parameters | {"password": password or None, "connect_timeout": _CANCEL}
        with psycopg.connect(**options, autocommit=True) as connection:
            connection.execute(_END_WAIT, [driver.info.backend_pid])

    def socket_of(self, driver: Any) -> int:
        return int(driver.pgconn.socket)

    def is_aborted(self, connection: Connection, written: Attempt | None) -> bool:
        # The driver knows, without asking the server, that COMMIT would answer ROLLBACK.
        return _driver(connection).pgconn.transaction_status == _INERROR  # type: ignore[no-any-return]

    def is_ended(self, connection: Connection) -> bool:
        return _driver(connection).pgconn.transaction_status == _IDLE  # type: ignore[no-any-return]

    def may_have_written(self, connection: Connection) -> bool:
        return not self.is_ended(connection) and bool(connection.execute(_HAS_WRITTEN).scalar_one())


def _driver(connection: Connection) -> Any:
    if connection.dialect.driver not in ("psycopg", "psycopg_async"):
        raise UnsupportedDatabase(
            f"driver={connection.dialect.driver!r}: on PostgreSQL expected psycopg (version 3)"
        )
    given = connection.connection.dbapi_connection
    return given.driver_connection if connection.dialect.is_async else given  # type: ignore[union-attr]


def _milliseconds(wait: float) -> str:
    """At least one: in PostgreSQL a lock timeout of 0 means no limit."""
    return str(max(1, round(wait * 1000)))
