"""The meaning of an endpoint's answers."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from time import time

from inbox_outbox_base.words.outgoing import ACCEPTED, Failed, Outcome, Refused, Unavailable

_NEVER = {400, 413, 415, 422}
"""No later send of such a message can succeed."""
_FOR_ONE = {408, 409, 425}
"""The endpoint takes other messages."""
_OF_ALL = {502, 503, 504}
"""The server, or one before it, is down or overloaded: others would get the same answer."""
_SERVERS = range(500, 600)
_TAKEN = range(200, 300)
_LONGEST_DELAY = 20


def outcome_of(status: int, text: str, retry_after: float | None) -> Outcome:
    """The outcome of a message.

    Args:
        status: of the response.
        text: the beginning of its body.
        retry_after: seconds that it asks to wait.
    """
    if status in _TAKEN:
        return ACCEPTED
    reason = f"HTTP {status}" + (f": {text}" if text else "")
    if status in _NEVER:
        return Refused(reason)
    if status in _SERVERS and status not in _OF_ALL:
        return Failed(reason, retry_after)
    return Unavailable(reason, retry_after)


def says_it_for_all(status: int) -> bool:
    """Whether the other messages of the batch would get the same answer."""
    is_success = status in _TAKEN
    is_own = status in _NEVER or status in _FOR_ONE or (status in _SERVERS and status not in _OF_ALL)
    return not is_success and not is_own


def retry_after(headers: Sequence[tuple[bytes, bytes]]) -> float | None:
    """The seconds that a response asks to wait, which it gives as a number or as a date."""
    for name, value in headers:
        if name.lower() == b"retry-after":
            text = value.decode("latin-1").strip()
            if text.isascii() and text.isdecimal():
                return float(text) if len(text) <= _LONGEST_DELAY else None
            with suppress(ValueError, TypeError, OverflowError):
                date = parsedate_to_datetime(text)
                date = date if date.tzinfo else date.replace(tzinfo=UTC)
                return max(0.0, date.timestamp() - time())
    return None
