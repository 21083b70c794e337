"""Convert a message that SQS delivers to a delivery."""

import base64
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from inbox._consuming.cloud_events import event_id
from inbox._consuming.described import BYTES, delivery_from, object_from, texts, time_in
from inbox._consuming.described import is_of_outbox as wrote
from inbox._consuming.text import readable, readable_key
from inbox_outbox_base.brokers.sqs import message as wire
from inbox_outbox_base.words.incoming import Delivery

ATTRIBUTE = "inbox"
"""The attribute of a dead letter, and of one that was moved back, as a JSON object."""
REASON, ATTEMPT, QUEUE = "reason", "attempt", "queue"
"""In that object: why it is dead, in which attempt it died, and where it came from."""
LOOKED_AT = "looked_at"
"""In that object, if the letter was left in a FIFO queue and so written anew: by which redrive."""
ID, KEY, CREATED, MORE = "id", "key", "created", "attributes"
"""In that object: what SQS knew of a message that no outbox has sent, and attributes that found no room."""
TYPE, TEXT, BINARY = "type", "text", "binary"
"""The parts of such an attribute."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_TYPE = re.compile(r"(String|Number|Binary)(\.[ -~]+)?")


def delivery_of(message: Mapping[str, Any], queue: str, attempt: int) -> Delivery:
    """The handler's view of a message. It never raises, whatever the message contains.

    The id is the outbox's. A message of another producer has the source and id of its CloudEvent, if it is an
    event; else the id that SQS gave it when it was first sent. Its key is its message group.
    """
    attributes = attributes_of(message)
    own, ours = object_in(attributes, wire.ATTRIBUTE), object_in(attributes, ATTRIBUTE)
    if not is_of_outbox(attributes):
        return _foreign(message, queue, attempt, attributes, ours)
    body = str(message.get("Body", ""))
    try:
        payload = wire.payload_of(body, own.get(wire.BODY))
    except ValueError:
        payload = _bytes(body)
    return delivery_from(
        own,
        payload,
        topic=queue,
        sent_at=_sent_at(message),
        attempt=attempt,
        raw=message,
        place=place_of(message, queue),
    )


def _foreign(
    message: Mapping[str, Any],
    queue: str,
    attempt: int,
    attributes: Mapping[str, Any],
    ours: Mapping[str, Any],
) -> Delivery:
    found = {name: text_in(value) for name, value in attributes.items() if name != ATTRIBUTE or not ours}
    headers, payload = texts(found), _bytes(str(message.get("Body", "")))
    content_type = headers.get("content-type") or headers.get("contentType") or BYTES
    key = ours.get(KEY, system(message, "MessageGroupId"))
    own_id = event_id(headers, content_type, payload) or ours.get(ID) or message.get("MessageId")
    return Delivery(
        id=readable(own_id or ""),
        topic=readable(ours.get(QUEUE) or queue),
        key=None if key is None else readable_key(key, is_of_outbox=False),
        payload=payload,
        content_type=readable(content_type),
        headers=headers,
        attempt=attempt,
        created_at=time_in(ours.get(CREATED)) or _sent_at(message),
        raw=message,
        place=place_of(message, queue),
    )


def is_of_outbox(attributes: Mapping[str, Any]) -> bool:
    """Whether an outbox has sent the message with these attributes."""
    return wrote(object_in(attributes, wire.ATTRIBUTE))


def place_of(message: Mapping[str, Any], queue: str) -> str:
    """Where the message is, for people."""
    return f"{queue}, message {message.get('MessageId')}"


def attributes_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message's attributes, also those that found no room in a copy."""
    found = dict(message.get("MessageAttributes") or {})
    more = object_in(found, ATTRIBUTE).get(MORE)
    for name, written in more.items() if isinstance(more, dict) else ():
        with suppress(TypeError, ValueError, KeyError):  # else written by somebody else
            found |= _restored(name, written)
    return found


def _restored(name: str, written: Mapping[str, Any]) -> dict[str, Any]:
    """An attribute that found no room, if SQS would take it."""
    if not (name != ATTRIBUTE and _NAME.fullmatch(name) and _TYPE.fullmatch(written[TYPE])):
        return {}
    if BINARY in written:
        value: dict[str, Any] = {"BinaryValue": base64.b64decode(written[BINARY])}
    else:
        value = {"StringValue": written[TEXT] if wire.is_text(written[TEXT]) else ""}
    return {name: {"DataType": written[TYPE], **value}} if all(value.values()) else {}


def object_in(attributes: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The JSON object in an attribute; an empty one if there is none."""
    return object_from(text_in(attributes[name])) if name in attributes else {}


def text_in(value: Mapping[str, Any]) -> Any:
    """What an attribute holds: text, or bytes."""
    return value.get("BinaryValue", value.get("StringValue", ""))


def system(message: Mapping[str, Any], name: str) -> str | None:
    """What SQS says about the message."""
    return (message.get("Attributes") or {}).get(name)


def _sent_at(message: Mapping[str, Any]) -> datetime | None:
    with suppress(TypeError, ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(int(system(message, "SentTimestamp") or "") / 1_000, UTC)
    return None


def _bytes(body: str) -> bytes:
    return body.encode(errors="surrogatepass")
