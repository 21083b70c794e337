"""How rows are loaded on databases with ON CONFLICT: PostgreSQL and SQLite."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, null, select, true

from .loading import Loading, is_newer
from .results import Append, Upsert


class OnConflict(Loading):
    """One statement adds rows, or updates older ones."""

    def inserted(self, connection: Connection, statement: Any) -> int:
        """Run an INSERT, and return how many rows were inserted or updated."""
        return connection.execute(statement.execution_options(preserve_rowcount=True)).rowcount

    def check(
        self,
        connection: Connection,
        target: Table,
        names: Sequence[str],
        how: Append | Upsert,
        key: Sequence[str] | None,
    ) -> None:
        rows: Any = select(*(null() for _ in names))
        if isinstance(how, Upsert):
            statement = self._upserting(target, names, rows, how)
        elif key is not None:
            statement = self._adding(target, names, rows, key)
        else:
            statement = self.insert(target).from_select(names, rows)
        connection.exec_driver_sql(f"EXPLAIN {statement.compile(connection)}")

    def add(
        self,
        connection: Connection,
        target: Table,
        names: Sequence[str],
        rows: Select[Any],
        key: Sequence[str],
    ) -> int:
        return self.inserted(connection, self._adding(target, names, rows, key))

    def upsert(
        self, connection: Connection, target: Table, names: Sequence[str], rows: Select[Any], how: Upsert
    ) -> int:
        return self.inserted(connection, self._upserting(target, names, rows, how))

    def _adding(self, target: Table, names: Sequence[str], rows: Select[Any], key: Sequence[str]) -> Any:
        # Without a WHERE, SQLite parses ON CONFLICT as the condition of a join.
        added = self.insert(target).from_select(names, rows.where(true()))
        return added.on_conflict_do_nothing(index_elements=[target.c[name] for name in key])

    def _upserting(self, target: Table, names: Sequence[str], rows: Select[Any], how: Upsert) -> Any:
        added = self.insert(target).from_select(names, rows.where(true()))
        values = {name: added.excluded[name] for name in names if name not in how.key}
        older = is_newer(added.excluded[how.version], target.c[how.version])
        own = [target.c[name] for name in how.key]
        return added.on_conflict_do_update(index_elements=own, set_=values, where=older)
