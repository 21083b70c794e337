"""A message as an entry of a stream: its payload, and one JSON object with the rest."""

from typing import Any

from inbox_outbox_base.brokers.described import FOR_TOOLS, described
from inbox_outbox_base.words.outgoing import Envelope

OUTBOX, PAYLOAD = "outbox", "payload"
"""The fields. A tombstone has no payload."""


def fields_of(envelope: Envelope, largest: int) -> tuple[dict[Any, Any], int]:
    """The entry's fields, and their size in bytes.

    Raises:
        ValueError: they are too large.
    """
    fields: dict[Any, Any] = {OUTBOX: described(envelope)}
    fields |= {name: text.encode() for name in FOR_TOOLS if (text := envelope.headers.get(name)) is not None}
    fields |= {} if envelope.payload is None else {PAYLOAD: envelope.payload}
    size = sum(map(len, fields)) + sum(map(len, fields.values()))
    if size > largest:
        raise ValueError(f"{size} bytes with its key and headers: expected at most largest={largest}")
    return fields, size
