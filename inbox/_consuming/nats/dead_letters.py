"""Copies of a message: in another stream, with the reason; and back from there."""

import json
import re
from typing import Any

from inbox._consuming.described import is_of_outbox, object_from
from inbox._listening.outcome import Decision
from inbox_outbox_base.brokers.described import digest
from inbox_outbox_base.brokers.nats.client import Msg
from inbox_outbox_base.brokers.nats.message import (
    HEADER,
    LONGEST_HEADERS,
    MESSAGE_ID,
    reason_not_a_subject,
    size_of,
)
from inbox_outbox_base.words.incoming import Delivery

from .delivery import ATTEMPT, CREATED, ID, OURS, REASON, STREAM, SUBJECT, first_id, place_of

_LONGEST_REASON = 1_000
_COMMANDS = ("nats-expected-", "nats-rollup", "nats-ttl", "nats-schedule")
"""Headers that would tell the other stream to do something."""
_compact = json.JSONEncoder(separators=(",", ":")).encode
"""With escapes: a header carries it."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def dead_letter(delivery: Delivery, decision: Decision, largest: int) -> dict[str, str]:
    """The headers of a dead letter, whose payload is the message's. If there is no room for the reason within
    `largest` bytes, it is cut, or left out."""
    message: Msg = delivery.raw
    reason = _UNPRINTABLE.sub(" ", decision.reason)[:_LONGEST_REASON].strip() or str(decision.action)
    theirs = _copied(message)
    said: dict[str, Any] = {
        **_known(message, delivery),
        STREAM: message.metadata.stream,
        SUBJECT: message.subject,
        ATTEMPT: delivery.attempt,
        REASON: reason,
    }
    headers = {**theirs, OURS: _compact(said)}
    while _is_too_large(message, headers, largest) and said:
        reason = reason[: len(reason) // 2]
        said = {**said, REASON: reason} if reason else {}
        headers = {**theirs, OURS: _compact(said)} if said else theirs
    return headers


def moved_back(delivery: Delivery) -> dict[str, str]:
    """The headers of a dead letter that is published again, to begin anew."""
    said = _known(delivery.raw, delivery)
    return {**_copied(delivery.raw), **({OURS: _compact(said)} if said else {})}


def source_of(letter: Msg) -> str | None:
    """The subject with which a dead letter was first published."""
    found = object_from((letter.headers or {}).get(OURS)).get(SUBJECT)
    return found if isinstance(found, str) and reason_not_a_subject(found) is None else None


def _copied(message: Msg) -> dict[str, str]:
    """The headers of a copy, without those that would tell its stream to do something."""
    found = {
        name: text
        for name, text in (message.headers or {}).items()
        if name not in (OURS, MESSAGE_ID) and not name.lower().startswith(_COMMANDS)
    }
    # A copy that is sent twice is stored once.
    found[MESSAGE_ID] = digest(place_of(message), message.metadata.timestamp.isoformat())
    return found


def _known(message: Msg, delivery: Delivery) -> dict[str, str]:
    """What NATS itself knows of a message that no outbox has sent, and will not know of its copy."""
    headers = message.headers or {}
    if is_of_outbox(object_from(headers.get(HEADER))):
        return {}
    created = {} if delivery.created_at is None else {CREATED: delivery.created_at.isoformat()}
    return {ID: object_from(headers.get(OURS)).get(ID) or first_id(message), **created}


def _is_too_large(message: Msg, headers: dict[str, str], largest: int) -> bool:
    size = size_of(headers)
    return size > LONGEST_HEADERS or size + len(message.data) > largest
