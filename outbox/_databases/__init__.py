"""What each database does its own way, one file each."""

from inbox._databases import supported as _inbox_supported

from ._database import Database, Found, Scan, Writers
from .mysql import MySQL
from .postgresql import PostgreSQL
from .sqlite import SQLite

__all__ = ["Database", "Found", "Scan", "Writers", "supported"]

_DATABASES: dict[str, Database] = {
    "postgresql": PostgreSQL(),
    "mysql": MySQL(),
    "mariadb": MySQL(),
    "sqlite": SQLite(),
}


def supported(dialect_name: str) -> Database:
    """How to talk to a database.

    Raises:
        UnsupportedDatabase: a dialect that is not proven.
    """
    _inbox_supported(dialect_name)
    return _DATABASES[dialect_name]
