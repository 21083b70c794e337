"""Retry and deliver: a message that may run again leaves through the outbox of the same database, in the
transaction of the decision."""

import json
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from sqlalchemy import Connection

from inbox._status_mode.stores import Record, SqlStore, Store
from inbox_outbox_base.checks import options
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.outgoing import Message


def redelivery(store: Store, deliver: bool, to: str | None) -> "Redelivery | None":
    """How a call delivers what it retries; None if it was not asked to.

    Raises:
        InvalidOption: an argument cannot be used.
        TablesMissing: the database has no outbox.
    """
    if options.flag("deliver", deliver):
        return Redelivery(store, to)
    if to is not None:
        raise InvalidOption(f"to={to!r:.80}: expected only with deliver=True")
    return None


class Redelivery:
    """Publishes messages again.

    Args:
        store: where they are recorded.
        to: the topic; None is the one from which each message came.

    Raises: as `redelivery`.
    """

    def __init__(self, store: Store, to: str | None) -> None:
        if not isinstance(store, SqlStore):
            raise InvalidOption(f"deliver=True: store={store!r}: expected a SqlStore, beside an outbox")
        # By its name, as a database's code: the inbox works without the outbox, and imports nothing of it.
        found = import_module("outbox._operating.redelivering")
        self._outbox: Any = found.RedeliveringOutbox(store.tables.message.schema)
        self._to = to
        self.told = {"deliver": True, "to": to}
        """What is stored with the decision."""
        if to is not None and (reason := self._outbox.refusal(Message(to, b""))):
            raise InvalidOption(f"to={to!r:.80}: {reason}")
        store.transact(self._outbox.check)

    def check(self, record: Record) -> None:
        """Refuse a message that cannot be published again.

        Raises:
            InvalidOption: its record does not keep it, or the outbox cannot take it.
        """
        what = f"deliver=True: consumer={record.consumer!r}, key={record.key!r}"
        if record.delivery is None:
            raise InvalidOption(
                f"{what}: the record does not keep the message. It does if the inbox had keep_payload=True "
                "when the message died, a consumer or a relay of ours had brought it, and it has at most "
                "1,000,000 bytes"
            )
        if reason := self._outbox.refusal(*self._message(record)):
            raise InvalidOption(f"{what}: the outbox cannot take the message: {reason}")

    def publish(self, connection: Connection, records: Iterable[Record]) -> None:
        """Write the messages of these records, in their order."""
        self._outbox.redeliver(connection, [*map(self._message, records)])

    def _message(self, record: Record) -> tuple[Message, str, str | None]:
        """The message, its id and when it was published."""
        found = json.loads(record.delivery or "{}")
        message = Message(
            topic=found["topic"] if self._to is None else self._to,
            payload=record.payload,
            key=found["key"],
            headers=found["headers"],
            content_type=(found["content_type"] or None) if record.payload is not None else None,
        )
        return message, found["id"], found["created_at"]
