"""What is owed on a connection: calls whose rows are not written yet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import SessionTransaction
from sqlalchemy.orm.session import SessionTransactionState

from inbox_outbox_base.databases.taking import State, pooled
from inbox_outbox_base.errors.inbox import InboxError, TransactionEnded

from .savepoints import can_send, is_unknown, mark_of
from .texts import ends_savepoint, may_end

_OPEN = (SessionTransactionState.ACTIVE, SessionTransactionState.PREPARED)


@dataclass(slots=True, eq=False)
class Owed:
    """A call whose rows are not written."""

    what: str
    error: type[InboxError]
    """Raised by a COMMIT that cannot write it."""
    ended: type[TransactionEnded] = TransactionEnded
    """Raised if something else has ended its transaction."""
    why: str = "not awaited, so not written"
    savepoint: int = 0
    """The number of the connection's innermost savepoint at the call."""
    transaction: SessionTransaction | None = None
    """The session's innermost transaction at the call; None if the call is on a connection."""
    prepare: Callable[[], object] | None = None
    """Replaces it, right before the COMMIT, by a call that can be written."""
    write: Callable[[Connection, list[Any]], object] | None = None
    """Writes these rows right before the COMMIT, and those of the calls beside it."""
    rows: Sequence[Any] = ()

    def is_due(self) -> bool:
        """Whether its transaction may still be committed."""
        # The public `is_active` is False as soon as a Session's commit has flushed.
        return self.transaction is None or self.transaction._state in _OPEN  # noqa: SLF001


@dataclass(slots=True)
class Debts:
    """What is owed on a connection, and what is known about its transaction."""

    state: State | None
    calls: list[Owed] = field(default_factory=list)
    lost: list[Owed] = field(default_factory=list)
    """Calls of a transaction that something else ended."""
    is_open: bool = False
    """Whether the server was once seen in this transaction: it begins with its first statement."""
    is_undone: bool = False
    """Whether the server has rolled back the transaction because of an error."""
    has_lost_savepoint: bool = False
    """Whether a savepoint of the session's was gone when it was to end."""
    was_aborted: bool = False
    """Whether something that may end the transaction came while an error had aborted it."""

    def note_begun(self, connection: Connection) -> None:
        """Sends nothing, so it may be called outside a greenlet."""
        state = self._state(connection)
        self.is_open = self.is_open or (state is not None and not state.is_ended())

    def is_ended(self, connection: Connection) -> bool:
        """Whether something else has ended it. The server is asked if an error may have hidden that."""
        self.note_begun(connection)
        if not self.is_open or (state := self._state(connection)) is None:
            return False
        if not self.is_undone:
            state.ask_after_error()
        if not state.is_ended():
            return False
        self.is_undone = self.is_undone or state.was_undone()
        return True

    def _state(self, connection: Connection) -> State | None:
        """None if nobody can tell."""
        if connection.closed or connection.invalidated:
            return None
        # The database does not find the driver's connection of one that is detached.
        return None if pooled(connection).is_detached else self.state

    def due(self) -> list[Owed]:
        return [each for each in self.calls if each.is_due()]

    def is_another(self, connection: Connection, *, undo: bool = False) -> bool:
        """Called right before the COMMIT, or the ROLLBACK with `undo`: whether something else has ended the
        transaction. Another one may be open."""
        if self.is_ended(connection) or self.has_lost_savepoint:
            return True
        if not self.is_open or (state := self._state(connection)) is None:
            return False
        if self.was_aborted and not state.is_aborted():
            return True
        return mark_of(connection).is_gone(connection, undo=undo)

    def is_lost(self, connection: Connection) -> bool:
        """Called before a ROLLBACK: whether something else than an error has ended the transaction."""
        return not self.is_undone and self.is_another(connection, undo=True) and not self.is_undone

    def may_send(self, connection: Connection) -> bool:
        """Whether a statement can be sent now, where the application has not sent one itself: not outside a
        greenlet, nor if the driver would drop the rest of a result."""
        state = self._state(connection)
        return can_send(connection) and state is not None and not state.is_reading()

    def set_mark(self, connection: Connection) -> None:
        """Called before something that may end the transaction and begin another one."""
        if not self.is_open or self.is_ended(connection) or (state := self._state(connection)) is None:
            return
        if state.is_aborted():
            self.was_aborted = True
        elif (mark := mark_of(connection)).name is None:
            mark.set(connection)
            mark.may_be_inside = True

    def note_savepoint(self, connection: Connection, statement: Any) -> None:
        """Called after each statement: it may have ended a savepoint that is older than the mark, and so the
        mark, or the aborted state."""
        if ends_savepoint(connection, statement):
            self.was_aborted = False
            if (mark := mark_of(connection)).may_be_inside:
                mark.name = None

    def forget(self) -> None:
        """Called once it is known how the transaction ends."""
        self.is_open = self.is_undone = self.was_aborted = self.has_lost_savepoint = False

    def refuse_ended(self, connection: Connection, when: str) -> None:
        if self.is_ended(connection) and not self.is_undone and (due := self.due()):
            raise ended(due, when)

    def note_error(self, connection: Connection, statement: Any, error: DBAPIError) -> None:
        """Other statements than those that cannot end the transaction may have done so before they failed."""
        if is_unknown(statement, error) and not self.is_undone:
            self.has_lost_savepoint = True
        elif (state := self._state(connection)) is None:
            return
        elif state.is_undone_by(error) or (not may_end(statement) and self.is_ended(connection)):
            self.is_undone = True


def prepare_all(calls: list[Owed]) -> None:
    for each in calls:
        if each.prepare is not None:
            each.prepare()


def ended(owed: list[Owed], before: str) -> TransactionEnded:
    return owed[0].ended(
        f"the transaction had ended before {before}, by SQL, DDL or the driver: what it wrote may be "
        f"committed, but not {named(owed)}"
    )


def refuse(owed: list[Owed]) -> None:
    if owed:
        raise owed[0].error(f"{owed[0].why}: {named(owed)}; nothing was committed")


def named(owed: list[Owed]) -> str:
    return ", ".join(dict.fromkeys(each.what for each in owed))
