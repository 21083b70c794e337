"""Databases with tables on MariaDB and MySQL: used again after they have been emptied, since to make and drop
their tables takes longer than most tests."""

import re
from collections.abc import Callable

from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import DBAPIError


class Copies:
    """Copies of one database, each for one test at a time.

    A copy that was used is put into the template's state before it is used again. It is dropped instead if
    its tables are not the template's any more, or if somebody is still connected to it.
    """

    def __init__(self, admin: Engine, new: Callable[[], URL], drop: Callable[[URL], None]) -> None:
        self._admin = admin
        self._new = new
        self._drop = drop
        self._template: _Template | None = None
        self._copies: set[str] = set()
        self._spare: list[URL] = []

    def take(self, template: URL) -> URL:
        """A database like the template, which is always the same."""
        with self._admin.connect() as connection:
            if self._template is None:
                self._template = _Template(connection, str(template.database))
            while self._spare:
                spare = self._spare.pop()
                if self._template.restore(connection, str(spare.database)):
                    return spare
                self._copies.discard(str(spare.database))
                self._drop(spare)
            copy = self._new()
            self._copies.add(str(copy.database))
            self._template.make(connection, str(copy.database))
        return copy

    def give_back(self, gone: URL) -> None:
        """Keep a copy for later; drop what is none."""
        if str(gone.database) in self._copies:
            self._spare.append(gone)
        else:
            self._drop(gone)

    def close(self) -> None:
        """Drop what is left."""
        for spare in self._spare:
            self._drop(spare)


class _Template:
    """A database that stays as it is."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._name = name
        self._tables = _tables(connection, name)
        self._filled = [
            table
            for table in self._tables
            if connection.scalar(text(f"SELECT EXISTS (SELECT 1 FROM {name}.`{table}`)"))
        ]

    def make(self, connection: Connection, copy: str) -> None:
        """Make its tables in another database."""
        for table, created in self._tables.items():
            connection.exec_driver_sql(created.replace(f"`{table}`", f"{copy}.`{table}`", 1))
        self._fill(connection, copy)

    def restore(self, connection: Connection, copy: str) -> bool:
        """Put a copy into this one's state; False if that cannot be done."""
        others = text("SELECT count(*) FROM information_schema.processlist WHERE db = :copy")
        if connection.scalar(others, {"copy": copy}):
            return False
        if connection.execute(text(f"SHOW TRIGGERS FROM {copy}")).first() is not None:
            return False
        try:
            connection.execute(text("SET SESSION innodb_lock_wait_timeout = 2"))
            for table in _tables(connection, copy):
                does = "DELETE FROM" if table in self._tables else "DROP TABLE"
                connection.execute(text(f"{does} {copy}.`{table}`"))
            self._fill(connection, copy)
            return _tables(connection, copy) == self._tables
        except DBAPIError:  # a view, a foreign key, a lock: it is dropped, which says more if that fails, too
            return False

    def _fill(self, connection: Connection, copy: str) -> None:
        for table in self._filled:
            rows = f"SELECT * FROM {self._name}.`{table}`"
            connection.execute(text(f"INSERT INTO {copy}.`{table}` {rows}"))


def _tables(connection: Connection, database: str) -> dict[str, str]:
    """How each table is made; not which number comes next, which no test has to know."""
    names = sorted(connection.scalars(text(f"SHOW TABLES FROM {database}")))
    shown = (connection.execute(text(f"SHOW CREATE TABLE {database}.`{table}`")).one()[1] for table in names)
    return dict(zip(names, (re.sub(r" AUTO_INCREMENT=\d+", "", created) for created in shown), strict=True))
