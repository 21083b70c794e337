"""Publishes the messages of a partition, in its transaction."""

import json
from collections.abc import Iterator
from dataclasses import asdict

import pyarrow as pa
from sqlalchemy import Connection

from inbox_outbox_base.databases import arrow
from inbox_outbox_base.databases.loading import unknown
from inbox_outbox_base.errors.outbox import InvalidMessage
from inbox_outbox_base.errors.spark import ColumnMismatch, InvalidRow
from outbox import Message, Outbox
from spark._options.messages import Messages, PerRow
from spark._options.settings import WriterSettings

from . import keys
from .ledger import LedgerEntry
from .report import RowCounts
from .spool import KEY

_JSON = "application/json"


def check_messages(settings: WriterSettings, schema: pa.Schema) -> None:
    """Check that the DataFrame has the columns of the messages, in types that they can hold.

    Raises:
        ColumnMismatch: a column is missing, or cannot be a key or a payload.
    """
    how = settings.outbox
    if not isinstance(how, PerRow):
        return
    used = (how.payload,) if isinstance(how.payload, str) else how.payload or ()
    for name in (*used, *([] if how.key is None else [how.key])):
        if name not in schema.names:
            raise ColumnMismatch(f"outbox={how!r}: the DataFrame has no column {name!r}")
    if how.key is not None:
        keys.check_type(how.key, schema.field(how.key).type)
    if isinstance(how.payload, str):
        kind = schema.field(how.payload).type
        if not (_is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise ColumnMismatch(
                f"outbox={how!r}: the column has the type {kind}, expected a string or bytes; "
                "a list of columns makes a JSON object"
            )
        return
    for field in schema if how.payload is None else map(schema.field, how.payload):
        if arrow.sendable(field)[0] is None:
            raise unknown(field)


class PartitionMessages:
    """Writes the messages of one partition."""

    def __init__(self, settings: WriterSettings, how: Messages, entry: LedgerEntry) -> None:
        self._how = how
        self._entry = entry
        self._batch_size = settings.batch_size
        self._outbox = Outbox(schema=settings.inbox_schema)

    def add(self, connection: Connection, rows: pa.Table) -> None:
        """Publish a message for each of these new rows, which have a column with the stored key."""
        if isinstance(self._how, PerRow):
            for batch in rows.to_batches(self._batch_size):
                try:
                    self._outbox.publish_many(connection, self._messages(self._how, batch))
                except InvalidMessage:  # its text quotes the value
                    raise InvalidRow(
                        f"outbox={self._how!r}: the key or the payload of a row is empty or too long for a "
                        "message, or has a NUL character"
                    ) from None

    def finish(self, connection: Connection, counts: RowCounts) -> None:
        """Publish the message of the partition, if it has new rows."""
        if isinstance(self._how, PerRow) or not counts.new:
            return
        entry = self._entry
        payload = {"consumer": entry.consumer, "run": entry.run, "batch": entry.batch, "part": entry.part}
        payload |= asdict(counts)
        self._outbox.publish(
            connection, self._how.topic, json.dumps(payload), self._how.key, content_type=_JSON
        )

    def _messages(self, how: PerRow, rows: pa.RecordBatch) -> Iterator[Message]:
        names = rows.column(KEY) if how.key is None else keys.encode([rows.column(how.key)])
        if isinstance(how.payload, str):
            column = rows.column(how.payload)
            if column.null_count:
                raise InvalidRow(f"outbox={how!r}: {column.null_count} rows have no payload")
            content_type, payloads = None, column
        else:
            columns = rows.drop_columns([KEY]) if how.payload is None else rows.select(list(how.payload))
            content_type, payloads = _JSON, arrow.to_json(columns.to_struct_array())
        for key, payload in zip(names.to_pylist(), payloads.to_pylist(), strict=True):
            yield Message(how.topic, payload, key, content_type=content_type)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
