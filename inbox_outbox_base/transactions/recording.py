"""Stores operators' decisions, in the transactions that carry them out."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import (
    Connection,
    Delete,
    Float,
    Insert,
    Integer,
    Select,
    Table,
    bindparam,
    delete,
    insert,
    select,
)
from sqlalchemy.exc import IntegrityError

from inbox_outbox_base.checks.missing import refused
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.tables.columns import from_now
from inbox_outbox_base.words.deciding import OperatorDecision

T = TypeVar("T")

_log = logging.getLogger("inbox.decisions")

KEPT = timedelta(days=365)
"""How long decisions are kept. Later ones delete them: an application may have no purge."""

_FORGOTTEN = 100
"""The most decisions that one deletes."""


@dataclass(slots=True)
class Recording:
    """How one call of an operator's function is stored.

    Attributes:
        table: `ops_decision`.
        action: the function.
        by: who decides.
        why: the reason, if there is one.
        filter: what it is about, in values for JSON; None is left out.
    """

    table: Table
    action: str
    by: str
    why: str | None
    filter: Mapping[str, Any]
    _id: str = field(default="", init=False)
    _is_noted: bool = field(default=False, init=False)
    _is_possible: bool = field(default=True, init=False)
    _forgets: bool = field(default=True, init=False)

    def once(self, work: Callable[[Connection], T]) -> Callable[[Connection], T]:
        """`work` for a transaction of this call that may be tried again. If an earlier try has committed, and
        only the answer to its COMMIT was lost, a later one returns what that one has returned. The row of the
        decision tells; without it, `work` meets its own changes."""
        self._id, self._is_noted = uuid4().hex, False
        answers: list[T] = []

        def try_it(connection: Connection) -> T:
            if not (self._is_noted and self._has_committed(connection)):
                answers.append(work(connection))
            return answers[-1]

        return try_it

    def note(self, connection: Connection, count: int) -> None:
        """Store that this transaction has changed so many messages. Without the table or the right to it the
        decision goes on, and the call logs one WARNING. Call it once in a `work` of `once`, behind everything
        that locks rows: it may wait for another operator's COMMIT."""
        if not count or not self._is_possible:
            return
        if error := refused(connection, self.table, lambda: self._insert(connection, count)):
            self._is_possible = False
            _log.warning("%s by %s is not recorded: %s", self.action, self.by, reason(error))
            return
        self._is_noted = True
        if self._forgets and (error := refused(connection, self.table, lambda: self._forget(connection))):
            self._forgets = False
            _log.warning("decisions older than a year are not deleted: %s", reason(error))

    def _insert(self, connection: Connection, count: int) -> None:
        given = {name: value for name, value in self.filter.items() if value is not None}
        row = {
            "id": self._id,
            "by": self.by,
            "action": self.action,
            "filter": json.dumps(given, ensure_ascii=False),
            "count": count,
            "why": self.why,
        }
        connection.execute(insert_decision(self.table), row)

    def _forget(self, connection: Connection) -> None:
        given = {"age": -KEPT.total_seconds(), "limit": _FORGOTTEN}
        # One by one: with a condition, MariaDB and MySQL may scan the rows that other operators have just
        # added, and lock each other out. In one order, for the same reason.
        if old := sorted(connection.execute(old_decisions(self.table), given).scalars()):
            connection.execute(forget_decision(self.table), [{"id_": each} for each in old])

    def _has_committed(self, connection: Connection) -> bool:
        """Whether an earlier try has. Another INSERT tells, because it waits for a COMMIT that still runs."""
        savepoint = connection.begin_nested()
        try:
            self._insert(connection, 1)
        except IntegrityError:
            savepoint.rollback()
            return True
        savepoint.rollback()
        return False


def stored(connection: Connection, table: Table, limit: int) -> list[OperatorDecision]:
    """The newest decisions, newest first."""
    rows = connection.execute(newest(table), {"limit": limit}).mappings()
    return [OperatorDecision(**dict(row) | {"filter": json.loads(row["filter"])}) for row in rows]


@cache
def insert_decision(table: Table) -> Insert:
    """Add a decision; the time is the database's."""
    return insert(table)


@cache
def old_decisions(table: Table) -> Select[Any]:
    """The ids of some decisions that are older than this many seconds."""
    # As a subquery: it is read once, so that the index can be used.
    since = select(from_now(bindparam("age", type_=Float))).scalar_subquery()
    return select(table.c.id).where(table.c["at"] < since).limit(bindparam("limit", type_=Integer))


@cache
def forget_decision(table: Table) -> Delete:
    """Delete one decision."""
    return delete(table).where(table.c.id == bindparam("id_"))


@cache
def newest(table: Table) -> Select[Any]:
    """The newest decisions."""
    c = table.c
    names = ("id", "at", "by", "action", "filter", "count", "why")
    chosen = select(*(c[name] for name in names)).order_by(c["at"].desc(), c["id"].desc())
    return chosen.limit(bindparam("limit", type_=Integer))
