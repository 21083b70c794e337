"""The statements of status-table mode: pure, built once, executed elsewhere."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Delete,
    Float,
    Insert,
    Select,
    Update,
    and_,
    bindparam,
    cast,
    delete,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import BigInteger

from inbox_outbox_base.tables.columns import from_now
from inbox_outbox_base.tables.inbox import Tables, utcnow

from .records import Status

CLAIM_WAIT = 1.0
"""Seconds that a claim waits, twice at most, for a row that somebody else has locked."""

WRITE_WAIT = 5.0
"""The same for writes of the message's holder."""

IDENTITY = ("consumer", "key")
GIVEN = ("consumer", "key", "claim", "owner", "digest")
"""The fields of a new record that its claim supplies."""


class clock_token(FunctionElement[int]):  # noqa: N801
    """Microseconds since 1970 by the database's clock: a key's first token.

    A later one is larger by at least one, and one after the record was purged is the clock again.
    """

    inherit_cache = True
    type = BigInteger()


@compiles(clock_token, "postgresql")
def _clock_token_postgresql(element: clock_token, compiler: SQLCompiler, **kw: Any) -> str:
    return "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


@compiles(clock_token, "mysql", "mariadb")
def _clock_token_mysql(element: clock_token, compiler: SQLCompiler, **kw: Any) -> str:
    return "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))"


