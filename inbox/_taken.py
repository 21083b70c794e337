"""A message taken in a transaction of the caller's, and its result.

A result that is set on a Connection or a Session is written there and then, so what goes wrong is raised at
that line, and COMMIT has nothing left to do that could fail. Asynchronous code cannot wait for the database
in an assignment: there the result is written when the transaction commits, right before the COMMIT.
"""

import json
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event

from . import _failed_commit, _statements
from ._accept import accept
from ._databases import Attempt
from ._fault import OWN
from ._transaction import encode_result
from ._verdict import Verdict
from .errors import InvalidOption, TransactionEnded

_Write = Callable[[str | None], object]

_waiting: WeakKeyDictionary[Connection, "dict[bytes, tuple[Attempt, str | None]]"] = WeakKeyDictionary()
"""Results to write when their connection commits, by claim."""


class Taken:
    """One message in the caller's transaction. Run it if and only if `is_new`."""

    __slots__ = ("_result", "_write", "verdict")

    def __init__(self, verdict: Verdict, result: str | None, write: _Write) -> None:
        self.verdict = verdict
        """What the inbox says about the message."""
        self._result = result
        self._write = write

    def __repr__(self) -> str:
        return f"Taken(verdict={self.verdict.name})"

    @property
    def is_new(self) -> bool:
        """Whether to run the message: the one verdict that says so is `NEW`."""
        return self.verdict is Verdict.NEW

    @property
    def result(self) -> Any:
        """A JSON value: what was set here, or for a duplicate what its first run had set.

        What you set is stored if and only if the transaction commits, and reads as a duplicate will read it:
        a tuple is a list. To change it, set it again.

        Raises, when it is set:
            InvalidResult: not JSON, or more than a million bytes of it.
            InvalidOption: the message is not new.
            TransactionEnded: the transaction that took the message is over, or the savepoint that did was
                rolled back.
        """
        return None if self._result is None else json.loads(self._result)

    @result.setter
    def result(self, value: Any) -> None:
        if not self.is_new:
            raise InvalidOption(f"taken.result: only a new message gets a result, this one is {self.verdict}")
        text = None if value is None else encode_result(value)
        self._write(text)
        self._result = text


def take(connection: Connection, /, attempt: Attempt, *, at_commit: bool = False, **limits: Any) -> Taken:
    """Take one message in the transaction on this connection; its result is written when it is set, or
    `at_commit`."""
    if connection in _waiting:  # so that a duplicate in the same transaction has it
        _write_waiting(connection)
    verdict, stored = accept(connection, attempt, **limits)
    transaction = connection.get_transaction()

    def write(text: str | None) -> None:
        if transaction is None or connection.get_transaction() is not transaction:
            raise TransactionEnded("taken.result: the transaction that took the message has ended")
        if at_commit:
            _keep(connection, attempt, text)
        elif _store(connection, attempt, text) != 1:
            raise TransactionEnded("taken.result: the savepoint that took the message was rolled back")

    return Taken(verdict, None if stored is None else stored.result, write)


def _store(connection: Connection, attempt: Attempt, text: str | None) -> int:
    parameters = attempt.where() | {"claim_": attempt.claim, "result_": text}
    with OWN:
        return connection.execute(_statements.store_result(attempt.tables), parameters).rowcount


def _keep(connection: Connection, attempt: Attempt, text: str | None) -> None:
    if connection not in _waiting:
        _waiting[connection] = {}
        for moment in ("commit", "prepare_twophase", "commit_twophase"):
            event.listen(connection, moment, _write_waiting)
        for moment in ("rollback", "rollback_twophase"):
            event.listen(connection, moment, _forget)
    _failed_commit.watch(connection)
    _waiting[connection][attempt.claim] = (attempt, text)


def _write_waiting(connection: Connection, *_: object) -> None:
    """A savepoint that was rolled back has taken its messages with it: their results go nowhere."""
    waiting = _waiting[connection]
    while waiting:
        claim = next(iter(waiting))
        _store(connection, *waiting[claim])
        del waiting[claim]


def _forget(connection: Connection, *_: object) -> None:
    _waiting[connection].clear()
