"""Messages published on an AsyncSession wait at its transaction until code that may use the database runs.

A publish that nobody awaits has only its call, which keeps the message: the COMMIT writes it all the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction

from inbox_outbox_base.errors.outbox import UnusableConnection
from inbox_outbox_base.transactions.savepoints import innermost, innermost_of, innermost_transaction, is_open
from inbox_outbox_base.words.outgoing import Draft

_WAITING = "_outbox_waiting"
"""The attribute of a session's outermost transaction that has its list; it ends with the transaction."""

listening: list[bool] = []
"""Not empty once a session may have such messages."""


@dataclass(slots=True, eq=False)
class Pending:
    """The messages of one call."""

    drafts: list[Draft]
    bind: Engine
    stage: Callable[[Session, "Pending"], None]
    """The function with which its outbox stages them on the session's connection."""
    transaction: SessionTransaction
    """The innermost one at the call."""
    is_staged: bool = False

    def savepoint_on(self, session: Session, connection: Connection) -> int:
        """The number of the innermost savepoint at the call."""
        if self.transaction is innermost_transaction(session):
            return innermost(connection)
        return innermost_of(self.transaction, connection)


def wait(
    session: Session, drafts: list[Draft], bind: Engine, stage: Callable[[Session, Pending], None]
) -> Pending:
    """Keep the messages; begin the session's transaction, as `Session.add` does, but use no connection."""
    if not listening:
        event.listen(Session, "before_commit", stage_all)
        listening.append(True)
    transaction = session._autobegin_t()  # noqa: SLF001 - the public way ignores autobegin=False
    pending = Pending(drafts, bind, stage, innermost_transaction(session) or transaction)
    root = session.get_transaction() or transaction
    waiting: list[Pending] | None = getattr(root, _WAITING, None)
    if waiting is None:
        setattr(root, _WAITING, waiting := [])
    waiting.append(pending)
    return pending


def stage_all(session: Session) -> None:
    """Stage what waits, in the order of the calls, but nothing of a savepoint that was rolled back."""
    waiting = _waiting(session)
    while waiting:
        pending = waiting.pop(0)  # first: a listener to the session's events may publish meanwhile
        try:
            if is_open(pending.transaction, session):
                pending.stage(session, pending)
                pending.is_staged = True
        except BaseException:
            waiting.insert(0, pending)  # so that the COMMIT fails again
            raise


def awaited(session: Session, pending: Pending) -> None:
    """Stage the messages of a call that is awaited, and of those before it.

    Raises:
        UnusableConnection: their transaction or savepoint has been rolled back meanwhile.
    """
    try:
        stage_all(session)
    finally:
        if pending in (waiting := _waiting(session)):  # it was refused, and the caller is told
            waiting.remove(pending)
    if not pending.is_staged:
        raise UnusableConnection("the transaction was rolled back before publish was awaited")


def _waiting(session: Session) -> list[Pending]:
    found: list[Pending] = getattr(session.get_transaction(), _WAITING, [])
    return found
