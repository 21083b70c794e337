"""The meaning of JetStream's answers."""

import json
from collections.abc import Mapping
from typing import Any

from inbox_outbox_base.brokers.nats.client import Msg
from inbox_outbox_base.words.outgoing import ACCEPTED, Outcome, Refused, Unavailable, Unknown

_TOO_LARGE = {10054, 10097}
"""The message is larger than the stream's max_msg_size, or its headers than 64 KiB."""
_STORE_FAILED = 10077
"""What this means is in the text only: the stream is full, the message is larger than what can be stored, or
the disk has failed, perhaps after the message was written."""
_FULL, _LARGE = "exceeded", "message too large"
_NOT_TAKEN = {10008, 10009, 10023, 10028, 10039, 10047, 10076, 10118}
"""JetStream was not there, not ready or without room, and had not begun to store the message."""
_IN_PROCESS = 10158
"""A copy that was sent before is being stored, and may fail."""
_NO_RESPONDERS = "503"
_SERVERS_FAULT = 500


def outcome_of(answer: Msg, topic: str) -> Outcome:
    """The outcome of a message that was answered like this."""
    if not answer.data and (answer.headers or {}).get("Status") == _NO_RESPONDERS:
        return Unavailable(f"no stream takes the subject {topic!r}, or JetStream is away")
    try:
        found = json.loads(answer.data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return Unknown(f"something other than JetStream answered: {answer.data[:80]!r}")
    error = found.get("error")
    if isinstance(error, dict):
        return _outcome_of_error(error)
    if isinstance(found.get("stream"), str) and isinstance(found.get("seq"), int):
        return ACCEPTED
    return Unknown(f"something other than JetStream answered: {answer.data[:80]!r}")


def _outcome_of_error(error: Mapping[str, Any]) -> Outcome:
    number, code, text = error.get("err_code"), error.get("code"), str(error.get("description", ""))
    reason = f"JetStream: {text} ({number})"
    if number in _TOO_LARGE or (number == _STORE_FAILED and _LARGE in text):
        return Refused(reason)
    if number in _NOT_TAKEN or (number == _STORE_FAILED and _FULL in text):
        return Unavailable(reason)
    is_doubtful = number == _IN_PROCESS or not isinstance(code, int) or code >= _SERVERS_FAULT
    return Unknown(reason) if is_doubtful else Unavailable(reason)
