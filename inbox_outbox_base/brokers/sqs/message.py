"""A message in SQS's terms: a text, and at most ten attributes, one of which has what the outbox knows."""

import base64
import re
from collections.abc import Mapping
from typing import Any

from inbox_outbox_base.brokers.described import FOR_TOOLS, deduplication_id, described, digest
from inbox_outbox_base.words.outgoing import Envelope

from .queue import Queue

ATTRIBUTE = "outbox"
"""The attribute with everything but the payload, as a JSON object."""
BODY = "body"
"""In that object."""
BASE64, EMPTY = "base64", "empty"
"""How the body was written, if not as it is."""
MOST_ATTRIBUTES = 10

_NO_BODY = "-"
_TEXT = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_GROUP = re.compile(r"[!-~]{1,128}")


def entry_of(envelope: Envelope, queue: Queue) -> dict[str, Any]:
    """The message as it is sent.

    Raises:
        ValueError: the queue cannot carry it.
    """
    if envelope.payload is None:
        raise ValueError("payload=None (a tombstone), which SQS does not have")
    body, written = _body(envelope.payload)
    headers = envelope.headers
    attributes = {ATTRIBUTE: described(envelope, **({} if written is None else {BODY: written}))}
    attributes |= {name: headers[name] for name in FOR_TOOLS if is_text(headers.get(name, ""))}
    entry = {
        "MessageBody": body,
        "MessageAttributes": {name: as_attribute(text) for name, text in attributes.items()},
    }
    if queue.is_fifo:
        entry["MessageGroupId"] = group_of(envelope.id if envelope.key is None else envelope.key)
        entry["MessageDeduplicationId"] = deduplication_id(envelope)
    size = size_of(entry)
    if size > queue.largest:
        raise ValueError(f"{size} bytes with its attributes: queue {queue.name!r} takes {queue.largest}")
    return entry


def payload_of(body: str, written: object) -> bytes:
    """The payload of a body that was written like this.

    Raises:
        ValueError: it was not.
    """
    if written == EMPTY:
        return b""
    return base64.b64decode(body, validate=True) if written == BASE64 else body.encode()


def as_attribute(text: str) -> dict[str, Any]:
    """An attribute of the type String."""
    return {"DataType": "String", "StringValue": text}


def size_of(entry: Mapping[str, Any]) -> int:
    """The size of a message in bytes, as SQS counts it: the body, and names, types and values of its
    attributes."""
    attributes = entry.get("MessageAttributes", {})
    return len(entry["MessageBody"].encode()) + sum(map(size_of_attribute, attributes, attributes.values()))


def size_of_attribute(name: str, value: Mapping[str, Any]) -> int:
    """The size of one attribute in bytes."""
    content = value["BinaryValue"] if "BinaryValue" in value else value["StringValue"].encode()
    return len(name.encode()) + len(value["DataType"]) + len(content)


def is_text(text: str) -> bool:
    """Whether SQS takes this text as a body or a value, and returns it unchanged."""
    return _TEXT.fullmatch(text) is not None


def group_of(key: str) -> str:
    """The message group of a key: the key, or its hash if SQS would not take it."""
    return key if _GROUP.fullmatch(key) else digest(key)


def _body(payload: bytes) -> tuple[str, str | None]:
    """The body, and how it was written."""
    if not payload:
        return _NO_BODY, EMPTY
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = ""
    return (text, None) if is_text(text) else (base64.b64encode(payload).decode(), BASE64)
