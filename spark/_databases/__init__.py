"""What each database does its own way, one file each."""

from ._database import Claim, Column, Database, Taken, Target
from .mysql import MySQL
from .postgresql import PostgreSQL
from .sqlite import SQLite

__all__ = ["Claim", "Column", "Database", "Taken", "Target", "database_for"]


def database_for(backend: str) -> Database:
    """How to write to a database; `inbox` has checked that it is one of these."""
    databases: dict[str, type[Database]] = {
        "postgresql": PostgreSQL,
        "mysql": MySQL,
        "mariadb": MySQL,
        "sqlite": SQLite,
    }
    return databases[backend]()
