"""Messages published on an ORM Session: kept aside, and written last.

Written right before the COMMIT, they are numbered when the transaction holds the locks of its business rows,
so that of two transactions which change the same row the messages have the order of the changes. It is the
connection that says when that is: after the session's own events, flushes and other listeners may publish
more. It also says which savepoints are rolled back, the session's and others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, event

from inbox_outbox_base.transactions.connect import root
from inbox_outbox_base.transactions.savepoints import innermost, number
from inbox_outbox_base.words.outgoing import Draft

Write = Callable[[Connection, list[Draft]], None]


@dataclass(slots=True)  # not frozen, as `Draft`
class _Staged:
    draft: Draft
    write: Write
    """How the outbox that it was published with writes."""
    savepoint: int
    """The number of the innermost savepoint that was open; 0 if there was none."""


_engines: WeakSet[Engine] = WeakSet()
"""Those whose connections tell."""

_staged: WeakKeyDictionary[Connection, list[_Staged]] = WeakKeyDictionary()


def stage(connection: Connection, drafts: list[Draft], write: Write) -> None:
    """Keep messages until the connection commits; a savepoint that is rolled back takes its messages with
    it."""
    engine = root(connection.engine)
    if engine not in _engines:
        for moment in ("commit", "prepare_twophase", "commit_twophase"):
            event.listen(engine, moment, _write_all, insert=True)
        event.listen(engine, "rollback_savepoint", _roll_back)
        event.listen(engine, "rollback", _forget)
        _engines.add(engine)
    savepoint = innermost(connection)
    _staged.setdefault(connection, []).extend([_Staged(draft, write, savepoint) for draft in drafts])


def _write_all(connection: Connection, *_: object) -> None:
    for write, those in groupby(_staged.pop(connection, []), attrgetter("write")):
        write(connection, [each.draft for each in those])


def _roll_back(connection: Connection, name: str, _: object) -> None:
    if connection in _staged:
        gone = number(name)
        _staged[connection] = [each for each in _staged[connection] if each.savepoint < gone]


def _forget(connection: Connection) -> None:
    _staged.pop(connection, None)