@compiles(clock_token, "sqlite")
def _clock_token_sqlite(element: clock_token, compiler: SQLCompiler, **kw: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"


class lock_timeout(FunctionElement[bool]):  # noqa: N801
    """True; and from here on the statement waits at most that many milliseconds for a row.

    PostgreSQL checks a condition before it locks the row. A setting that is local to a transaction ends with
    the statement that commits by itself, so this needs no extra statement. Elsewhere the connection has the
    limit (`Database.briefly`), or the driver.
    """

    inherit_cache = True
    type = Boolean()


@compiles(lock_timeout)
def _lock_timeout(element: lock_timeout, compiler: SQLCompiler, **kw: Any) -> str:
    return "1 = 1"


@compiles(lock_timeout, "postgresql")
def _lock_timeout_postgresql(element: lock_timeout, compiler: SQLCompiler, **kw: Any) -> str:
    milliseconds = compiler.process(element.clauses, **kw)
    return f"set_config('lock_timeout', {milliseconds}, true) IS NOT NULL"


def _waits(seconds: float) -> lock_timeout:
    return lock_timeout(literal_column(f"'{round(seconds * 1000)}'"))


def _seconds(name: str) -> from_now:
    return from_now(bindparam(name, type_=Float))


def _new_values(tables: Tables) -> dict[str, ColumnElement[Any]]:
    c = tables.status.c
    given: dict[str, ColumnElement[Any]] = {name: bindparam(name, type_=c[name].type) for name in GIVEN}
    return given | {
        "status": literal_column(f"'{Status.CONSUMING.value}'"),
        "token": clock_token(),
        "lease_until": _seconds("lease"),
        "attempts_started": literal_column("1"),
        "attempts_finished": literal_column("0"),
    }


def _this(tables: Tables) -> ColumnElement[bool]:
    c = tables.status.c
    return and_(*(c[name] == bindparam(f"{name}_", type_=c[name].type) for name in IDENTITY))


def _columns(tables: Tables) -> list[Column[Any]]:
    return [*tables.status.c]


@cache
def look(tables: Tables) -> Select[Any]:
    """The store's clock, and the record if there is one."""
    one = select(literal(1).label("one")).subquery("one")
    return select(utcnow().label("now"), *_columns(tables)).select_from(
        one.outerjoin(tables.status, _this(tables))
    )


@cache
def add(tables: Tables, dialect_name: str) -> Insert:
    """A new record, unless there is one."""
    values = _new_values(tables)
    if dialect_name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(tables.status).values(values).on_conflict_do_nothing()
    from sqlalchemy.dialects import mysql

    from inbox_outbox_base.databases.mysql.taking import or_tell

    return or_tell(mysql.insert(tables.status).values(values))


@cache
def add_or_look(tables: Tables) -> Select[Any]:
    """PostgreSQL, in one statement: a new record's token and time, or the existing record, read without lock
    or write. It is one value, because a driver's work grows with the columns. If the existing record is
    purged while the statement runs, both could be seen; only the new one is returned."""
    from sqlalchemy.dialects import postgresql

    c = tables.status.c
    values = _new_values(tables)
    given = select(*values.values()).where(_waits(CLAIM_WAIT))
    added = (
        postgresql.insert(tables.status)
        .from_select([*values], given, include_defaults=False)
        .on_conflict_do_nothing()
        .returning(c.token, c.created_at)
        .cte("added")
    )
    record = cast(func.to_jsonb(tables.status.table_valued()), postgresql.JSONB)
    found = select(null().label("token"), utcnow().label("now"), record.label("record")).where(
        *(c[name] == bindparam(name, type_=c[name].type) for name in IDENTITY),
        ~select(added.c.token).exists(),
    )
    new = select(
        added.c.token, added.c.created_at.label("now"), cast(null(), postgresql.JSONB).label("record")
    )
    return new.union_all(found)  # type: ignore[return-value]


@cache
def take_over(tables: Tables) -> Update:
    """Take the record over, if it is still as it was read and nobody holds it."""
    c = tables.status.c
    return (
        update(tables.status)
        .where(_as_judged(tables))
        .values(
            status=literal(Status.CONSUMING.value),
            token=bindparam("token"),
            claim=bindparam("claim"),
            owner=bindparam("owner"),
            digest=bindparam("digest", type_=c.digest.type),
            lease_until=_seconds("lease"),
            attempts_started=c.attempts_started + 1,
            error=null(),
            history=bindparam("history", type_=c.history.type),
            updated_at=utcnow(),
        )
    )


@cache
def bury(tables: Tables) -> Update:
    """Write the status that a claim found into the record, if it is still as it was read and nobody holds
    it."""
    c = tables.status.c
    names = ("status", "token", "error", "history", "payload")
    return (
        update(tables.status)
        .where(_as_judged(tables))
        .values(
            {name: bindparam(name, type_=c[name].type) for name in names}
            | {"lease_until": null(), "updated_at": utcnow()}
        )
    )


@cache
def write(tables: Tables, names: frozenset[str], among: frozenset[str]) -> Update:
    """Write some fields of a record, if it still has the token and one of these statuses."""
    c = tables.status.c
    values: dict[str, Any] = {}
    for name in sorted(names):
        if name == "lease":
            values["lease_until"] = _seconds("lease")
        elif name in ("started", "finished"):
            values[f"attempts_{name}"] = c[f"attempts_{name}"] + bindparam(name)
        else:
            values[name] = bindparam(name, type_=c[name].type)
    if "status" in names:
        values |= {"lease_until": null(), "updated_at": utcnow()}
    return update(tables.status).where(_held(tables, among), _waits(WRITE_WAIT)).values(values)


@cache
def renew(tables: Tables) -> Update:
    """PostgreSQL, in one statement: renew the leases of some claims, skipping locked rows."""
    c = tables.status.c
    free = (
        select(c.consumer, c.key)
        .where(_among_claims(tables))
        .with_for_update(key_share=True, skip_locked=True)
    )
    return (
        update(tables.status).where(tuple_(c.consumer, c.key).in_(free)).values(lease_until=_seconds("lease"))
    )


@cache
def unlocked(tables: Tables) -> Select[Any]:
    """Which of some claims have a row that nobody has locked."""
    return leases(tables).with_for_update(skip_locked=True)


@cache
def leases(tables: Tables) -> Select[Any]:
    """The claims among these that still hold, how long they hold, and the store's clock."""
    c = tables.status.c
    return select(c.key, c.token, c.lease_until, utcnow().label("now")).where(_among_claims(tables))


def _among_claims(tables: Tables) -> ColumnElement[bool]:
    c = tables.status.c
    claims = tuple_(c.key, c.token).in_(bindparam("claims", expanding=True))
    ours = c.consumer == bindparam("consumer_", type_=c.consumer.type)
    return and_(ours, claims, c.status == literal_column(f"'{Status.CONSUMING.value}'"))


@cache
def lock(tables: Tables, dialect_name: str, among: frozenset[str]) -> Select[Any] | Update:
    """Lock the record against everybody else, if it still has the token and one of these statuses.

    PostgreSQL's lock changes nothing: a claim's ON CONFLICT waits for a transaction that has changed the
    record, but not for one that has only locked it.
    """
    if dialect_name == "postgresql":
        return select(literal(1)).where(_held(tables, among)).with_for_update(key_share=True)
    return write(tables, frozenset({"claim"}), among)


@cache
def record_step(tables: Tables, dialect_name: str) -> Update:
    """Write the steps, a witness and a renewed lease into the record that this same transaction has
    locked."""
    c = tables.status.c
    witness = bindparam("claim", type_=c.claim.type)
    own = c.claim == witness
    if dialect_name == "postgresql":
        own = literal_column("xmax") == literal_column("pg_current_xact_id()::xid")
    values = {"steps": bindparam("steps"), "undos": bindparam("undos"), "claim": witness}
    return (
        update(tables.status)
        .where(_this(tables), c.token == bindparam("token_"), own)
        .values(values | {"lease_until": _seconds("lease")})
    )


@cache
def forget(tables: Tables, among: frozenset[str]) -> Delete:
    """Delete the record if it still has the token and one of these statuses."""
    return delete(tables.status).where(_held(tables, among))


def _as_judged(tables: Tables) -> ColumnElement[bool]:
    """Nobody holds the record, and its holder changed nothing by which it was judged."""
    c = tables.status.c
    unheld = c.lease_until.is_(None) | (c.lease_until <= utcnow())
    seen = [c[name] == bindparam(f"{name}_") for name in ("token", "status", "undos")]
    pending = c.pending_step.is_not_distinct_from(bindparam("pending_step_", type_=c.pending_step.type))
    return and_(_this(tables), unheld, pending, *seen, _waits(CLAIM_WAIT))


def _held(tables: Tables, among: Iterable[str]) -> ColumnElement[bool]:
    c = tables.status.c
    statuses = [c.status == literal_column(f"'{status}'") for status in sorted(among)]
    return and_(_this(tables), c.token == bindparam("token_"), or_(*statuses))


@cache
def listed(tables: Tables, *, of_one: bool, with_status: bool) -> Select[Any]:
    """Records, the least recently changed first."""
    c = tables.status.c
    chosen = select(*_columns(tables)).order_by(c.updated_at).limit(bindparam("limit"))
    if of_one:
        chosen = chosen.where(c.consumer == bindparam("consumer_", type_=c.consumer.type))
    if with_status:
        chosen = chosen.where(c.status == bindparam("status_"))
    return chosen
