"""The statements of status-table mode that are the same on every database: pure, built once, executed
elsewhere."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    Boolean,
    Column,
    ColumnElement,
    Delete,
    Float,
    Select,
    Update,
    and_,
    bindparam,
    delete,
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

from inbox_outbox_base.tables.columns import contains, from_now
from inbox_outbox_base.tables.inbox import Tables, utcnow
from inbox_outbox_base.words.incoming import Status

CLAIM_WAIT = 1.0
"""Seconds that a claim waits, twice at most, for a row that somebody else has locked."""

WRITE_WAIT = 5.0
"""The same for writes of the message's holder."""

HELD = frozenset({Status.CONSUMING.value})
"""The statuses of a record that somebody holds."""

IDENTITY = ("consumer", "key")
GIVEN = ("consumer", "key", "claim", "owner", "digest")
"""The fields of a new record that come from its claim."""


class clock_token(FunctionElement[int]):  # noqa: N801
    """Microseconds since 1970 by the database's clock: a key's first token.

    Each later token is larger by at least one; after the record was purged, the next one is the clock again.
    Each database's `claiming.py` says how to compile it.
    """

    inherit_cache = True
    type = BigInteger()


class lock_timeout(FunctionElement[bool]):  # noqa: N801
    """A condition that is always true. On PostgreSQL it also limits the statement's waits for rows to this
    many milliseconds; elsewhere, the connection (`Taking.briefly`) or the driver has a limit."""

    inherit_cache = True
    type = Boolean()


@compiles(lock_timeout)
def _lock_timeout(element: lock_timeout, compiler: SQLCompiler, **kw: Any) -> str:
    return "1 = 1"


def waits(seconds: float) -> lock_timeout:
    """`lock_timeout`, in seconds."""
    return lock_timeout(literal_column(f"'{round(seconds * 1000)}'"))


def after(name: str) -> from_now:
    """The time that is this parameter's number of seconds from now."""
    return from_now(bindparam(name, type_=Float))


def new_values(tables: Tables) -> dict[str, ColumnElement[Any]]:
    """The values of a new record, by column."""
    c = tables.status.c
    given: dict[str, ColumnElement[Any]] = {name: bindparam(name, type_=c[name].type) for name in GIVEN}
    return given | {
        "status": literal_column(f"'{Status.CONSUMING.value}'"),
        "token": clock_token(),
        "lease_until": after("lease"),
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
    # An outer join from one row, so that the clock comes even without a record.
    one = select(literal(1).label("one")).subquery("one")
    return select(utcnow().label("now"), *_columns(tables)).select_from(
        one.outerjoin(tables.status, _this(tables))
    )


@cache
def take_over(tables: Tables) -> Update:
    """Take the record over, if it has not changed since it was read and nobody holds it."""
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
            lease_until=after("lease"),
            attempts_started=c.attempts_started + 1,
            error=null(),
            history=bindparam("history", type_=c.history.type),
            updated_at=utcnow(),
        )
    )


@cache
def bury(tables: Tables) -> Update:
    """Write the status that a claim found into the record, if it has not changed since it was read and nobody
    holds it."""
    c = tables.status.c
    names = ("status", "token", "error", "history", "payload", "delivery")
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
            values["lease_until"] = after("lease")
        elif name in ("started", "finished"):
            values[f"attempts_{name}"] = c[f"attempts_{name}"] + bindparam(name)
        else:
            values[name] = bindparam(name, type_=c[name].type)
    if "status" in names:
        # The retention counts from `updated_at`, the last change of status: heartbeats and steps leave it.
        values |= {"lease_until": null(), "updated_at": utcnow()}
    return update(tables.status).where(held(tables, among), waits(WRITE_WAIT)).values(values)


@cache
def expecting(tables: Tables, statement: Update) -> Update:
    """The same, if the record also has one of these claims."""
    return statement.where(expected(tables))


