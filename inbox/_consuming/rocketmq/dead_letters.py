"""Copies of a message: in a topic for dead letters, with the reason; and back from there."""

import re
from typing import Any

from inbox._listening.outcome import Decision
from inbox_outbox_base.brokers.rocketmq.client import protocol
from inbox_outbox_base.brokers.rocketmq.message import ID, group_of
from inbox_outbox_base.words.incoming import Delivery

from .delivery import ATTEMPT, GROUP, LOOKED_AT, REASON, TOPIC

_LONGEST_REASON = 1_000
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_BROKERS = "__"


def dead_letter(topic: str, delivery: Delivery, decision: Decision) -> Any:
    """The message as it is sent to the topic: unchanged, with properties that say why it is there."""
    copy = copy_of(delivery.raw, topic)
    reason = _UNPRINTABLE.sub(" ", decision.reason)[:_LONGEST_REASON].strip()
    copy.user_properties[REASON] = reason or str(decision.action)
    copy.user_properties[TOPIC] = delivery.topic
    copy.user_properties[ATTEMPT] = str(delivery.attempt)
    return copy


def moved_back(delivery: Delivery, topic: str, *, is_fifo: bool) -> Any:
    """A dead letter as it is sent back to a topic, to begin anew."""
    copy = copy_of(delivery.raw, topic)
    for name in (REASON, ATTEMPT, LOOKED_AT):
        copy.user_properties.pop(name, None)
    if is_fifo:
        system = copy.system_properties
        system.message_type = protocol.MessageType.FIFO
        system.message_group = delivery.raw.system_properties.message_group or group_of(delivery)
    return copy


def copy_of(message: Any, topic: str) -> Any:
    """A copy of a message for a topic. It keeps the id from its producer's client, the time of its birth, and
    as a property its message group, if that is its key."""
    system = message.system_properties
    copy = protocol.SendMessageRequest(messages=[{"topic": message.topic, "body": message.body}]).messages[0]
    copy.topic.name = topic
    kept = {name: value for name, value in message.user_properties.items() if not name.startswith(_BROKERS)}
    copy.user_properties.update(kept)
    if system.message_group and ID not in kept:
        copy.user_properties[GROUP] = system.message_group
    copy.system_properties.message_id = system.message_id
    copy.system_properties.keys.extend(system.keys)
    copy.system_properties.message_type = protocol.MessageType.NORMAL
    copy.system_properties.body_encoding = system.body_encoding
    copy.system_properties.body_digest.CopyFrom(system.body_digest)
    copy.system_properties.born_timestamp.CopyFrom(system.born_timestamp)
    copy.system_properties.born_host = system.born_host
    if system.tag:
        copy.system_properties.tag = system.tag
    return copy
