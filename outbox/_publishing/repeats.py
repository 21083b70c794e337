"""Messages that were published again with an id that the outbox knows: they were not added.

Hooks are told after the transaction has ended, however it ends, because they may be slow. SQLAlchemy has no
event for that moment; it has one for a connection that returns to its pool, or begins its next transaction.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import AlreadyPublished, InvalidOption
from inbox_outbox_base.monitoring.events import Event, EventKind, Hook, Hooks
from inbox_outbox_base.transactions.connect import root
from inbox_outbox_base.words.outgoing import Draft

_UNTOLD = "outbox: events of the current transaction"
_NAMED = 3
"""The most ids that an error's text names."""

_engines: WeakSet[Engine] = WeakSet()
"""The engines that have our listeners."""


class Repeats:
    """What an outbox does about them.

    Raises:
        InvalidOption: an argument is invalid.
    """

    def __init__(self, on_repeat: Literal["ignore", "raise"], on_event: Hook | Iterable[Hook] | None) -> None:
        self._raises = outbox_options.one_of("on_repeat", on_repeat, ("ignore", "raise")) == "raise"
        self._hooks = Hooks(on_event, error=InvalidOption)

    def note(self, connection: Connection, repeated: Sequence[Draft]) -> None:
        """These messages were not added in the connection's transaction.

        Raises:
            AlreadyPublished: if that is wanted.
        """
        if not repeated:
            return
        if self._hooks:
            _tell_later(connection, self._hooks, [_event(each) for each in repeated])
        if self._raises:
            ids = tuple(each.row["id"] for each in repeated)
            named = ", ".join(map(repr, ids[:_NAMED]))
            more = f" and {len(ids) - _NAMED:,} others" if len(ids) > _NAMED else ""
            raise AlreadyPublished(f"id={named}{more}: the outbox knows a message with this id", ids=ids)


def _event(repeated: Draft) -> Event:
    row = repeated.row
    return Event(kind=EventKind.REPEATED, topic=row["topic"], key=row["key"] or "", message_id=row["id"])


def _tell_later(connection: Connection, hooks: Hooks, events: list[Event]) -> None:
    engine = root(connection.engine)
    if engine not in _engines:
        event.listen(engine, "begin", _beginning)
        event.listen(engine, "begin_twophase", _beginning)
        event.listen(engine, "checkin", _returned)
        _engines.add(engine)
    connection.info.setdefault(_UNTOLD, []).extend((hooks, each) for each in events)


def _beginning(connection: Connection, *_: object) -> None:
    _tell(connection.info)


def _returned(_: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
    _tell(entry.info)


def _tell(info: dict[str, Any]) -> None:
    for hooks, each in info.pop(_UNTOLD, ()):
        hooks(each)
