"""What PyMySQL and asyncmy know about a transaction from the server's last answer; what they cannot know, the
server is asked. mysqlclient knows nothing, and nobody can be asked: a transaction of ours has ended if a
savepoint in it is gone."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases.taking import State, driver_of, pooled
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import UnsupportedDatabase

from .dialect import MySQLCodes

T = TypeVar("T")

_SILENT = "mysqldb"
"""SQLAlchemy's name of mysqlclient."""
_IN_TRANSACTION = 1
"""The protocol's flag SERVER_STATUS_IN_TRANS."""
_IS_READ_ONLY = text("SELECT @@global.read_only")


def driver(connection: Connection) -> Any:
    """The driver's connection.

    Raises:
        UnsupportedDatabase: of another driver.
    """
    if connection.dialect.driver not in ("pymysql", "asyncmy", _SILENT):
        raise UnsupportedDatabase(
            f"driver={connection.dialect.driver!r}: on MySQL and MariaDB expected pymysql, asyncmy or mysqldb"
        )
    return driver_of(connection)


def is_silent(connection: Connection) -> bool:
    """Whether the driver does not tell the status."""
    return connection.dialect.driver == _SILENT


def is_ended(connection: Connection) -> bool:
    """As `Taking.is_ended`; False if the driver does not tell."""
    told = driver(connection)
    if is_silent(connection):
        return bool(told.get_autocommit())  # it tells that SET autocommit has ended the transaction
    if connection.dialect.is_async:
        # asyncmy's connection keeps the last non-zero status, and after COMMIT the status is zero. A result
        # that is still being read has no status yet.
        result = told._result  # noqa: SLF001
        told = told if result is None or result.unbuffered_active else result
    elif not told.server_status & _IN_TRANSACTION and _hides_status(told._result):  # noqa: SLF001
        _ask(connection, connection.dialect.do_ping)  # its answer has the status
    return not told.server_status & _IN_TRANSACTION


def may_have_written(connection: Connection) -> bool:
    """As `Taking.may_have_written`."""
    told = driver(connection)
    if is_silent(connection):
        return not connection.execute(_IS_READ_ONLY).scalar_one()
    is_begun_as_text = told.server_status & _IN_TRANSACTION
    if told.get_autocommit() and not is_begun_as_text:
        return False
    if _is_unread(told._result):  # noqa: SLF001
        return True  # nobody can be asked
    # PyMySQL's status may be older than an answer with rows, and an error after that hides it.
    has_not_begun = is_ended(connection) and _ask(connection, connection.dialect.do_ping)
    if has_not_begun and is_ended(connection):
        return False
    # The status does not say whether a transaction wrote, but a replica is read-only.
    return not connection.execute(_IS_READ_ONLY).scalar_one()


class _NamingState(State):
    """The session's database can be asked for: USE and the driver's own call change it."""

    def database(self) -> str | None:
        return _ask(self._connection, _database)


class SilentState(_NamingState):
    """Nothing is known. An end is found by the savepoint that is set before a statement that may be the end,
    and a transaction that an error has undone by its row, which is gone."""

    tells_end = False

    def is_undone_by(self, error: DBAPIError) -> bool:
        return codes.undoes(error)


class AskedState(_NamingState):
    """An error of the server comes without a status. DDL commits before it can fail, and a procedure may
    commit and then fail."""

    def is_reading(self) -> bool:
        return _is_unread(driver(self._connection)._result)  # noqa: SLF001 - nothing public says

    def ask_after_error(self) -> None:
        if self._is_lost():
            return
        # Both drivers forget the last result before they read the next one, which an error is not.
        result = driver(self._connection)._result  # noqa: SLF001 - nothing public says
        if (result is not None and not self._is_broken_off(result)) or self.is_ended():
            return
        _ask(self._connection, self._connection.dialect.do_ping)

    def was_undone(self) -> bool:
        if self._is_lost() or self.is_reading():
            return False
        # The server keeps the errors of a statement until the next one that uses a table.
        errors = _ask(self._connection, _errors) or ()
        return any(number in MySQLCodes.undoing for _, number, _ in errors)

    def _is_broken_off(self, result: Any) -> bool:
        """Whether PyMySQL met an error, as of a deadlock, while it read the rows of a stream."""
        if self._connection.dialect.is_async:
            return False
        return result.connection is not None and not result.unbuffered_active

    def _is_lost(self) -> bool:
        return self._connection.closed or self._connection.invalidated


def _is_unread(result: Any) -> bool:
    """Whether rows of an answer are still to be read, or further answers, as of a procedure."""
    return result is not None and bool(result.unbuffered_active or result.has_next)


def _hides_status(result: Any) -> bool:
    """Whether PyMySQL has dropped the status in a statement's answer, as it does if that has rows. Not while
    they are read: nothing else can be sent then."""
    return result is not None and result.server_status is None and not _is_unread(result)


def _ask(connection: Connection, ask: Callable[[Any], T]) -> T | None:
    """What the server answers; None if it does not. No event of SQLAlchemy's hears of it."""
    try:
        return ask(pooled(connection).dbapi_connection)
    except connection.dialect.loaded_dbapi.Error:
        return None
    except BaseException as error:
        connection.invalidate(error)  # interrupted: the answer is still to come
        raise


def _errors(driver: Any) -> Iterable[tuple[str, int, str]]:
    errors: Iterable[tuple[str, int, str]] = _fetched(driver, "SHOW ERRORS")
    return errors


def _database(driver: Any) -> str | None:
    ((name,),) = _fetched(driver, "SELECT DATABASE()")
    return None if name is None else str(name)


def _fetched(driver: Any, statement: str) -> Any:
    cursor = driver.cursor()
    try:
        cursor.execute(statement)
        return cursor.fetchall()
    finally:
        cursor.close()