def expected(tables: Tables) -> ColumnElement[bool]:
    """The record has one of these claims."""
    c = tables.status.c
    return c.claim.in_(bindparam("expects", type_=c.claim.type, expanding=True))


@cache
def unlocked(tables: Tables) -> Select[Any]:
    """The claims among these whose row nobody has locked."""
    return leases(tables).with_for_update(skip_locked=True)


@cache
def leases(tables: Tables) -> Select[Any]:
    """The claims among these that still hold, how long they hold, and the store's clock."""
    c = tables.status.c
    return select(c.key, c.token, c.lease_until, utcnow().label("now")).where(among_claims(tables))


def among_claims(tables: Tables) -> ColumnElement[bool]:
    """The record belongs to one of these claims, which still holds it."""
    c = tables.status.c
    # With the token: a record that was taken over meanwhile belongs to somebody else.
    claims = tuple_(c.key, c.token).in_(bindparam("claims", expanding=True))
    ours = c.consumer == bindparam("consumer_", type_=c.consumer.type)
    return and_(ours, claims, c.status == literal_column(f"'{Status.CONSUMING.value}'"))


@cache
def record_step(tables: Tables) -> Update:
    """Write the steps, a witness and a renewed lease into the record; this transaction has locked it by
    writing the witness."""
    return step_where(tables, tables.status.c.claim == witness(tables))


def step_where(tables: Tables, own: ColumnElement[bool]) -> Update:
    """The same, with the condition that tells that this transaction has locked the record."""
    c = tables.status.c
    names = ("steps", "undos", "pending_step")
    values = {name: bindparam(name, type_=c[name].type) for name in names} | {"claim": witness(tables)}
    return (
        update(tables.status)
        .where(_this(tables), c.token == bindparam("token_"), own)
        .values(values | {"lease_until": after("lease")})
    )


def witness(tables: Tables) -> BindParameter[bytes]:
    """Random bytes that only the transaction of this step knows."""
    return bindparam("claim", type_=tables.status.c.claim.type)


@cache
def forget(tables: Tables, among: frozenset[str]) -> Delete:
    """Delete the record if it still has the token and one of these statuses."""
    return delete(tables.status).where(held(tables, among))


def _as_judged(tables: Tables) -> ColumnElement[bool]:
    """Nobody holds the record, and the values that the claim judged have not changed."""
    c = tables.status.c
    unheld = c.lease_until.is_(None) | (c.lease_until <= utcnow())
    seen = [c[name] == bindparam(f"{name}_") for name in ("token", "status", "undos")]
    # Most records have no such step, and NULL equals nothing.
    pending = c.pending_step.is_not_distinct_from(bindparam("pending_step_", type_=c.pending_step.type))
    return and_(_this(tables), unheld, pending, *seen, waits(CLAIM_WAIT))


def held(tables: Tables, among: Iterable[str]) -> ColumnElement[bool]:
    """The record still has the token and one of these statuses."""
    c = tables.status.c
    statuses = [c.status == literal_column(f"'{status}'") for status in sorted(among)]
    return and_(_this(tables), c.token == bindparam("token_"), or_(*statuses))


@cache
def listed(tables: Tables, *names: str) -> Select[Any]:
    """Records, the least recently changed first; `names` are the parameters that choose them."""
    return _chosen(tables, _columns(tables), names).limit(bindparam("limit"))


@cache
def places(tables: Tables, *names: str) -> Select[Any]:
    """What finds these records again."""
    c = tables.status.c
    return _chosen(tables, [c.consumer, c.key, c.token], names)


def _chosen(tables: Tables, columns: list[Column[Any]], names: Iterable[str]) -> Select[Any]:
    c = tables.status.c
    chosen = select(*columns).order_by(c.updated_at)
    for name in names:
        column = c[name.removesuffix("_")]
        given = bindparam(name, type_=column.type)
        chosen = chosen.where(contains(column, given) if name == "error_" else column == given)
    return chosen
