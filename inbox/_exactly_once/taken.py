"""A message taken in the caller's transaction, and its result.

With a Connection or a Session, setting the result writes it immediately. So an error is raised at that line,
and the COMMIT has nothing left to do that could fail. Asynchronous code cannot wait for the database in an
assignment: there the result is written when the transaction commits, right before the COMMIT.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from inbox_outbox_base.checks.results import encode_result
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.taking import Attempt, Stored
from inbox_outbox_base.errors.blame import AFTER_BODY
from inbox_outbox_base.errors.inbox import InvalidOption, TransactionEnded
from inbox_outbox_base.transactions import failed_commit
from inbox_outbox_base.transactions.savepoints import innermost, number
from inbox_outbox_base.words.incoming import Verdict

from .accept import Terms
from .answering import answer


@dataclass(frozen=True, slots=True)
class _Setting:
    """A result that was set, as JSON, and where it was set."""

    text: str | None
    savepoint: int
    """The number of the innermost savepoint that was open; 0 if there was none."""
    nested: frozenset[SessionTransaction]
    """The session's nested transactions at that time; it may not have sent their SAVEPOINTs yet."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Value:
    """A result, and the earlier values that it gets back when savepoints are rolled back."""

    history: list[_Setting]
    """The value of the innermost savepoint comes last."""

    @property
    def text(self) -> str | None:
        return self.history[-1].text if self.history else None

    def set(self, new: _Setting) -> None:
        around = (new.savepoint, len(new.nested))
        self.keep(lambda old: (old.savepoint, len(old.nested)) < around)
        self.history.append(new)

    def keep(self, is_kept: Callable[[_Setting], bool]) -> None:
        self.history = list(filter(is_kept, self.history))


# Weak keys: a connection that is dropped before its transaction ends takes its results along.
_waiting: WeakKeyDictionary[Connection, dict[bytes, tuple[Attempt, _Value]]] = WeakKeyDictionary()
"""Results to write when their connection commits, by claim."""

_in_savepoints: WeakKeyDictionary[Connection | Session, WeakSet[_Value]] = WeakKeyDictionary()
"""Results set in a savepoint, which may be rolled back."""


class Taken:
    """One message in the caller's transaction. Run it if and only if `is_new`."""

    __slots__ = ("_value", "_write", "verdict")

    def __init__(self, verdict: Verdict, value: _Value, write: Callable[[str | None], object]) -> None:
        self.verdict = verdict
        """What the inbox says about the message."""
        self._value = value
        self._write = write

    def __repr__(self) -> str:
        return f"Taken(verdict={self.verdict.name})"

    def __bool__(self) -> bool:
        return self.is_new

    @property
    def is_new(self) -> bool:
        """Whether to run the message: only if the verdict is `NEW`."""
        return self.verdict is Verdict.NEW

    @property
    def result(self) -> Any:
        """A JSON value: what you set; for a duplicate, what the first run set.

        It is stored if and only if the transaction commits, and reads back as a duplicate will see it: a
        tuple becomes a list. To change it, set it again. Rolling back a savepoint restores the
        result from before the savepoint.

        Raises, when it is set:
            InvalidResult: not JSON, or more than a million bytes of JSON.
            InvalidOption: the message is not new.
            TransactionEnded: the transaction that took the message is over, or the savepoint that took it was
                rolled back.
        """
        return None if self._value.text is None else json.loads(self._value.text)

    @result.setter
    def result(self, value: Any) -> None:
        if not self.is_new:
            raise InvalidOption(f"taken.result: only a new message gets a result, this one is {self.verdict}")
        self._write(None if value is None else encode_result(value))


def take(
    connection: Connection,
    attempt: Attempt,
    terms: Terms,
    message_time: datetime | None,
    *,
    session: Session | None = None,
    at_commit: bool = False,
) -> Taken:
    """Take one message in the transaction on this connection (the session's connection, if there is one).
    Its result is written when it is set, or `at_commit`."""
    verdict, stored = answer(connection, attempt, terms, message_time)
    transaction = connection.get_transaction()
    before = None if stored is None else _result(connection, stored)
    value = _Value([_Setting(before, innermost(connection), frozenset())])

    def write(text: str | None) -> None:
        if transaction is None or connection.get_transaction() is not transaction:
            raise TransactionEnded("taken.result: the transaction that took the message has ended")
        nested: frozenset[SessionTransaction] = frozenset()
        if at_commit:
            _keep(connection, attempt, value)
            if session is not None and (nested := frozenset(_nested(session))):
                _listen(session, value, "after_soft_rollback", _session_rolled_back)
        else:
            if session is not None and session.in_nested_transaction():
                session.connection(bind_arguments={"bind": connection})  # sends a SAVEPOINT that is due
            if _store(connection, attempt, text) != 1:
                raise TransactionEnded("taken.result: the savepoint that took the message was rolled back")
        if savepoint := innermost(connection):
            _listen(connection, value, "rollback_savepoint", _rolled_back)
        value.set(_Setting(text, savepoint, nested))

    return Taken(verdict, value, write)


def _result(connection: Connection, stored: Stored) -> str | None:
    """The result of a duplicate: as stored, or as this same transaction is going to store it."""
    waiting = _waiting.get(connection, {})
    if stored.claim is None or stored.claim not in waiting:
        return stored.result
    return waiting[stored.claim][1].text


def _nested(session: Session) -> Iterator[SessionTransaction]:
    transaction = session.get_nested_transaction()
    while transaction is not None:
        if transaction.nested:
            yield transaction
        transaction = transaction.parent


def _listen(to: Connection | Session, value: _Value, moment: str, hear: Callable[..., None]) -> None:
    if to not in _in_savepoints:
        _in_savepoints[to] = WeakSet()
        event.listen(to, moment, hear)
    _in_savepoints[to].add(value)


def _rolled_back(connection: Connection, name: str, _: object) -> None:
    for value in _in_savepoints[connection]:
        # Savepoints inside the one that was rolled back have higher numbers.
        value.keep(lambda each: each.savepoint < number(name))


def _session_rolled_back(session: Session, transaction: SessionTransaction) -> None:
    for value in _in_savepoints[session]:
        value.keep(lambda each: transaction not in each.nested)


def _store(connection: Connection, attempt: Attempt, text: str | None) -> int:
    parameters = attempt.where() | {"claim_": attempt.claim, "result_": text}
    with AFTER_BODY:
        return connection.execute(taking_statements.store_result(attempt.tables), parameters).rowcount


def _keep(connection: Connection, attempt: Attempt, value: _Value) -> None:
    if connection not in _waiting:
        _waiting[connection] = {}
        # Before PREPARE, because a prepared transaction accepts no writes; without it, before COMMIT.
        for moment in ("commit", "prepare_twophase", "commit_twophase"):
            event.listen(connection, moment, _write_waiting)
        for moment in ("rollback", "rollback_twophase"):
            event.listen(connection, moment, _forget)
    failed_commit.watch(connection)
    _waiting[connection][attempt.claim] = attempt, value


def _write_waiting(connection: Connection, *_: object) -> None:
    """A message whose savepoint was rolled back has no row any more, so its result is dropped."""
    waiting = _waiting[connection]
    while waiting:
        claim, (attempt, value) = next(iter(waiting.items()))
        _store(connection, attempt, value.text)
        del waiting[claim]


def _forget(connection: Connection, *_: object) -> None:
    _waiting[connection].clear()
