"""Proves that user code has not ended or aborted a transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from inbox import is_transient
from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.errors.inbox import TransactionAborted, TransactionEnded


@contextmanager
def intact(connection: Connection, option: str = "results") -> Iterator[None]:
    """Run the body in a savepoint, which exists as long as the transaction: releasing it is the proof.
    `option` has given the body.

    Raises:
        TransactionEnded: the body has committed or rolled back, in any way.
        TransactionAborted: it has swallowed an error that turns COMMIT into a ROLLBACK.
    """
    begun = connection.get_transaction()
    savepoint = connection.begin_nested()
    yield
    if connection.get_transaction() is not begun or not savepoint.is_active:
        raise _ended(option)
    check_open(connection, option)
    try:
        savepoint.commit()
    except DBAPIError as error:
        if is_transient(error):
            raise
        raise _ended(option) from error


def check_open(connection: Connection, option: str = "results") -> None:
    """Raise the errors of `intact` unless the transaction accepts more statements."""
    if connection.closed or not connection.in_transaction():
        raise _ended(option)
    database = database_of(connection)
    if not database.is_ended(connection) and database.is_aborted(connection):
        raise TransactionAborted(f"{option} swallowed an error that had aborted the transaction")


def _ended(option: str) -> TransactionEnded:
    return TransactionEnded(
        f"{option} ended the transaction, or swallowed an error that ended it: what was written is incomplete"
    )
