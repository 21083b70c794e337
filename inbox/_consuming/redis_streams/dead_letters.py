"""Copies of a message: in a stream for dead letters, with the reason; and back from there."""

import json
import re
from typing import Any

from inbox._consuming.described import is_of_outbox, object_from
from inbox._listening.outcome import Decision
from inbox_outbox_base.brokers.redis_streams.entry import OUTBOX
from inbox_outbox_base.words.incoming import Delivery

from .delivery import ATTEMPT, CREATED, ID, INBOX, REASON, STREAM, Fields

_LONGEST_REASON = 1_000
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def dead_letter(stream: str, delivery: Delivery, decision: Decision) -> dict[Any, Any]:
    """The entry as it is added to the dead letters: unchanged, with a field that says why it is there."""
    reason = _UNPRINTABLE.sub(" ", decision.reason)[:_LONGEST_REASON].strip() or str(decision.action)
    said = {**_known(delivery), STREAM: stream, ATTEMPT: delivery.attempt, REASON: reason}
    return {**delivery.raw, INBOX: json.dumps(said)}


def moved_back(delivery: Delivery) -> dict[Any, Any]:
    """A dead letter as it is added to a stream, to begin anew."""
    fields: dict[Any, Any] = {name: value for name, value in delivery.raw.items() if name != INBOX.encode()}
    said = _known(delivery)
    return {**fields, INBOX: json.dumps(said)} if said else fields


def _known(delivery: Delivery) -> dict[str, Any]:
    """What the entry's place and id say of a message that no outbox has sent, and will not say of its
    copy."""
    fields: Fields = delivery.raw
    if is_of_outbox(object_from(fields.get(OUTBOX.encode()))):
        return {}
    created = {} if delivery.created_at is None else {CREATED: delivery.created_at.isoformat()}
    return {ID: delivery.id, **created}
