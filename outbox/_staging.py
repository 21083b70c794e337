"""Messages published on an ORM Session: kept aside, and written last.

Written right before the COMMIT, they are numbered when the transaction holds the locks of its business rows,
so that of two transactions which change the same row the messages have the order of the changes. It is the
connection that says when that is: after the session's own events, flushes and other listeners may publish
more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction

from ._message import Draft
from ._wake import root

Write = Callable[[Connection, list[Draft]], None]

_KEY = "outbox: messages to be written before the transaction commits"


@dataclass(slots=True)
class _Staged:
    draft: Draft
    write: Write
    """How the outbox that it was published with writes."""
    transaction: SessionTransaction | None
    """The innermost transaction or savepoint that is open: without it there is no message."""


_engines: WeakSet[Engine] = WeakSet()
"""Those that call `_write_all`."""

_staged: WeakKeyDictionary[Connection, list[_Staged]] = WeakKeyDictionary()


def stage(session: Session, connection: Connection, drafts: list[Draft], write: Write) -> None:
    """Keep messages until the session's connection commits; a savepoint that is rolled back takes its
    messages with it."""
    engine = root(connection.engine)
    if engine not in _engines:
        for moment in ("commit", "prepare_twophase"):
            event.listen(engine, moment, _write_all, insert=True)
        _engines.add(engine)
    transaction = session.get_nested_transaction() or session.get_transaction()
    staged = session.info.setdefault(_KEY, [])
    staged += [_Staged(draft, write, transaction) for draft in drafts]
    _staged[connection] = staged


def _write_all(connection: Connection, *_: object) -> None:
    staged = _staged.pop(connection, [])
    for write, those in groupby(staged, attrgetter("write")):
        write(connection, [each.draft for each in those])


@event.listens_for(Session, "after_commit")
def _released(session: Session) -> None:
    """The messages of a savepoint that was released are those of the transaction around it."""
    savepoint = session.get_nested_transaction()
    if savepoint is not None:
        around = savepoint.parent
        while around is not None and around.parent is not None and not around.nested:  # that of a flush
            around = around.parent
        for each in session.info.get(_KEY, ()):
            if each.transaction is savepoint:
                each.transaction = around


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    """Whatever still belongs to it has been written, or was rolled back."""
    if transaction.parent is None:
        session.info.pop(_KEY, None)
    elif transaction.nested and _KEY in session.info:
        staged = session.info[_KEY]
        staged[:] = [each for each in staged if each.transaction is not transaction]
