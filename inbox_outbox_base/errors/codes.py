"""What a driver's error means, for example whether it is transient. SQLSTATEs and error numbers decide, never
message texts. Each database's numbers are in its folder."""

from collections.abc import Callable
from functools import cache
from traceback import walk_tb

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from inbox_outbox_base.dialect import Code, Codes
from inbox_outbox_base.supported import FOLDERS, part

from . import groups
from .inbox import TransientError


@cache
def databases() -> tuple[Codes, ...]:
    """The codes of all databases, imported on first use."""
    return tuple(each() for each in dict.fromkeys(part("codes", dialect) for dialect in FOLDERS))


def is_drivers(error: BaseException) -> bool:
    """Whether a driver has raised it, and SQLAlchemy has not wrapped it: a body may use the driver itself or
    Django's ORM, and asyncpg's errors while rows are streamed are not wrapped."""
    return _is_djangos(error) or any(is_of_driver(kind.__module__) for kind in type(error).__mro__)


def _is_djangos(error: BaseException) -> bool:
    """Whether Django has wrapped a driver's error, which is the cause."""
    return error.__cause__ is not None and type(error).__module__ == "django.db.utils"


def is_of_driver(module: str) -> bool:
    """Whether this module is of a driver, or adapts its errors."""
    names = (module, module.partition(".")[0])
    return any(name in database.drivers for database in databases() for name in names)


def _said(error: BaseException) -> BaseException | None:
    """The driver's error: the one that SQLAlchemy or Django has wrapped, or this one itself."""
    if isinstance(error, DBAPIError):
        return error.orig
    return (error.__cause__ if _is_djangos(error) else error) if is_drivers(error) else None


def code_of(error: BaseException) -> Code | None:
    """The SQLSTATE (PostgreSQL), error number (MySQL, MariaDB) or result code (SQLite), if there is one."""
    said = _said(error)
    found = (None if said is None else database.code(said) for database in databases())
    return next((code for code in found if code is not None), None)


def _means(error: BaseException, question: Callable[[Codes, Code], bool]) -> bool:
    """The answer for the database that raised the error; False if the error has no code."""
    said = _said(error)
    for database in databases() if said is not None else ():
        code = database.code(said)
        if code is not None:
            return question(database, code)
    return False


def is_transient(error: BaseException) -> bool:
    """Whether the same work may succeed if it is retried in a new transaction.

    True for deadlocks, serialization failures, lock timeouts, lost or refused connections, time limits of
    statements, a full pool or server, a read-only server, and `TransientError`; for an exception group if it
    is true for each exception in it. False for everything else.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_transient, groups.leaves(error)))
    if isinstance(error, PoolTimeoutError) or is_passing(error) or is_overdue(error):
        return True
    return _means(error, lambda database, code: code in database.limits or code in database.transient)


def is_passing(error: BaseException) -> bool:
    """Whether others caused the error, so that no work is to blame for it.

    True for deadlocks, serialization failures, lock timeouts, lost or refused connections and
    `TransientError`, a subset of the transient errors. The other transient errors may be due to the work, as
    a time limit is to a slow query or transaction.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_passing, groups.leaves(error)))
    if isinstance(error, TransientError) or _means(error, lambda database, code: database.is_passing(code)):
        return True
    return is_unreachable(error) or (breaks_connection(error) and not is_overdue(error))


def is_unreachable(error: BaseException) -> bool:
    """Whether it is an error of the system that came up while a connection to a database was opened: asyncpg
    raises them as they are. Its TimeoutError for a statement is none."""
    return isinstance(error, OSError) and any(
        module == "asyncpg.connect_utils" or module.startswith("sqlalchemy.pool")
        for module in modules_of(error)
    )


def modules_of(error: BaseException) -> set[str]:
    """The modules whose code the error has come through."""
    return {str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)}


def is_limited(error: BaseException) -> bool:
    """Whether the statement was cancelled, or exceeded the server's time limit."""
    return _means(error, lambda database, code: code in database.limits)


