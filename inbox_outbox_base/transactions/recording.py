"""Stores operators' decisions, in the transactions that carry them out."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any
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
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.base import Executable

from inbox_outbox_base.checks.missing import is_there
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.tables.columns import from_now
from inbox_outbox_base.words.deciding import OperatorDecision

_log = logging.getLogger("inbox.decisions")

KEPT = timedelta(days=365)
"""How long decisions are kept. The next decision deletes older ones: an application may have no purge."""


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
    _is_possible: bool = field(default=True, init=False)
    _deletes: bool = field(default=True, init=False)

    def note(self, connection: Connection, count: int) -> None:
        """Store that this transaction has changed so many messages. Without the table or the right to it the
        decision goes on, and the call logs one WARNING."""
        if not count or not self._is_possible:
            return
        given = {name: value for name, value in self.filter.items() if value is not None}
        row = {
            "id": uuid4().hex,
            "by": self.by,
            "action": self.action,
            "filter": json.dumps(given, ensure_ascii=False),
            "count": count,
            "why": self.why,
        }
        if error := self._refused(connection, insert_decision(self.table), row):
            self._is_possible = False
            _log.warning("%s by %s is not recorded: %s", self.action, self.by, reason(error))
        elif self._deletes:
            age = {"age": -KEPT.total_seconds()}
            if error := self._refused(connection, delete_old(self.table), age):
                self._deletes = False
                _log.warning("decisions older than a year are not deleted: %s", reason(error))

    def _refused(
        self, connection: Connection, statement: Executable, given: Mapping[str, Any]
    ) -> DBAPIError | None:
        """Execute a statement; return the error if the table or the right is missing."""
        try:
            with connection.begin_nested():  # otherwise an error would end the decision's transaction
                connection.execute(statement, given)
        except DBAPIError as error:
            is_missing = codes.is_table_missing(error, lambda: is_there(connection, self.table))
            if not (is_missing or codes.is_denied(error)):
                raise
            return error
        return None


def stored(connection: Connection, table: Table, limit: int) -> list[OperatorDecision]:
    """The newest decisions, newest first."""
    rows = connection.execute(newest(table), {"limit": limit}).mappings()
    return [OperatorDecision(**dict(row) | {"filter": json.loads(row["filter"])}) for row in rows]


@cache
def insert_decision(table: Table) -> Insert:
    """Add a decision; the time is the database's."""
    return insert(table)


@cache
def delete_old(table: Table) -> Delete:
    """Delete decisions that are older than this many seconds."""
    # As a subquery: it is read once, so that the index can be used.
    since = select(from_now(bindparam("age", type_=Float))).scalar_subquery()
    return delete(table).where(table.c["at"] < since)


@cache
def newest(table: Table) -> Select[Any]:
    """The newest decisions."""
    c = table.c
    names = ("id", "at", "by", "action", "filter", "count", "why")
    chosen = select(*(c[name] for name in names)).order_by(c["at"].desc(), c["id"].desc())
    return chosen.limit(bindparam("limit", type_=Integer))
