"""A message in RocketMQ's terms."""

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.outgoing import Envelope

from . import properties
from .client import protocol

ID, KEY, CREATED_AT, CONTENT_TYPE = "outbox-id", "outbox-key", "outbox-created-at", "content-type"
EMPTY = "outbox-empty"
"""The property of a message with an empty payload: RocketMQ takes no empty body, so another one is sent."""

_EMPTY_BODY = b"\0"
_LONGEST_GROUP = 63
"""Bytes of UTF-8."""
_TYPES = protocol.MessageType


def message_of(envelope: Envelope, *, is_fifo: bool) -> Any:
    """The message as it is sent. The outbox's id is also RocketMQ's message id, and its key for searches.

    Raises:
        ValueError: RocketMQ cannot carry it.
    """
    if envelope.payload is None:
        raise ValueError("payload=None (a tombstone), which RocketMQ does not have")
    message = protocol.service_pb2.SendMessageRequest().messages.add()
    message.topic.name = envelope.topic
    message.body = envelope.payload or _EMPTY_BODY
    message.user_properties.update(properties_of(envelope))
    system = message.system_properties
    system.message_id = envelope.id
    if properties.is_carried(envelope.id):
        system.keys.append(envelope.id)
    system.born_timestamp.seconds = int(time.time())
    system.body_encoding = protocol.Encoding.IDENTITY
    system.message_type = _TYPES.FIFO if is_fifo else _TYPES.NORMAL
    if is_fifo:
        system.message_group = group_of(envelope)
    return message


def properties_of(envelope: Envelope) -> dict[str, str]:
    """Everything but the payload, as properties that RocketMQ takes."""
    own = {ID: envelope.id, CREATED_AT: envelope.created_at.isoformat(), CONTENT_TYPE: envelope.content_type}
    if envelope.key is not None:
        own[KEY] = envelope.key
    if not envelope.payload:
        own[EMPTY] = "true"
    headers: Mapping[str, str] = envelope.headers
    return properties.encode({**headers, **own})


def group_of(envelope: Envelope | Delivery) -> str:
    """The message group, which RocketMQ delivers in order: the key, or its hash if RocketMQ would not take
    the key. A message without a key has a group of its own."""
    group = envelope.id if envelope.key is None else envelope.key
    if properties.is_carried(group) and len(group.encode()) <= _LONGEST_GROUP:
        return group
    return hashlib.blake2b(group.encode(), digest_size=24).hexdigest()
