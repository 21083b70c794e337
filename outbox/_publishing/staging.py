"""Messages published on an ORM Session: staged, and written last.

They are written right before the COMMIT, when the transaction holds the locks of its business rows: if two
transactions change the same row, their messages have the order of the changes. The connection's events tell
when the COMMIT comes: after the session's own events, flushes and other listeners may still publish. They
also tell when a savepoint is rolled back, the session's or another one.
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
    """The function with which its outbox writes."""
    savepoint: int
    """The number of the innermost open savepoint; 0 if there was none."""


_engines: WeakSet[Engine] = WeakSet()
"""The engines that have our listeners for their connections' events."""

_staged: WeakKeyDictionary[Connection, list[_Staged]] = WeakKeyDictionary()


def stage(connection: Connection, drafts: list[Draft], write: Write, savepoint: int | None = None) -> None:
    """Stage messages until the connection commits; rolling back the savepoint removes them. The savepoint is
    the innermost one, unless its number is given."""
    engine = root(connection.engine)
    if engine not in _engines:
        for moment in ("commit", "prepare_twophase", "commit_twophase"):
            event.listen(engine, moment, _write_all, insert=True)
        event.listen(engine, "rollback_savepoint", _roll_back)
        event.listen(engine, "rollback", _forget)
        _engines.add(engine)
    if savepoint is None:
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
