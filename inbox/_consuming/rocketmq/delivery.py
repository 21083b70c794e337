"""Convert a message that RocketMQ delivers to a delivery."""

import gzip
import logging
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from inbox._consuming.cloud_events import event_id
from inbox._consuming.text import readable, readable_key
from inbox_outbox_base.brokers.rocketmq.client import protocol
from inbox_outbox_base.brokers.rocketmq.message import CONTENT_TYPE, CREATED_AT, EMPTY, ID, KEY
from inbox_outbox_base.brokers.rocketmq.properties import decode
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.redelivered import as_first

TOPIC, REASON, ATTEMPT = "inbox-topic", "inbox-reason", "inbox-attempt"
"""Properties of a dead letter: where it came from, why it is dead, and in which attempt it died."""
GROUP = "inbox-group"
"""Property of a copy: the message group of the first message, if that is its key."""
LOOKED_AT = "inbox-looked-at"
"""Property of a dead letter that was left, and so written anew: by which redrive."""

_OWN = (ID, KEY, CREATED_AT, CONTENT_TYPE, EMPTY, TOPIC, REASON, ATTEMPT, GROUP, LOOKED_AT)
_BROKERS = "__"
_BYTES = "application/octet-stream"
_log = logging.getLogger("inbox.rocketmq")


def delivery_of(message: Any, attempt: int) -> Delivery:
    """The handler's view of a message. It never raises, whatever the message contains.

    The id is the outbox's. A message of another producer has the source and id of its CloudEvent, if it is an
    event; else the id from its producer's client, which each resend changes. Its key is its message group;
    else the smallest of its keys for searches, which several messages may have.
    """
    sent = {name: value for name, value in message.user_properties.items() if not name.startswith(_BROKERS)}
    properties = decode(sent)
    system, payload = message.system_properties, b"" if EMPTY in properties else body_of(message)
    headers = {readable(name): readable(value) for name, value in properties.items() if name not in _OWN}
    content_type = properties.get(CONTENT_TYPE) or _BYTES
    own_id = properties.get(ID) or event_id(headers, content_type, payload)
    key = properties.get(KEY)
    if ID not in properties and key is None:  # an outbox's message without a key has its id in both
        key = system.message_group or properties.get(GROUP) or min(system.keys, default=None)
    found = Delivery(
        id=readable(own_id or system.message_id or key or ""),
        topic=readable(properties.get(TOPIC) or message.topic.name),
        key=None if key is None else readable_key(key, is_of_outbox=ID in properties),
        payload=payload,
        content_type=readable(content_type),
        headers=headers,
        attempt=attempt,
        created_at=_created_at(properties.get(CREATED_AT), system.born_timestamp),
        raw=message,
        place=f"{message.topic.name} [{system.queue_id}] at {system.queue_offset}",
    )
    return as_first(found)


def is_damaged(message: Any) -> bool:
    """Whether the properties contain zeros, because a broker was killed while it wrote the message. Brokers
    check only the body, so this message is delivered, although it was not confirmed to anybody. A proxy
    accepts no property with a zero."""
    system = message.system_properties
    texts = [system.message_id, system.message_group, system.tag, *system.keys]
    texts += [text for pair in message.user_properties.items() for text in pair]
    return any("\0" in text for text in texts)


def body_of(message: Any) -> bytes:
    """The payload, decompressed if possible."""
    body: bytes = message.body
    if message.system_properties.body_encoding == protocol.Encoding.GZIP:
        with suppress(OSError, EOFError, zlib.error):
            return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else zlib.decompress(body)
        _log.warning("message %s: cannot be decompressed", message.system_properties.message_id)
    return body


def _created_at(header: str | None, born: Any) -> datetime | None:
    with suppress(ValueError, OverflowError):
        if header is not None and (created := datetime.fromisoformat(header)).tzinfo is not None:
            return created.astimezone(UTC)
    with suppress(ValueError, OverflowError):
        created = born.ToDatetime(UTC)
        return created if isinstance(created, datetime) and born.seconds else None
    return None
