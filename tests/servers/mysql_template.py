"""The database with tables that tests on MariaDB and MySQL copy."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import URL, Connection, CursorResult, Engine, text
from sqlalchemy.exc import DBAPIError


class MySQLTemplate:
    """Its tables are created again in each copy, because neither server can copy a database."""

    def __init__(self, admin: Engine, new: Callable[[], URL], url: URL) -> None:
        self._admin = admin
        self._new = new
        self._name = str(url.database)
        with admin.connect() as connection:
            self._tables = _tables(connection, self._name)
            self._filled = [
                table
                for table in self._tables
                if connection.scalar(text(f"SELECT EXISTS (SELECT 1 FROM {self._name}.`{table}`)"))
            ]

    def copy(self) -> URL:
        """Create its tables in another database."""
        url = self._new()
        copy = str(url.database)
        with self._admin.connect() as connection:
            for table, created in self._tables.items():
                _run(connection, created.replace(f"`{table}`", f"{copy}.`{table}`", 1))
            self._fill(connection, copy, self._filled)
        return url

    def restore(self, copy: URL) -> bool:
        """Reset a copy to the template's state; return False if that is impossible."""
        with self._admin.connect() as connection:
            return self._restore(connection, str(copy.database))

    def _restore(self, connection: Connection, copy: str) -> bool:
        others = text("SELECT count(*) FROM information_schema.processlist WHERE db = :copy")
        if connection.scalar(others, {"copy": copy}):
            return False
        if connection.execute(text(f"SHOW TRIGGERS FROM {copy}")).first() is not None:
            return False
        tables = _tables(connection, copy)
        if {name: tables.get(name) for name in self._tables} != self._tables:
            return False
        try:
            connection.execute(text("SET SESSION innodb_lock_wait_timeout = 2"))
            for foreign in tables.keys() - self._tables.keys():
                _run(connection, f"DROP TABLE {copy}.`{foreign}`")
            changed = [table for table in self._filled if not self._is_as_it_was(connection, copy, table)]
            for table in [*changed, *self._with_rows(connection, copy)]:
                connection.execute(text(f"DELETE FROM {copy}.`{table}`"))
            self._fill(connection, copy, changed)
        except DBAPIError:  # a view, a foreign key, a lock: it is dropped, which says more if that fails, too
            return False
        return True

    def _is_as_it_was(self, connection: Connection, copy: str, table: str) -> bool:
        found = connection.execute(text(f"CHECKSUM TABLE {self._name}.`{table}`, {copy}.`{table}`"))
        return len({row[1] for row in found}) == 1

    def _with_rows(self, connection: Connection, copy: str) -> Iterable[str]:
        """The tables that are empty in the template but have rows here."""
        empty = self._tables.keys() - set(self._filled)
        questions = (f"(SELECT '{table}' FROM {copy}.`{table}` LIMIT 1)" for table in empty)
        return connection.scalars(text(" UNION ALL ".join(questions))).all()

    def _fill(self, connection: Connection, copy: str, tables: Iterable[str]) -> None:
        for table in tables:
            rows = f"SELECT * FROM {self._name}.`{table}`"
            connection.execute(text(f"INSERT INTO {copy}.`{table}` {rows}"))


def _tables(connection: Connection, database: str) -> dict[str, str]:
    """The CREATE TABLE statement of each table, without its next AUTO_INCREMENT number."""
    names = sorted(connection.scalars(text(f"SHOW TABLES FROM {database}")))
    shown = (_run(connection, f"SHOW CREATE TABLE {database}.`{table}`").one()[1] for table in names)
    return dict(zip(names, (re.sub(r" AUTO_INCREMENT=\d+", "", created) for created in shown), strict=True))


def _run(connection: Connection, statement: str) -> CursorResult[*tuple[Any, ...]]:
    """Run a statement with names that may contain ``:`` and ``%``."""
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
