"""The table of rejected rows: one row for each key whose row the target has refused, until it is taken."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Delete, Integer, Select, Table, bindparam, delete, insert, select
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.errors.codes import code_of
from inbox_outbox_base.errors.inbox import TransientError
from inbox_outbox_base.tables.inbox import Tables
from spark._executor.ledger import LedgerEntry

from .dividing import RefusedRow

_AT_ONCE = 1_000
"""The most keys in a statement."""

_WAITING = 2**20
"""The most characters of rows that are kept before they are sent, except for a single row."""


def forget(connection: Connection, tables: Tables, consumer: str, keys: pa.StringArray) -> None:
    """Delete the rows of these keys, which are in byte order; usually there are none."""
    between = {
        "consumer": consumer,
        "low": keys[0].as_py(),
        "high": keys[-1].as_py(),
        "most": len(keys),
    }
    found = connection.scalars(_between(tables.rejected), between).all()
    if len(found) < len(keys):
        keys = keys.filter(pc.is_in(keys, pa.array(found, pa.string()))) if found else keys[:0]
    _delete(connection, tables.rejected, consumer, keys.to_pylist())


class RejectedRows:
    """Writes refused rows of a partition, and gives back their keys, which its transaction has taken. Until
    it commits, others wait for the keys, so that no row stays for a key that somebody takes meanwhile."""

    def __init__(
        self,
        connection: Connection,
        database: Loading,
        tables: Tables,
        entry: LedgerEntry,
        load: int | None,
    ) -> None:
        self._connection = connection
        self._database = database
        self._tables = tables
        self._shared: dict[str, Any] = {
            "consumer": entry.consumer,
            "run": entry.run,
            "batch": entry.batch,
            "part": entry.part,
            "load": load,
        }
        self._waiting: list[RefusedRow] = []
        self._size = 0
        self.count = 0

    def add(self, row: RefusedRow) -> None:
        """Add a row.

        Raises as `finish`.
        """
        self.count += 1
        self._waiting.append(row)
        self._size += len(row.content)
        if len(self._waiting) == _AT_ONCE or self._size > _WAITING:
            self.finish()

    def finish(self) -> None:
        """Write the rows that are left.

        Raises:
            TransientError: another transaction has added one of the rows.
        """
        if not self._waiting:
            return
        keys = [each.key for each in self._waiting]
        _delete(self._connection, self._tables.message, self._shared["consumer"], keys)
        rows = [
            self._shared | {"key": each.key, "error": each.error, "content": each.content}
            for each in self._waiting
        ]
        try:
            self._connection.execute(insert(self._tables.rejected), rows)
        except DBAPIError as error:
            if code_of(error) not in self._database.taken:
                raise
            raise TransientError("another transaction has rejected a row with the same key") from error
        self._waiting, self._size = [], 0


def _delete(connection: Connection, table: Table, consumer: str, keys: Sequence[str]) -> None:
    for at in range(0, len(keys), _AT_ONCE):
        given: dict[str, Any] = {"consumer_": consumer, "keys": keys[at : at + _AT_ONCE]}
        connection.execute(_gone(table), given)


@cache
def _between(table: Table) -> Select[Any]:
    """The keys in a range, as many as are given at most: more rows cost no more."""
    c = table.c
    low, high = (bindparam(name, type_=c.key.type) for name in ("low", "high"))
    its = c.consumer == bindparam("consumer"), c.key >= low, c.key <= high
    return select(c.key).where(*its).limit(bindparam("most", type_=Integer))


@cache
def _gone(table: Table) -> Delete:
    """Delete the rows of some keys."""
    c = table.c
    return delete(table).where(
        c.consumer == bindparam("consumer_"), c.key.in_(bindparam("keys", expanding=True))
    )
