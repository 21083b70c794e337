"""Rows that are not written yet: nothing commits their transaction without them.

A call on an asynchronous handle writes its row when it is awaited: before that there is no greenlet to write
from. A Session's messages are written last. The COMMIT by SQLAlchemy writes what can be written by then, and
refuses the rest; a COMMIT as text is refused. If something else has ended the transaction, the driver knows
from the server's last answer, or asks after an error: the next statement raises, or the COMMIT, or the close.
"""

from collections.abc import Callable
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.databases.taking import State, pooled
from inbox_outbox_base.errors.inbox import UnsupportedDatabase

from . import failed_commit, layers
from .owed import Debts, Owed, ended, named, prepare_all, refuse
from .savepoints import number
from .session import connections_of
from .texts import commits, may_end

_OWED = "_inbox_owed"
"""The attribute of a session's outermost transaction that has its list."""
_listening: list[bool] = []
"""Not empty once a session may have such calls."""


_debts: WeakKeyDictionary[Connection, Debts] = WeakKeyDictionary()


def owe(connection: Connection, owed: Owed) -> Callable[[], None]:
    """Let nothing commit the connection's transaction without this, until the function that this returns is
    called, or until the call is rolled back."""
    if not connection.closed:
        failed_commit.watch(connection)
        debts = _debts.get(connection)
        if debts is None:
            debts = _debts[connection] = Debts(_state(connection))
            layers.put_on(connection, _guarded)
        debts.calls.append(owed)
        debts.note_begun(connection)
    return lambda: _pay(connection, owed)


def owe_in(session: Session, owed: Owed) -> Callable[[], None]:
    """The same for a session. Its transaction begins, as with `Session.add`, but no connection is used."""
    if not _listening:
        event.listen(Session, "before_commit", _settle_session)
        event.listen(Session, "after_begin", _begun)
        _listening.append(True)
    root = session._autobegin_t()  # noqa: SLF001 - the public way ignores autobegin=False
    root = session.get_transaction() or root
    owed.transaction = session.get_nested_transaction() or root
    calls: list[Owed] = getattr(root, _OWED, [])
    calls.append(owed)
    setattr(root, _OWED, calls)
    for connection in connections_of(root):
        owe(connection, owed)

    def pay() -> None:
        if owed in calls:
            calls.remove(owed)
        for connection in connections_of(root):
            _pay(connection, owed)

    return pay


def prepare(session: Session) -> None:
    """Prepare what can be written."""
    prepare_all(_owed_in(session))


def _owed_in(session: Session) -> list[Owed]:
    calls: list[Owed] = getattr(session.get_transaction(), _OWED, [])
    return [each for each in calls if each.is_due()]


