"""What each database does its own way, one file each."""

from sqlalchemy import Connection

from ..errors import UnsupportedDatabase
from ._database import Attempt, Batch, Database, Found, Stored
from .mysql import MySQL
from .postgresql import PostgreSQL
from .sqlite import SQLite

__all__ = ["Attempt", "Batch", "Database", "Found", "Stored", "database_of", "supported"]

_DATABASES: dict[str, Database] = {
    "postgresql": PostgreSQL(),
    "mysql": MySQL(),
    "mariadb": MySQL(),
    "sqlite": SQLite(),
}


def supported(dialect_name: str) -> Database:
    """How to talk to a database.

    Raises:
        UnsupportedDatabase: a dialect that is not proven. Compiling is not meaning the same: some
            dialects silently drop the lock clauses that a guarantee stands on.
    """
    try:
        return _DATABASES[dialect_name]
    except KeyError:
        known = ", ".join(_DATABASES)
        raise UnsupportedDatabase(f"dialect={dialect_name!r}: the inbox is proven on {known} only") from None


def database_of(connection: Connection) -> Database:
    """How to talk to the database behind this connection."""
    return supported(connection.dialect.name)
