"""A topic for dead letters, with the reason."""

import re
import time
from typing import Any

from inbox._listening.outcome import Decision
from inbox_outbox_base.brokers.rocketmq.client import protocol
from inbox_outbox_base.words.incoming import Delivery

from .delivery import ATTEMPT, REASON, TOPIC

_LONGEST_REASON = 1_000
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_BROKERS = "__"


def dead_letter(topic: str, delivery: Delivery, decision: Decision) -> Any:
    """The message as it is sent to the topic: unchanged, with properties that say why it is there.

    It keeps the id from its producer's client.
    """
    message: Any = delivery.raw
    system = message.system_properties
    copy = protocol.SendMessageRequest(messages=[{"topic": message.topic, "body": message.body}]).messages[0]
    copy.topic.name = topic
    kept = {name: value for name, value in message.user_properties.items() if not name.startswith(_BROKERS)}
    copy.user_properties.update(kept)
    reason = _UNPRINTABLE.sub(" ", decision.reason)[:_LONGEST_REASON].strip()
    copy.user_properties[REASON] = reason or str(decision.action)
    copy.user_properties[TOPIC] = delivery.topic
    copy.user_properties[ATTEMPT] = str(delivery.attempt)
    copy.system_properties.message_id = system.message_id
    copy.system_properties.keys.extend(system.keys)
    copy.system_properties.message_type = protocol.MessageType.NORMAL
    copy.system_properties.body_encoding = system.body_encoding
    copy.system_properties.body_digest.CopyFrom(system.body_digest)
    copy.system_properties.born_timestamp.FromNanoseconds(time.time_ns())
    copy.system_properties.born_host = system.born_host
    if system.tag:
        copy.system_properties.tag = system.tag
    return copy
