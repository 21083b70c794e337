"""The statements of the overview: each reads a bounded number of rows, by an index."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    CompoundSelect,
    Integer,
    Select,
    String,
    Table,
    and_,
    bindparam,
    case,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    union_all,
)
from sqlalchemy.sql.elements import ColumnElement

from inbox._status_mode.stores import Status
from inbox_outbox_base.tables.inbox import Tables
from inbox_outbox_base.words.incoming import Verdict

_MOST: Any = bindparam("most", type_=Integer)
_MOST_CONSUMED: Any = bindparam("most_consumed", type_=Integer)


@cache
def taken(tables: Tables, consumers: int) -> CompoundSelect[Any]:
    """Of each of some consumers (`consumer_0` and so on), the keys taken since a time, up to `most`; and when
    its oldest key was taken."""
    table, time = tables.message, tables.message.c.accepted_at
    parts: list[Select[Any]] = []
    for number in range(consumers):
        its = table.c.consumer == bindparam(f"consumer_{number}")
        parts += [
            _count(number, "taken", table, its, time >= bindparam("since"), time=time),
            _oldest(number, "oldest", table, its, time.is_not(None), time=time),
        ]
    return union_all(*parts)


@cache
def claimed(tables: Tables, consumers: int) -> CompoundSelect[Any]:
    """The same for status-table mode: the messages in each status that is not the normal end; those that have
    come to it since a time, up to `most_consumed`; those whose lease is over; the oldest in each status."""
    table, time = tables.status, tables.status.c.updated_at
    parts: list[Select[Any]] = []
    for number in range(consumers):
        its = table.c.consumer == bindparam(f"consumer_{number}")
        for status in Status:
            in_status = table.c.status == literal(status.value, String)
            parts.append(_oldest(number, f"oldest {status}", table, its, in_status, time=time))
            if status is Status.CONSUMED:
                recent = its, in_status, time >= bindparam("since")
                parts.append(_count(number, "consumed", table, *recent, time=time, most=_MOST_CONSUMED))
            else:
                parts.append(_count(number, status.value, table, its, in_status, time=time))
        consuming = table.c.status == literal(Status.CONSUMING.value, String)
        lost = case((table.c.lease_until < bindparam("now"), 1))
        parts.append(_count(number, "lost", table, its, consuming, time=time, of=lost))
    return union_all(*parts)


@cache
def loads(tables: Tables, consumers: int) -> CompoundSelect[Any]:
    """The same for bulk writers: loads, with the oldest and the newest."""
    table, time = tables.ledger, tables.ledger.c.committed_at
    parts: list[Select[Any]] = []
    for number in range(consumers):
        its = table.c.consumer == bindparam(f"consumer_{number}")
        parts += [
            _count(number, "loads", table, its, time=time),
            _oldest(number, "oldest load", table, its, time=time),
            _oldest(number, "newest load", table, its, time=time, is_newest=True),
        ]
    return union_all(*parts)


@cache
def rejected(tables: Tables, consumers: int) -> CompoundSelect[Any]:
    """Rows that bulk writers have set aside."""
    table, time = tables.rejected, tables.rejected.c.rejected_at
    its = [table.c.consumer == bindparam(f"consumer_{number}") for number in range(consumers)]
    return union_all(*(_count(number, "rejected", table, each, time=time) for number, each in enumerate(its)))


@cache
def refused(tables: Tables, consumers: int, *, takers: tuple[Table, ...]) -> CompoundSelect[Any]:
    """Keys that were refused since a time: all, and by verdict those that were not taken since; `takers` are
    the tables that say so."""
    table, time = tables.refused, tables.refused.c.last_seen
    whats = {"mismatch": Verdict.MISMATCH, "too_old": Verdict.TOO_OLD, "given up": Verdict.DEAD}
    parts: list[Select[Any]] = []
    for number in range(consumers):
        of: BindParameter[Any] = bindparam(f"consumer_{number}")
        its = table.c.consumer == of, time >= bindparam("since")
        parts.append(_count(number, "refused", table, *its, time=time))
        for what, verdict in whats.items():
            is_one = table.c.verdict == literal(verdict.value, String)
            one = case((not_(taken_since(table, takers, of)), 1))
            # The newest first: those that are over by now are old.
            parts.append(_count(number, what, table, *its, is_one, time=time, of=one, is_newest_first=True))
    return union_all(*parts)


def taken_since(
    refused: Table, takers: Sequence[Table], consumer: BindParameter[Any] | None = None
) -> ColumnElement[bool]:
    """Whether a refused message was taken after all: its key, with no other payload. Each key is looked up by
    itself: for an EXISTS, PostgreSQL may read all keys. Name the consumer, if all are of one: else the plan
    has all partitions of all consumers."""
    found: list[ColumnElement[bool]] = []
    for table in takers:
        c = table.c
        digests = refused.c.digest.is_(None), c.digest.is_(None), c.digest == refused.c.digest
        its = select(c.status if "status" in c else literal(Status.CONSUMED.value, String)).where(
            c.consumer == (refused.c.consumer if consumer is None else consumer),
            c.key == refused.c.key,
            or_(*digests),
        )
        found.append(func.coalesce(its.scalar_subquery(), "") == literal(Status.CONSUMED.value, String))
    return and_(refused.c.verdict != literal(Verdict.MISMATCH.value, String), or_(false(), *found))


def given(consumers: Sequence[str]) -> dict[str, str]:
    """The parameters for these consumers."""
    return {f"consumer_{number}": name for number, name in enumerate(consumers)}


def _count(
    number: int,
    what: str,
    table: Table,
    *where: ColumnElement[bool],
    time: ColumnElement[Any],
    of: ColumnElement[Any] | None = None,
    most: Any = _MOST,
    is_newest_first: bool = False,
) -> Select[Any]:
    """Count up to `most` rows; the time is there because the others have one. The order makes the planner use
    the index that has it, however few of the rows it believes to be others."""
    counted = (literal(1) if of is None else of).label("one")
    found = select(counted, time.label("time")).select_from(table).where(*where)
    rows = found.order_by(time.desc() if is_newest_first else time).limit(most).subquery()
    latest = func.max(rows.c.time, type_=time.type).label("time")
    return select(*_labels(number, what), func.count(rows.c.one).label("rows"), latest)


def _oldest(
    number: int,
    what: str,
    table: Table,
    *where: ColumnElement[bool],
    time: ColumnElement[Any],
    is_newest: bool = False,
) -> Select[Any]:
    order = time.desc() if is_newest else time
    row = select(time.label("time")).select_from(table).where(*where).order_by(order).limit(1).subquery()
    return select(*_labels(number, what), literal(0).label("rows"), row.c.time)


def _labels(number: int, what: str) -> list[ColumnElement[Any]]:
    return [literal(number, Integer).label("number"), literal(what, String).label("what")]
