"""What was published."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, null, select
from sqlalchemy.orm import Session

from inbox import Delivery
from inbox.errors import InvalidOption
from inbox_outbox_base.checks.options import shown
from inbox_outbox_base.databases.letter import headers_of
from outbox.schema import tables


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """A message in the outbox, with its payload."""

    id: str
    topic: str
    key: str | None
    payload: bytes | Any
    """None is a tombstone."""
    content_type: str
    """Empty for a tombstone."""
    headers: Mapping[str, str]
    created_at: datetime
    available_at: datetime | None
    """When it can be sent, if it is delayed."""

    def json(self) -> Any:
        """The payload, read as JSON.

        Raises:
            ValueError: it is none.
        """
        return json.loads(self.payload)

    @property
    def text(self) -> str:
        """The payload, read as UTF-8."""
        return bytes(self.payload).decode()

    def delivery(self, attempt: int = 1) -> Delivery:
        """The message as a broker's consumer would pass it to a handler.

        Args:
            attempt: the number of this delivery, from 1.
        """
        return Delivery(
            id=self.id,
            topic=self.topic,
            key=self.key,
            payload=self.payload,
            content_type=self.content_type,
            headers=self.headers,
            attempt=attempt,
            created_at=self.created_at,
        )


def published(
    connection: Connection | Session,
    *,
    topic: str | None = None,
    key: str | None = None,
    schema: str | None = None,
) -> list[PublishedMessage]:
    """The messages in the outbox that no relay has sent yet: in the order of their numbers, then the delayed
    ones in the order in which they become due. Dead letters are not among them. Changes nothing.

    A Session on an Engine writes its messages at its COMMIT, and they are found after that; one of
    `RolledBack.sessions` writes them at once. With an asynchronous handle: `await
    session.run_sync(published, topic="orders")`.

    Args:
        connection: a Connection or a Session.
        topic: only messages of this topic; None is any.
        key: only messages of this key; None is any.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: another kind of connection.
    """
    if not isinstance(connection, Connection | Session):
        raise InvalidOption(
            f"connection={shown(connection)}: expected a Connection or a Session; with an asynchronous one, "
            "await its run_sync(published)"
        )
    all_tables, found = tables(schema), list[PublishedMessage]()
    message, delayed = all_tables.message, all_tables.delayed
    orders = ((message, (message.c.sequence,)), (delayed, (delayed.c.available_at, delayed.c.sequence)))
    for table, order in orders:
        due = table.c.available_at if table is delayed else null()
        statement = select(*(table.c[name] for name in _COLUMNS), due.label("available_at")).order_by(*order)
        for name, value in (("topic", topic), ("key", key)):
            if value is not None:
                statement = statement.where(table.c[name] == value)
        found += [_message(row) for row in connection.execute(statement).mappings()]
    return found


_COLUMNS = ("id", "topic", "key", "payload", "content_type", "headers", "created_at")


def _message(row: RowMapping) -> PublishedMessage:
    headers = headers_of(row["headers"]) if row["headers"] else {}
    payload = bytes(row["payload"]) if row["content_type"] else None
    return PublishedMessage(**{**row, "headers": headers, "payload": payload})