def _begun(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    """A session uses a connection for the first time in this transaction."""
    if transaction.parent is None:
        for owed in getattr(transaction, _OWED, []):
            owe(connection, owed)


def _settle_session(session: Session) -> None:
    """A session may have no connection yet; and a savepoint that is committed is no longer active."""
    calls = _owed_in(session)
    refuse([each for each in calls if each.prepare is None])
    prepare_all(calls)


def _settle(connection: Connection) -> None:
    """Called right before a COMMIT."""
    if (debts := _debts.get(connection)) is None:
        return
    calls = debts.due()
    if calls and debts.is_undone:
        raise calls[0].ended(
            f"the server rolled back the transaction because of an error, and with it {named(calls)}"
        )
    if calls and debts.is_another(connection):
        raise ended(calls, "its COMMIT")
    refuse([each for each in calls if each.prepare is None and each.write is None])
    prepare_all(calls)
    debts.calls = debts.due()
    for write, calls_of_one in groupby(list(debts.calls), attrgetter("write")):
        those = list(calls_of_one)
        write(connection, [row for each in those for row in each.rows])
        del debts.calls[: len(those)]  # not before: without them the next COMMIT fails, too
    _keep(connection, [])


def _pay(connection: Connection, owed: Owed) -> None:
    if (debts := _debts.get(connection)) is not None and owed in debts.calls:
        _keep(connection, [each for each in debts.calls if each is not owed])


def _keep(connection: Connection, rest: list[Owed]) -> None:
    if (debts := _debts.get(connection)) is None:
        return
    debts.calls = rest
    if not rest and not debts.lost:
        del _debts[connection]
        layers.take_off(connection, _guarded)


def _state(connection: Connection) -> State | None:
    try:
        return None if connection.invalidated else database_of(connection).state(connection)
    except UnsupportedDatabase:  # another database of the same session
        return None


@cache
def _guarded(kind: Any) -> Any:  # noqa: C901 - methods
    # Not super(): the layer may be taken off before the method of the class below is called.
    class Guarded(kind):  # type: ignore[misc]
        """A Connection while something is owed. A listener to events would not hear of a commit without a
        transaction."""

        layer, under = staticmethod(_guarded), kind

        @property
        def connection(self) -> Any:
            if (debts := _debts.get(self)) is not None and debts.may_send(self):
                debts.set_mark(self)
            return kind.connection.fget(self)

        @property
        def info(self) -> Any:
            return pooled(self).info

        def commit(self) -> None:
            _settle(self)  # the transaction, if there is one, may go on
            kind.commit(self)

        def rollback(self) -> None:
            kind.rollback(self)
            _keep(self, [])

        def close(self) -> None:
            debts = _debts[self]
            owed = [each for each in debts.calls if each.transaction is None and each.write is None]
            try:
                kind.close(self)  # rolls back
            finally:
                lost, debts.lost = debts.lost, []
                _keep(self, [])
            if lost:
                raise ended(lost, "the connection was closed")
            refuse(owed)

        def execute(self, statement: Any, *given: Any, **options: Any) -> Any:
            return _run(self, kind.execute, statement, *given, **options)

        def scalar(self, statement: Any, *given: Any, **options: Any) -> Any:
            return _run(self, kind.scalar, statement, *given, **options)

        def exec_driver_sql(self, statement: str, *given: Any, **options: Any) -> Any:
            return _run(self, kind.exec_driver_sql, statement, *given, **options)

        def _commit_impl(self) -> None:
            _settle(self)
            kind._commit_impl(self)  # noqa: SLF001

        def _prepare_twophase_impl(self, xid: Any) -> None:
            _settle(self)
            kind._prepare_twophase_impl(self, xid)  # noqa: SLF001

        def _commit_twophase_impl(self, xid: Any, is_prepared: bool) -> None:
            _settle(self)
            kind._commit_twophase_impl(self, xid, is_prepared)  # noqa: SLF001

        def _rollback_impl(self) -> None:
            try:
                _note_lost(self)
            finally:
                kind._rollback_impl(self)  # noqa: SLF001
                _keep(self, [])

        def _rollback_twophase_impl(self, xid: Any, is_prepared: bool) -> None:
            kind._rollback_twophase_impl(self, xid, is_prepared)  # noqa: SLF001
            _keep(self, [])

        def _rollback_to_savepoint_impl(self, name: str) -> None:
            kind._rollback_to_savepoint_impl(self, name)  # noqa: SLF001
            if (debts := _debts.get(self)) is not None:
                debts.was_aborted = False
                _keep(self, [each for each in debts.calls if each.savepoint < number(name)])

        def _release_savepoint_impl(self, name: str) -> None:
            kind._release_savepoint_impl(self, name)  # noqa: SLF001
            if (debts := _debts.get(self)) is not None and debts.is_ended(self):
                debts.is_open = False  # on SQLite it may have been the driver's outermost: see docs/outbox.md

    return Guarded


def _run(connection: Connection, run: Callable[..., Any], statement: Any, *given: Any, **options: Any) -> Any:
    if (debts := _debts.get(connection)) is None:
        return run(connection, statement, *given, **options)
    debts.refuse_ended(connection, "this statement")
    if commits(connection, statement):
        refuse(debts.due())
    if may_end(statement):
        debts.set_mark(connection)
    try:
        result = run(connection, statement, *given, **options)
    except DBAPIError as error:
        debts.note_error(connection, statement, error)
        raise
    debts.note_begun(connection)
    debts.note_savepoint(connection, statement)
    return result


def _note_lost(connection: Connection) -> None:
    """Called before a ROLLBACK."""
    if (debts := _debts.get(connection)) is not None:
        try:
            if debts.is_lost(connection):
                debts.lost = debts.due()
        except DBAPIError:
            return  # it is lost now, as the ROLLBACK will find
        finally:
            debts.forget()
