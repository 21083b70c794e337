"""A message in NATS's terms: the payload as it is, and headers, one of which has what the outbox knows."""

import re
import string
from collections.abc import Mapping
from urllib.parse import quote

from inbox_outbox_base.brokers.described import FOR_TOOLS, deduplication_id, described
from inbox_outbox_base.words.outgoing import IS_EVENT, PREFIX, Envelope

HEADER = "Outbox"
"""The header with everything but the payload, as a JSON object. Others cannot carry any text: NATS cuts off
blanks, and replaces line feeds."""
MESSAGE_ID = "Nats-Msg-Id"
"""The header by which JetStream knows a message that it has stored before."""
CONTENT_TYPE = "content-type"
EVENT_PREFIX = "ce-"
"""The prefix of an attribute of a CloudEvent among NATS's headers."""
LONGEST_HEADERS = 65_535
"""The most bytes that a stream stores of a message's headers."""

_FIRST_LINE = len("NATS/1.0\r\n" + "\r\n")
_AROUND = len(": " + "\r\n")
_PLAIN = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_SAFE = "".join(set(string.punctuation) - set('"%'))


def headers_of(envelope: Envelope) -> dict[str, str]:
    """The message's headers.

    Raises:
        ValueError: NATS cannot carry the message.
    """
    if envelope.payload is None:
        raise ValueError("payload=None (a tombstone), which NATS does not have")
    found = {MESSAGE_ID: deduplication_id(envelope), HEADER: described(envelope)}
    if _PLAIN.fullmatch(envelope.content_type):
        found[CONTENT_TYPE] = envelope.content_type
    theirs = envelope.headers
    if theirs:
        found |= {name: theirs[name] for name in FOR_TOOLS if _PLAIN.fullmatch(theirs.get(name, ""))}
        if IS_EVENT in theirs:
            found |= {
                _attribute(name): quote(text, _SAFE) for name, text in theirs.items() if _is_of_event(name)
            }
    return found


def size_of(headers: Mapping[str, str]) -> int:
    """The bytes of headers on the wire, and in the stream. NATS counts them as part of the message."""
    return _FIRST_LINE + sum(len(name) + len(text) + _AROUND for name, text in headers.items())


def reason_not_a_subject(topic: str) -> str | None:
    """Why nothing can be published with this topic as its subject; None if it can."""
    if not all(topic.split(".")):
        return "a subject has no empty part between dots"
    if "*" in topic or ">" in topic:
        return "* and > stand for other subjects"
    if any(character.isspace() or not character.isprintable() for character in topic):
        return "a subject has neither blanks nor control characters"
    if topic.startswith("$"):
        return "subjects that begin with $ are NATS's own"
    return None


def _is_of_event(name: str) -> bool:
    return name.startswith(PREFIX) and name.removeprefix(PREFIX).isalnum() and name.isascii()


def _attribute(name: str) -> str:
    return EVENT_PREFIX + name.removeprefix(PREFIX)
