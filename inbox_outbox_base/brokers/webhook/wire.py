"""The names that a message has in a request."""

import hashlib
import re
from urllib.parse import quote, unquote

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
"""The specification's headers."""
OURS, OUR_SIGNATURE = "outbox", "outbox-signature"
"""A JSON object with everything but the payload, and its signature."""
ATTEMPT = "attempt"
"""The number of the send, in that object."""
LARGEST = 1_048_576
"""The most bytes of a body, unless the options say otherwise."""
BYTES = "application/octet-stream"
OF_OUTBOX = "outbox_"
"""How the ids of requests begin that must have our header: since the id is signed, nobody can send such a
request without it."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ATTRIBUTE = re.compile(r"ce_[a-z0-9]+")
_UNESCAPED = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""What CloudEvents' binding does not escape in a header, beside letters and digits."""


def request_id(message_id: str) -> str:
    """The id of the request for a message: the message's behind our prefix, or its digest if it has other
    characters. It has no full stop, which separates what is signed."""
    if _PLAIN.fullmatch(message_id):
        return OF_OUTBOX + message_id
    return f"{OF_OUTBOX}~{hashlib.blake2b(message_id.encode(), digest_size=24).hexdigest()}"


def event_header(name: str, value: str) -> tuple[str, str] | None:
    """The header of an attribute of a CloudEvent, by the binding to HTTP; None if it is no attribute."""
    return (name.replace("_", "-"), quote(value, safe=_UNESCAPED)) if _ATTRIBUTE.fullmatch(name) else None


def event_attribute(name: str, value: str) -> tuple[str, str]:
    """The attribute as an outbox writes it, if a header is one; else the header as it is."""
    written = name.replace("-", "_", 1)
    return (written, unquote(value)) if _ATTRIBUTE.fullmatch(written) else (name, value)
