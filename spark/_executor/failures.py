"""What a task says about its errors. Spark shows them in its logs, its UI and its event log, where the values
of rows must not appear."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from sqlalchemy.exc import DBAPIError, StatementError

from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.codes import described
from inbox_outbox_base.errors.inbox import InvalidKey
from inbox_outbox_base.errors.outbox import InvalidMessage
from inbox_outbox_base.errors.spark import InvalidRow, SparkWriterError

_QUOTING = (InvalidKey, InvalidMessage, pa.ArrowException, UnicodeError)
"""Errors whose texts quote values."""


@contextmanager
def without_values() -> Iterator[None]:
    """Raise the body's errors without the values of rows, and without the errors that caused them. Of a
    database's error the code and the names of constraint, table and column are left. What a function of the
    user raises itself is left as it is."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - a panic of pgpq is no Exception
        raise _told(error).with_traceback(error.__traceback__) from None


def guarded(function: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
    """The results of a function that runs on an executor, with the errors of `without_values`."""
    with without_values():
        yield from function(*arguments)


def _drivers() -> tuple[type[BaseException], ...]:
    """The drivers' own errors, which a function may cause that bypasses SQLAlchemy."""
    loaded = (sys.modules.get(each) for each in ("psycopg", "pymysql", "sqlite3"))
    return tuple(each.Error for each in loaded if each is not None)


def _told(error: BaseException) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        return error.derive([_told(each) for each in error.exceptions])
    if isinstance(error, DBAPIError) and codes.refuses_row(error):
        return InvalidRow(f"the database refused a row: {described(error.orig)}")
    if isinstance(error, DBAPIError):
        return SparkWriterError(f"the database: {described(error.orig)}")
    if isinstance(error, StatementError):
        return SparkWriterError(f"a statement's value: {type(error.orig).__name__}")
    if isinstance(error, _drivers()):
        return SparkWriterError(f"the database: {described(error)}")
    if isinstance(error, _QUOTING) or _is_panic(error):
        return InvalidRow(f"{type(error).__name__}: its text is left out, since it may quote a row")
    return error


def is_of_a_row(error: BaseException) -> bool:
    """Whether the values of a row are to blame for an error of `Filling`: it cannot be converted or sent, or
    the database refuses it."""
    if isinstance(error, DBAPIError):
        return codes.refuses_row(error)
    if isinstance(error, MemoryError):  # one of Arrow's is both
        return False
    return _is_panic(error) or isinstance(error, (InvalidRow, StatementError, *_QUOTING))


def _is_panic(error: BaseException) -> bool:
    """Whether it is of pgpq; it is no Exception."""
    return type(error).__module__ == "pyo3_runtime"


def told(error: BaseException) -> str:
    """The text of an error, without the values of rows."""
    return str(_told(error))


def named(column: str, convert: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    """The converted values of a column.

    Raises:
        InvalidRow: Arrow cannot convert one of them.
    """
    try:
        return [convert(each) for each in values]
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise InvalidRow(f"column {column!r}: a value cannot be converted ({type(error).__name__})") from None
