"""Copies of a message: in a queue for dead letters, with the reason; and back from there."""

import base64
import json
import re
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from inbox._listening.outcome import Decision
from inbox_outbox_base.brokers.described import digest
from inbox_outbox_base.brokers.sqs import message as wire
from inbox_outbox_base.brokers.sqs.queue import Queue, is_name
from inbox_outbox_base.words.incoming import Delivery

from .delivery import (
    ATTEMPT,
    ATTRIBUTE,
    BINARY,
    CREATED,
    ID,
    KEY,
    LOOKED_AT,
    MORE,
    QUEUE,
    REASON,
    TEXT,
    TYPE,
    attributes_of,
    is_of_outbox,
    object_in,
    system,
)

_LONGEST_REASON = 1_000
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def dead_letter(source: Queue, target: Queue, delivery: Delivery, decision: Decision) -> dict[str, Any]:
    """The message as it is sent from its queue to that of the dead letters: unchanged, with an attribute that
    says why it is there. If there is no room for the reason, it is cut, or left out; then what SQS knew."""
    reason = _UNPRINTABLE.sub(" ", decision.reason)[:_LONGEST_REASON].strip() or str(decision.action)
    known = _known(delivery)
    said = {**known, QUEUE: source.name, ATTEMPT: delivery.attempt, REASON: reason}
    once = str(delivery.raw.get("MessageId"))
    entry = _copy(target, delivery, said, once=once)
    while wire.size_of(entry) > target.largest and said:
        reason = reason[: len(reason) // 2]
        said = {**said, REASON: reason} if reason else known if said != known else {}
        entry = _copy(target, delivery, said, once=once)
    return entry


def moved_back(target: Queue, delivery: Delivery) -> dict[str, Any] | None:
    """A dead letter as it is sent back to a queue, to begin anew; None if it is too large for it."""
    return _fitting(target, delivery, _known(delivery)) or _fitting(target, delivery, {})


def has_its_id(entry: Mapping[str, Any]) -> bool:
    """Whether a copy has the id that the message had: SQS gives a new one to what no outbox has sent."""
    return not entry["MessageAttributes"].keys().isdisjoint((wire.ATTRIBUTE, ATTRIBUTE))


def looked_at(letters: Queue, delivery: Delivery, mark: str) -> dict[str, Any] | None:
    """A dead letter that stays as it is written anew; None if the queue has no room for the mark."""
    said = object_in(attributes_of(delivery.raw), ATTRIBUTE)
    source = source_of(delivery.raw)
    said |= {**_known(delivery), **({} if source is None else {QUEUE: source}), LOOKED_AT: mark}
    said.pop(MORE, None)
    return _fitting(letters, delivery, said)


def is_looked_at(letter: Mapping[str, Any], mark: str) -> bool:
    """Whether a dead letter was written anew with this mark."""
    return object_in(attributes_of(letter), ATTRIBUTE).get(LOOKED_AT) == mark


def source_of(letter: Mapping[str, Any]) -> str | None:
    """The queue from which a dead letter came, whether our consumer or SQS itself has put it away."""
    said = object_in(attributes_of(letter), ATTRIBUTE).get(QUEUE)
    name = said or (system(letter, "DeadLetterQueueSourceArn") or "").rpartition(":")[2]
    return name if is_name(name) else None


def _fitting(target: Queue, delivery: Delivery, said: Mapping[str, Any]) -> dict[str, Any] | None:
    entry = _copy(target, delivery, said, once=token_hex(8))
    return entry if wire.size_of(entry) <= target.largest else None


def _known(delivery: Delivery) -> dict[str, Any]:
    """What SQS itself knows of a message that no outbox has sent, and will not know of its copy."""
    attributes = attributes_of(delivery.raw)
    if is_of_outbox(attributes):
        return {}
    created = {} if delivery.created_at is None else {CREATED: delivery.created_at.isoformat()}
    group = object_in(attributes, ATTRIBUTE).get(KEY, system(delivery.raw, "MessageGroupId"))
    first = object_in(attributes, ATTRIBUTE).get(ID) or delivery.raw.get("MessageId")
    return {ID: first, **created, KEY: group}


def _copy(target: Queue, delivery: Delivery, said: Mapping[str, Any], *, once: str) -> dict[str, Any]:
    """A copy for a queue; a FIFO queue drops further copies with the same `once`."""
    found = attributes_of(delivery.raw)
    found.pop(ATTRIBUTE, None)
    names, most = sorted(found, key=lambda name: name != wire.ATTRIBUTE), wire.MOST_ATTRIBUTES - bool(said)
    kept, more = names[:most], names[most:]
    attributes = {name: _plain(found[name]) for name in kept}
    if more:
        said = {**said, MORE: {name: _written(found[name]) for name in more}}
    if said:
        attributes[ATTRIBUTE] = wire.as_attribute(json.dumps(said, separators=(",", ":")))
    entry: dict[str, Any] = {"MessageBody": delivery.raw.get("Body", ""), "MessageAttributes": attributes}
    if target.is_fifo:
        group = system(delivery.raw, "MessageGroupId")
        entry["MessageGroupId"] = group or wire.group_of(
            delivery.id if delivery.key is None else delivery.key
        )
        entry["MessageDeduplicationId"] = digest(target.name, once)
    return entry


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """An attribute as it is sent."""
    content = "BinaryValue" if "BinaryValue" in value else "StringValue"
    return {"DataType": value["DataType"], content: value.get(content, "")}


def _written(value: Mapping[str, Any]) -> dict[str, str]:
    """An attribute as JSON."""
    if "BinaryValue" in value:
        return {TYPE: value["DataType"], BINARY: base64.b64encode(value["BinaryValue"]).decode()}
    return {TYPE: value["DataType"], TEXT: value.get("StringValue", "")}
