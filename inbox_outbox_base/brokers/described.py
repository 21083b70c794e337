"""What an outbox knows of a message, as one JSON object, for brokers whose own fields cannot carry it."""

import hashlib
import json

from inbox_outbox_base.words.outgoing import Envelope

ID, TOPIC, KEY, CREATED, TYPE, HEADERS = "id", "topic", "key", "created", "type", "headers"
"""The names in the object."""
FOR_TOOLS = ("traceparent", "tracestate")
"""Headers that are also fields of their own, for tools that know nothing of an outbox."""

_compact = json.JSONEncoder(separators=(",", ":")).encode
"""With escapes: any text is carried."""


def described(envelope: Envelope, **more: object) -> str:
    """Everything but the payload, in ASCII without line feeds; a broker's own names may follow."""
    own: dict[str, object] = {
        ID: envelope.id,
        TOPIC: envelope.topic,
        CREATED: envelope.created_at.isoformat(),
        TYPE: envelope.content_type,
    }
    own |= {} if envelope.key is None else {KEY: envelope.key}
    own |= {HEADERS: dict(envelope.headers)} if envelope.headers else {}
    return _compact(own | more)


def deduplication_id(envelope: Envelope) -> str:
    """A short text that only this message has. A producer may use an id of its own again, or in two topics:
    a broker that compared ids would drop the second message."""
    return digest(envelope.id, envelope.topic, envelope.created_at.isoformat())


def digest(*parts: str) -> str:
    """A short text that stands for these."""
    return hashlib.blake2b(_compact(parts).encode(), digest_size=24).hexdigest()
