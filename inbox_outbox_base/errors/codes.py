"""Decide which driver errors are transient, by SQLSTATE or error number, never by message text.

PostgreSQL: appendix A of its manual. MySQL and MariaDB: their server and client error references. SQLite: its
list of result codes.
"""

from typing import Any

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from .inbox import TransientError

_POSTGRESQL_BROKEN = {"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "40003"}
_POSTGRESQL_PASSING = _POSTGRESQL_BROKEN | {"25006", "40001", "40P01", "55P03", "53300"}
_MYSQL_BROKEN = {0, 1053, 1927, 2000, 2002, 2003, 2006, 2013, 2014, 2055, 4031}
_MYSQL_PASSING = _MYSQL_BROKEN | {1020, 1040, 1205, 1213}
_MYSQL_LOCK_TIMEOUT = 1205
_LIMITS = {"57014", 1317, 1969, 3024}
"""A statement was cancelled, or exceeded the server's time limit."""
_FULL = {"53000", "53100", "53200", "53400", "58030", 1021, 1203, 1226}
"""Disk, memory, files or connections are exhausted, or the disk fails."""
_NOT_NOW = {"55006", 1047, 1290, 1836, 3101, 3572}
"""The object is in use, the server has become a replica, or its cluster is changing."""
_READ_ONLY = {"25006", 1290, 1836}
_POOLED = {"26000", "42P05"}
"""A pooler that does not track prepared statements gave us another session."""
_TRANSIENT = _LIMITS | _FULL | _NOT_NOW | _POOLED
_ABORTED = "25P02"
_SQLITE_BUSY, _SQLITE_LOCKED, _SQLITE_BUSY_SNAPSHOT = 5, 6, 517
_TABLE_MISSING = {"42P01", "42704", "3F000", 1146, 1049}
"""PostgreSQL returns 42704 (undefined object) for a table's row type."""
_DENIED = {"42501", 1142, 1143}


def code_of(error: DBAPIError) -> str | int | None:
    """The SQLSTATE (PostgreSQL), error number (MySQL, MariaDB) or result code (SQLite), if there is one."""
    cause: Any = error.orig
    if cause is not None and cause.args and isinstance(cause.args[0], int):
        return cause.args[0]
    for attribute in ("sqlite_errorcode", "sqlstate"):
        code: str | int | None = getattr(cause, attribute, None)
        if code is not None:
            return code
    return None


def _is_sqlite(error: DBAPIError) -> bool:
    return hasattr(error.orig, "sqlite_errorcode")


def is_transient(error: BaseException) -> bool:
    """Whether the same work may succeed if it is retried in a new transaction.

    True for deadlocks, serialization failures, lock timeouts, lost or refused connections, time limits of
    statements, a pool or a server that is full, a server that is read-only, and `TransientError`; of an
    exception group if it is true for each in it; False for everything else.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_transient, error.exceptions))
    if isinstance(error, PoolTimeoutError) or is_passing(error):
        return True
    return isinstance(error, DBAPIError) and not _is_sqlite(error) and code_of(error) in _TRANSIENT


def is_passing(error: BaseException) -> bool:
    """Whether others caused the error, so that no work is to blame for it.

    True for deadlocks, serialization failures, lock timeouts, lost or refused connections and
    `TransientError`, a subset of the transient errors. The other transient errors may be due to the work, as
    a time limit is to a slow query.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_passing, error.exceptions))
    if isinstance(error, TransientError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    code = code_of(error)
    if _is_sqlite(error):
        return isinstance(code, int) and code & 0xFF in (_SQLITE_BUSY, _SQLITE_LOCKED)
    return code in _POSTGRESQL_PASSING or code in _MYSQL_PASSING or breaks_connection(error)


def is_aftermath(error: BaseException) -> bool:
    """Whether this statement was refused only because an earlier one of the transaction had failed."""
    return isinstance(error, DBAPIError) and code_of(error) == _ABORTED


def is_read_only(error: BaseException) -> bool:
    """Whether the server is not, or no longer, a primary, so that its connections are useless."""
    return isinstance(error, DBAPIError) and code_of(error) in _READ_ONLY


def breaks_connection(error: DBAPIError) -> bool:
    """Whether this error broke the connection, so that a COMMIT has an unknown outcome."""
    code = code_of(error)
    if _is_sqlite(error):
        return False
    if code is None:  # no code from a server: the driver lost the connection or never had one
        return error.connection_invalidated or isinstance(error, OperationalError)
    if isinstance(code, str):
        return code in _POSTGRESQL_BROKEN or code.startswith("08") or error.connection_invalidated
    return code in _MYSQL_BROKEN or error.connection_invalidated


def ends_wait(error: DBAPIError) -> bool:
    """Whether a bounded wait for a lock ran out, or first met the server's limit, and nothing else
    happened."""
    code = code_of(error)
    if _is_sqlite(error):
        return isinstance(code, int) and code & 0xFF == _SQLITE_BUSY and code != _SQLITE_BUSY_SNAPSHOT
    return code in ("55P03", _MYSQL_LOCK_TIMEOUT) or code in _LIMITS


def is_table_missing(error: DBAPIError) -> bool:
    """Whether a table or its schema does not exist (SQLite has no code of its own for that)."""
    return code_of(error) in _TABLE_MISSING


def is_denied(error: DBAPIError) -> bool:
    """Whether the role lacks the right to do this to a table."""
    return code_of(error) in _DENIED