def is_overdue(error: BaseException) -> bool:
    """Whether the server has ended the transaction because it took too long, and the session with it."""
    return _means(error, lambda database, code: code in database.overdue)


def undoes(error: BaseException) -> bool:
    """Whether the server has rolled back the whole transaction although the session goes on."""
    return _means(error, lambda database, code: code in database.undoing)


def may_undo(error: BaseException) -> bool:
    """Whether the server has rolled back the whole transaction, or may have, as after a lock timeout if it is
    set so, or if nobody knows what it said."""
    if code_of(error) is None:
        return True
    return _means(error, lambda database, code: code in database.undoing or code in database.lock_timeouts)


def is_aftermath(error: BaseException) -> bool:
    """Whether this statement was refused only because an earlier one of the transaction had failed."""
    return _means(error, lambda database, code: code in database.aborted)


def is_read_only(error: BaseException) -> bool:
    """Whether the server is not, or no longer, a primary, so that its connections are useless."""
    return _means(error, lambda database, code: code in database.read_only)


def breaks_connection(error: BaseException) -> bool:
    """Whether this error broke the connection, so that a COMMIT has an unknown outcome."""
    if not (isinstance(error, DBAPIError) or is_drivers(error)):
        return False
    invalidated = isinstance(error, DBAPIError) and error.connection_invalidated
    # Without a code from a server, the driver lost the connection, never had one, or did not understand what
    # it read, as after an answer that was cut off. Then it has closed the connection itself.
    if code_of(error) is None:
        if any(kind.__module__ == "sqlite3" for kind in type(_said(error)).__mro__):
            return invalidated  # there is no connection: it could not read a text
        # The classes of PEP 249, and what asyncpg has for the second.
        kinds = {kind.__name__ for kind in type(error).__mro__}
        return invalidated or not kinds.isdisjoint(
            {"OperationalError", "InternalError", "InternalClientError"}
        )
    return _means(error, lambda database, code: database.breaks_connection(code, invalidated=invalidated))


def ends_wait(error: DBAPIError) -> bool:
    """Whether a bounded wait for a lock ran out, or met the server's limit first, without other
    consequences."""
    return _means(error, lambda database, code: database.ends_wait(code))


def is_table_missing(error: DBAPIError, is_there: Callable[[], bool]) -> bool:
    """Whether a table or its schema does not exist; `is_there` looks if the code does not tell."""
    return _means(error, lambda database, code: database.misses_table(code, is_there))


def is_denied(error: DBAPIError) -> bool:
    """Whether the role lacks the right to do this to a table."""
    return _means(error, lambda database, code: code in database.denied)


def refuses_row(error: DBAPIError) -> bool:
    """Whether it is the content of a row that the server refuses."""
    is_usual = isinstance(error, IntegrityError | DataError)
    return is_usual or _means(error, lambda database, code: database.is_about_row(code))


def is_operational(error: BaseException) -> bool:
    """Whether the error is not necessarily under the programmer's control, as PEP 249 defines it."""
    if isinstance(error, OperationalError | InternalError):
        return True
    # asyncpg has no class for them.
    is_unclassified = type(error) is DBAPIError
    return is_unclassified and _means(error, lambda database, code: database.is_operational(code))


def is_refusal(error: DBAPIError) -> bool:
    """Whether the server refuses the role, its password or the database."""
    return _means(error, lambda database, code: database.is_refusal(code))


def described(cause: object) -> str:
    """What a driver's error says, without the values of rows that the server's texts quote."""
    for database in databases():
        if database.code(cause) is not None:
            return database.described(cause)
    # Without a code it is the driver's own, about the connection or about a value.
    is_of_connection = type(cause).__name__ in ("OperationalError", "InterfaceError", "ConnectionError")
    return f"{type(cause).__name__}: {cause}" if is_of_connection else type(cause).__name__


def refusal(error: DBAPIError) -> Code | None:
    """The code with which a connection was permanently refused; None if it was not, or if nobody can tell.
    This may have to connect again to find out."""
    found = (database.refusal(error.orig) for database in databases())
    return next((code for code in found if code is not None), None)
