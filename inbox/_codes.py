"""Which driver errors are passing, decided by SQLSTATE or error number, never by message text.

PostgreSQL: appendix A of its manual. MySQL and MariaDB: their server and client error references.
SQLite: its list of result codes.
"""

from typing import Any

from sqlalchemy.exc import DBAPIError, OperationalError

from .errors import TransientError

_POSTGRESQL_BROKEN = {"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "40003"}
_POSTGRESQL_TRANSIENT = _POSTGRESQL_BROKEN | {"25006", "40001", "40P01", "55P03", "53300"}
_MYSQL_BROKEN = {0, 1053, 1927, 2000, 2002, 2003, 2006, 2013, 2014, 2055, 4031}
_MYSQL_TRANSIENT = _MYSQL_BROKEN | {1020, 1040, 1205, 1213}
_MYSQL_LOCK_TIMEOUT = 1205
_SQLITE_BUSY, _SQLITE_LOCKED, _SQLITE_BUSY_SNAPSHOT = 5, 6, 517
_TABLE_MISSING = {"42P01", "3F000", 1146, 1049}
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
    """Whether the same work may succeed when it is tried again in a new transaction.

    True for deadlocks, serialization failures, lock timeouts, lost or refused connections and
    `TransientError`; False for everything else.
    """
    if isinstance(error, TransientError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    code = code_of(error)
    if _is_sqlite(error):
        return isinstance(code, int) and code & 0xFF in (_SQLITE_BUSY, _SQLITE_LOCKED)
    return code in _POSTGRESQL_TRANSIENT or code in _MYSQL_TRANSIENT or breaks_connection(error)


def breaks_connection(error: DBAPIError) -> bool:
    """Whether the connection is gone with this error, so that a COMMIT has an unknown outcome."""
    code = code_of(error)
    if _is_sqlite(error):
        return False
    if code is None:  # neither server has spoken: the driver lost or never had it
        return error.connection_invalidated or isinstance(error, OperationalError)
    if isinstance(code, str):
        return code in _POSTGRESQL_BROKEN or code.startswith("08") or error.connection_invalidated
    return code in _MYSQL_BROKEN or error.connection_invalidated


def is_lock_timeout(error: DBAPIError) -> bool:
    """Whether a bounded wait for a lock ran out, and nothing else happened."""
    code = code_of(error)
    if _is_sqlite(error):
        return isinstance(code, int) and code & 0xFF == _SQLITE_BUSY and code != _SQLITE_BUSY_SNAPSHOT
    return code in ("55P03", _MYSQL_LOCK_TIMEOUT)


def is_table_missing(error: DBAPIError) -> bool:
    """Whether a table or its schema is not there (SQLite has no code of its own for that)."""
    return code_of(error) in _TABLE_MISSING


def is_denied(error: DBAPIError) -> bool:
    """Whether the role has no right to do this to a table."""
    return code_of(error) in _DENIED
