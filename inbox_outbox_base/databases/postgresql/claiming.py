"""PostgreSQL: a claim is one statement, and so is the renewal of many leases.

The lock of a record writes nothing: a claim's ON CONFLICT waits for a transaction that has changed the
record, but not for one that has only locked it.
"""

import json
import re
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    Text,
    Update,
    bindparam,
    cast,
    func,
    null,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from inbox_outbox_base.databases.claiming import Claiming, Fields
from inbox_outbox_base.databases.claiming_statements import (
    CLAIM_WAIT,
    HELD,
    IDENTITY,
    after,
    among_claims,
    clock_token,
    expected,
    held,
    lock_timeout,
    new_values,
    step_where,
    waits,
    witness,
)
from inbox_outbox_base.tables.inbox import Tables, utcnow

from .marking import is_marked, mark

_OUTCOME = text("SELECT pg_xact_status(CAST(CAST(:number AS text) AS xid8))")
_ESCAPED = re.compile(rb"\\(?:([0-7]{3})|\\)")


@compiles(clock_token, "postgresql")
def _clock_token(element: clock_token, compiler: SQLCompiler, **kw: Any) -> str:
    return "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


@compiles(lock_timeout, "postgresql")
def _lock_timeout(element: lock_timeout, compiler: SQLCompiler, **kw: Any) -> str:
    # A condition is checked before the row is locked. The setting is local to the transaction: it ends with a
    # statement that commits by itself, so no other statement has to reset it.
    milliseconds = compiler.process(element.clauses, **kw)
    return f"set_config('lock_timeout', {milliseconds}, true) IS NOT NULL"


@cache
def add_or_look(tables: Tables) -> Select[Any]:
    """A new record's token and time, or the existing record, read without lock or write. The record is one
    value, because a driver's work grows with the columns; it is text, because applications may have their own
    way to read JSON. If the existing record is purged while the
    statement runs, both could be seen; only the new one is returned."""
    c = tables.status.c
    values = new_values(tables)
    given = select(*values.values()).where(waits(CLAIM_WAIT))
    added = (
        insert(tables.status)
        .from_select([*values], given, include_defaults=False)
        .on_conflict_do_nothing()
        .returning(c.token, c.created_at)
        .cte("added")
    )
    record = cast(func.to_jsonb(tables.status.table_valued()), Text)
    found = select(null().label("token"), utcnow().label("now"), record.label("record")).where(
        *(c[name] == bindparam(name, type_=c[name].type) for name in IDENTITY),
        ~select(added.c.token).exists(),
    )
    new = select(added.c.token, added.c.created_at.label("now"), cast(null(), Text).label("record"))
    return new.union_all(found)  # type: ignore[return-value]


@cache
def renew(tables: Tables) -> Update:
    """Renew the leases of some claims, skipping locked rows."""
    c = tables.status.c
    free = (
        select(c.consumer, c.key)
        .where(among_claims(tables))
        .with_for_update(key_share=True, skip_locked=True)
    )
    return update(tables.status).where(tuple_(c.consumer, c.key).in_(free)).values(lease_until=after("lease"))


@cache
def lock(tables: Tables) -> Select[Any]:
    """Lock the record of a claim that still holds it, and mark the transaction; return its number."""
    number = cast(func.pg_current_xact_id(), Text)
    marked = select(number, mark(witness(tables))).where(held(tables, HELD), expected(tables))
    return marked.with_for_update(key_share=True)  # type: ignore[return-value]


@cache
def record_step(tables: Tables) -> Update:
    """Write the steps into the record, if this transaction has locked it."""
    return step_where(tables, is_marked(witness(tables)))


class PostgreSQLClaiming(Claiming):
    """One statement for what other databases do with several."""

    def add_or_look(
        self, connection: Connection, tables: Tables, new: dict[str, Any]
    ) -> tuple[datetime, Fields | int] | None:
        row = connection.execute(add_or_look(tables), new).one_or_none()
        if row is None:
            return None
        return row.now, _fields(row.record) if row.token is None else int(row.token)

    def renew(self, connection: Connection, tables: Tables, claims: dict[str, Any], lease: float) -> None:
        connection.execute(renew(tables), claims | {"lease": lease})

    def lock(self, connection: Connection, tables: Tables, held: dict[str, Any]) -> object:
        return connection.execute(lock(tables), held).scalar()

    def has_committed(
        self, connection: Connection, tables: Tables, where: dict[str, Any], locked: object
    ) -> bool:
        # The lock has written nothing that could prove it.
        return connection.execute(_OUTCOME, {"number": locked}).scalar() == "committed"

    def record_step(self, connection: Connection, tables: Tables, step: dict[str, Any]) -> bool:
        return connection.execute(record_step(tables), step).rowcount == 1


def _fields(record: str) -> Fields:
    """A record as to_jsonb() returns it."""
    found: dict[str, Any] = json.loads(record)
    for name in ("claim", "digest", "payload"):
        if found[name] is not None:
            found[name] = _bytes(found[name])
    for name in ("lease_until", "created_at", "updated_at"):
        if found[name] is not None:
            found[name] = datetime.fromisoformat(found[name])
    return found


def _bytes(value: str) -> bytes:
    """Bytes as the server writes them, for any bytea_output."""
    if value.startswith("\\x"):
        return bytes.fromhex(value[2:])
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]) if found[1] else b"\\", value.encode())
