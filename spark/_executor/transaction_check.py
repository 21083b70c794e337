"""Proves that user code has not ended or aborted a transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from inbox import is_transient
from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.errors.inbox import TransactionAborted, TransactionEnded

_ENDED = (
    "results ended the partition's transaction, or swallowed an error that ended it: what was written is "
    "incomplete"
)


@contextmanager
def intact(connection: Connection) -> Iterator[None]:
    """Run the body in a savepoint, which exists as long as the transaction: releasing it is the proof.

    Raises:
        TransactionEnded: the body has committed or rolled back, in any way.
        TransactionAborted: it has swallowed an error that turns COMMIT into a ROLLBACK.
    """
    begun = connection.get_transaction()
    savepoint = connection.begin_nested()
    yield
    if connection.get_transaction() is not begun or not savepoint.is_active:
        raise TransactionEnded(_ENDED)
    check_open(connection)
    try:
        savepoint.commit()
    except DBAPIError as error:
        if is_transient(error):
            raise
        raise TransactionEnded(_ENDED) from error


def check_open(connection: Connection) -> None:
    """Raise the errors of `intact` unless the transaction accepts more statements."""
    if connection.closed or not connection.in_transaction():
        raise TransactionEnded(_ENDED)
    database = database_of(connection)
    if not database.is_ended(connection) and database.is_aborted(connection):
        raise TransactionAborted("results swallowed an error that had aborted the transaction")
