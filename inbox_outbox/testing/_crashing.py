"""Crashes in this process: from some statement on, nothing more reaches the database.

They show what the database has after a crash. What else a process loses, they do not: real kills are for
processes of their own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.orm import Session, sessionmaker

from inbox.errors import InvalidOption
from inbox_outbox_base.checks.options import shown

Source = Engine | Connection | sessionmaker[Any]


class Crashed(BaseException):
    """The process is thought to have died here. `except Exception` does not catch it; code that catches it
    all the same is found by `NotCrashed`."""


class NotCrashed(AssertionError):
    """The crash did not happen, or code under test caught it and went on."""


@contextmanager
def crash_at_commit(source: Source) -> Iterator[None]:
    """The block crashes at its first COMMIT, which is not sent, and ends there without an error; what comes
    after the block is the next process.

    From the crash on, each statement of this thread on the source raises `Crashed`, except the ROLLBACK that
    the database would do by itself. So no error handling writes anything, and a lease stays held. A store of
    status-table mode remembers the end that it could not write, and writes it with its next claim: the next
    process has another `SqlStore`.

    Args:
        source: the Engine of the code under test; in `rolled_back`, its `sessions`, whose COMMIT counts. Of
            an AsyncEngine, its `sync_engine`.

    Raises:
        NotCrashed: nothing was committed in the block, or the crash was caught and did not end it.
        InvalidOption: another kind of source.
    """
    with _crashing(source) as crash:
        name = "before_commit" if isinstance(source, sessionmaker) else "commit"

        def at_commit(committed: Connection | Session) -> None:
            if not (isinstance(committed, Session) and committed.in_nested_transaction()):
                crash.happen("COMMIT")

        with _listening(source, name, at_commit):
            yield


@contextmanager
def crash_at_statement(source: Source, text: str) -> Iterator[None]:
    """The same before the first statement that contains this text, which is not sent.

    Args:
        source: as for `crash_at_commit`; `RolledBack.connection` will do, too.
        text: some of the statement's SQL, such as "INSERT INTO invoice"; case does not matter.

    Raises:
        NotCrashed: there was no such statement, which lists those that there were; or the crash was caught.
        InvalidOption: another kind of source, or the text is empty.
    """
    if not isinstance(text, str) or not text:
        raise InvalidOption(f"text={shown(text)}: expected some of a statement's SQL")
    with _crashing(source, text):
        yield


class _Crash:
    """A crash that is to come, or has come."""

    def __init__(self, text: str | None) -> None:
        self._text = text
        self._thread = threading.get_ident()
        self.at: str | None = None
        self.seen: list[str] = []

    def happen(self, where: str) -> None:
        if threading.get_ident() == self._thread:
            self.at = self.at or where
            raise Crashed(f"crashed at {self.at}")

    def at_statement(self, _: Connection, __: Any, statement: str, *rest: Any) -> None:
        """Called before each statement."""
        if threading.get_ident() != self._thread or statement.lstrip().upper().startswith("ROLLBACK"):
            return
        if self.at is not None or (self._text is not None and self._text.lower() in statement.lower()):
            self.happen(statement)
        self.seen.append(" ".join(statement.split())[:100])


@contextmanager
def _crashing(source: Source, text: str | None = None) -> Iterator[_Crash]:
    if not isinstance(source, Engine | Connection | sessionmaker):
        raise InvalidOption(f"source={shown(source)}: expected an Engine, a Connection or a sessionmaker")
    crash = _Crash(text)
    bind = source.kw["bind"] if isinstance(source, sessionmaker) else source
    with (
        _listening(bind.dialect, "handle_error", _keep_connection),
        _listening(bind, "before_cursor_execute", crash.at_statement),
    ):
        try:
            yield crash
        except Crashed:
            return
    if crash.at is not None:
        raise NotCrashed(f"the crash at {crash.at!r} was caught, and the code went on")
    wanted = "COMMIT" if text is None else f"statement with {text!r}"
    raise NotCrashed(f"there was no {wanted}; there were: {crash.seen or 'no statements'}")


def _keep_connection(context: ExceptionContext) -> None:
    """SQLAlchemy would discard it, and with it the transaction of a test that is rolled back."""
    if isinstance(context.original_exception, Crashed):
        context.is_disconnect = False


@contextmanager
def _listening(target: Any, name: str, listener: Callable[..., object]) -> Iterator[None]:
    event.listen(target, name, listener)
    try:
        yield
    finally:
        event.remove(target, name, listener)
