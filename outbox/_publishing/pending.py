"""Messages published on an AsyncSession wait at its transaction until code that may use the database runs.

A publish that nobody awaits has only its call, which keeps the message: the COMMIT writes it all the same.
"""

from collections.abc import Callable

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from inbox_outbox_base.errors.outbox import NotAwaited, TransactionEnded, UnusableConnection
from inbox_outbox_base.transactions import unwritten
from inbox_outbox_base.transactions.owed import Owed
from inbox_outbox_base.transactions.savepoints import innermost, innermost_of, innermost_transaction
from inbox_outbox_base.words.outgoing import Draft

from .staging import named


class Pending:
    """The messages of one call. The session's transaction begins, as with `Session.add`, but no connection is
    used. `stage` is the function with which the outbox stages them on the session's connection."""

    def __init__(
        self, session: Session, drafts: list[Draft], bind: Engine, stage: Callable[["Pending"], None]
    ) -> None:
        self.session = session
        self.drafts = drafts
        self.bind = bind
        self._stage = stage
        self._is_staged = False
        self._owed = Owed(named(drafts), NotAwaited, TransactionEnded, prepare=self._prepare)
        self._settle = unwritten.owe_in(session, self._owed)

    def savepoint_on(self, connection: Connection) -> int:
        """The number of the innermost savepoint at the call."""
        transaction = self._owed.transaction
        if transaction is None or transaction is innermost_transaction(self.session):
            return innermost(connection)
        return innermost_of(transaction, connection)

    def awaited(self, session: Session) -> None:
        """Stage the messages, and those of the calls before this one.

        Raises:
            UnusableConnection: their transaction or savepoint has been rolled back meanwhile.
        """
        try:
            unwritten.prepare(session)
        finally:
            self._settle()  # if it was refused, the caller is told
        if not self._is_staged:
            raise UnusableConnection("the transaction was rolled back before publish was awaited")

    def _prepare(self) -> None:
        if self._is_staged:
            return
        self._is_staged = True  # first: a listener to the session's events may publish meanwhile
        try:
            self._stage(self)
        except BaseException:
            self._is_staged = False  # so that the COMMIT fails again
            raise
        self._settle()
