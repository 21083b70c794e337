"""What each database does its own way, one file each."""

from inbox._databases import supported as _inbox_supported

from ..errors import InvalidOption
from ._database import Database, Found, Marks, Scan, Writers
from .mysql import MySQL
from .postgresql import PostgreSQL
from .sqlite import SQLite

__all__ = ["Database", "Found", "Marks", "Scan", "Writers", "supported"]

_DATABASES: dict[str, Database] = {
    "postgresql": PostgreSQL(),
    "mysql": MySQL(),
    "mariadb": MySQL(),
    "sqlite": SQLite(),
}


def supported(dialect_name: str, schema: str | None = None) -> Database:
    """How to talk to a database, and to the tables in a schema of it.

    Raises:
        UnsupportedDatabase: a dialect that is not proven.
        InvalidOption: a schema, where there are none inside a database.
    """
    _inbox_supported(dialect_name)
    if schema is not None and dialect_name != "postgresql":
        raise InvalidOption(f"schema={schema!r}: only PostgreSQL has schemas inside a database")
    return _DATABASES[dialect_name]
