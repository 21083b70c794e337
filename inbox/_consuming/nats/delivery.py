"""Convert a message that JetStream delivers to a delivery."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from inbox._consuming.cloud_events import event_id
from inbox._consuming.described import BYTES, delivery_from, is_of_outbox, object_from, texts, time_in
from inbox._consuming.text import readable
from inbox_outbox_base.brokers.nats.client import Msg
from inbox_outbox_base.brokers.nats.message import CONTENT_TYPE, EVENT_PREFIX, HEADER, MESSAGE_ID
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.outgoing import IS_EVENT, PREFIX

OURS = "Inbox"
"""The header of a dead letter, and of one that was moved back, as a JSON object."""
REASON, ATTEMPT, STREAM, SUBJECT = "reason", "attempt", "stream", "subject"
"""In that object: why it is dead, in which attempt it died, and where it came from."""
ID, CREATED = "id", "created"
"""In that object: what was known of a message that no outbox has sent."""


def delivery_of(message: Msg, attempt: int) -> Delivery:
    """The handler's view of a message. It never raises, whatever the message contains.

    The id is the outbox's. A message of another producer has the source and id of its CloudEvent, if it is an
    event; else its Nats-Msg-Id; else its place in the stream together with the time when it came there, since
    a stream that is made again counts from 1.
    """
    headers: Mapping[str, str] = message.headers or {}
    own, place, sent_at = object_from(headers.get(HEADER)), place_of(message), _sent_at(message)
    if is_of_outbox(own):
        return delivery_from(
            own,
            message.data,
            topic=message.subject,
            sent_at=sent_at,
            attempt=attempt,
            raw=message,
            place=place,
        )
    ours = object_from(headers.get(OURS))
    hidden = {MESSAGE_ID, *([OURS] if ours else [])}
    theirs = _headers_of_event(texts({name: text for name, text in headers.items() if name not in hidden}))
    content_type = theirs.get(CONTENT_TYPE) or theirs.get("Content-Type") or BYTES
    own_id = event_id(theirs, content_type, message.data) or ours.get(ID) or first_id(message)
    return Delivery(
        id=readable(own_id),
        topic=readable(ours.get(SUBJECT) or message.subject),
        key=None,
        payload=message.data,
        content_type=readable(content_type),
        headers=theirs,
        attempt=attempt,
        created_at=time_in(ours.get(CREATED)) or sent_at,
        raw=message,
        place=place,
    )


def first_id(message: Msg) -> str:
    """What tells a message without an id of its own from every other."""
    given = (message.headers or {}).get(MESSAGE_ID)
    if given:
        return given
    known = message.metadata
    return f"{known.stream}-{known.sequence.stream}-{known.timestamp.isoformat()}"


def place_of(message: Msg) -> str:
    """Where the message is, for people."""
    known = message.metadata
    return f"{known.stream}, sequence {known.sequence.stream}"


def _sent_at(message: Msg) -> datetime | None:
    found: Any = message.metadata.timestamp
    return found if isinstance(found, datetime) else None


def _headers_of_event(headers: dict[str, str]) -> dict[str, str]:
    """The headers, with the names that an outbox has for the attributes of an event."""
    named = {_name(name): unquote(text) if _is_attribute(name) else text for name, text in headers.items()}
    return named if IS_EVENT in named else headers


def _is_attribute(name: str) -> bool:
    return name.lower().startswith(EVENT_PREFIX)


def _name(name: str) -> str:
    return PREFIX + name[len(EVENT_PREFIX) :].lower() if _is_attribute(name) else name
