"""A call on an asynchronous handle that nobody awaits keeps the handle from committing.

The await writes the row: before it there is no greenlet to write from. Without a refusal, the COMMIT would
keep the caller's writes without ours.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, TextClause, event
from sqlalchemy.orm import Session, SessionTransaction

from inbox_outbox_base.errors.inbox import NotAwaited

from . import failed_commit, layers
from .savepoints import innermost, innermost_transaction, is_open, number

_COMMIT = re.compile(
    r"(?:^|;)(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:COMMIT|END|PREPARE\s+TRANSACTION)\b", re.IGNORECASE | re.DOTALL
)
_OWED = "_inbox_owed"
"""The attribute of a session's outermost transaction that has its list."""
_listening: list[bool] = []
"""Not empty once a session may have such calls."""


@dataclass(slots=True, eq=False)
class Owed:
    """A call whose await is missing."""

    what: str
    error: type[NotAwaited]
    savepoint: int = 0
    """The number of the connection's innermost savepoint at the call."""
    transaction: SessionTransaction | None = None
    """The session's innermost transaction at the call."""


_owed: WeakKeyDictionary[Connection, list[Owed]] = WeakKeyDictionary()


def owe(connection: Connection, what: str, error: type[NotAwaited]) -> Callable[[], None]:
    """Let the connection commit nothing until the function that this returns is called, or until the call is
    rolled back."""
    owed = Owed(what, error, savepoint=innermost(connection))
    if not connection.closed:
        failed_commit.watch(connection)
        if connection not in _owed:
            layers.put_on(connection, _guarded)
        _owed.setdefault(connection, []).append(owed)
    return lambda: _keep(connection, [each for each in _owed.get(connection, []) if each is not owed])


def owe_in(session: Session, what: str, error: type[NotAwaited]) -> Callable[[], None]:
    """The same for a session. Its transaction begins, as with `Session.add`, but no connection is used."""
    if not _listening:
        event.listen(Session, "before_commit", _check_session)
        _listening.append(True)
    root = session._autobegin_t()  # noqa: SLF001 - the public way ignores autobegin=False
    root = session.get_transaction() or root
    calls: list[Owed] = getattr(root, _OWED, [])
    calls.append(owed := Owed(what, error, transaction=innermost_transaction(session)))
    setattr(root, _OWED, calls)
    return lambda: calls.remove(owed)


def _check_session(session: Session) -> None:
    calls: list[Owed] = getattr(session.get_transaction(), _OWED, [])
    _refuse([each for each in calls if is_open(each.transaction, session)])


def _keep(connection: Connection, rest: list[Owed]) -> None:
    if rest:
        _owed[connection] = rest
    elif _owed.pop(connection, None) is not None:
        layers.take_off(connection, _guarded)


@cache
def _guarded(kind: Any) -> Any:  # noqa: C901 - methods
    class Guarded(kind):  # type: ignore[misc]
        """A Connection while an await is missing. A listener to events would not hear of a commit without a
        transaction."""

        layer, under = staticmethod(_guarded), kind

        def commit(self) -> None:
            _check(self)  # the transaction, if there is one, may go on
            super().commit()

        def rollback(self) -> None:
            super().rollback()
            _keep(self, [])

        def close(self) -> None:
            owed = list(_owed.get(self, []))  # closing rolls back
            try:
                super().close()
            finally:
                _keep(self, [])
            _refuse(owed)

        def execute(self, statement: Any, *given: Any, **options: Any) -> Any:
            if isinstance(statement, TextClause):
                _check_text(self, statement.text)
            return super().execute(statement, *given, **options)

        def exec_driver_sql(self, statement: str, *given: Any, **options: Any) -> Any:
            _check_text(self, statement)
            return super().exec_driver_sql(statement, *given, **options)

        def _commit_impl(self) -> None:
            _check(self)
            super()._commit_impl()

        def _prepare_twophase_impl(self, xid: Any) -> None:
            _check(self)
            super()._prepare_twophase_impl(xid)

        def _commit_twophase_impl(self, xid: Any, is_prepared: bool) -> None:
            _check(self)
            super()._commit_twophase_impl(xid, is_prepared)

        def _rollback_impl(self) -> None:
            super()._rollback_impl()
            _keep(self, [])

        def _rollback_twophase_impl(self, xid: Any, is_prepared: bool) -> None:
            super()._rollback_twophase_impl(xid, is_prepared)
            _keep(self, [])

        def _rollback_to_savepoint_impl(self, name: str) -> None:
            super()._rollback_to_savepoint_impl(name)
            _keep(self, [each for each in _owed.get(self, []) if each.savepoint < number(name)])

    return Guarded


def _check_text(connection: Connection, statement: str) -> None:
    if _COMMIT.search(statement):
        _check(connection)


def _check(connection: Connection) -> None:
    _refuse(_owed.get(connection, []))


def _refuse(owed: list[Owed]) -> None:
    if owed:
        calls = ", ".join(each.what for each in owed)
        raise owed[0].error(f"not awaited, so not written: {calls}; nothing was committed")
