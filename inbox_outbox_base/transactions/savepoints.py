"""Savepoints by their numbers: an inner savepoint has a higher number than an outer one."""

from sqlalchemy import Connection


def innermost(connection: Connection) -> int:
    """The number of the innermost savepoint that is open; 0 if there is none."""
    savepoint = connection.get_nested_transaction()
    return 0 if savepoint is None else number(savepoint._savepoint)  # noqa: SLF001 - nothing public says


def number(savepoint: str) -> int:
    """SQLAlchemy names the savepoints of a connection sa_savepoint_1, sa_savepoint_2 and so on."""
    return int(savepoint.rpartition("_")[2])
