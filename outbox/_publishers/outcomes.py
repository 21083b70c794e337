"""What publishers answer, as outcomes that consist of text and numbers."""

import logging
import re
from datetime import timedelta
from typing import Any

from inbox_outbox_base.checks.options import LONGEST_WAIT, shown
from inbox_outbox_base.errors.secrets import strike_out
from inbox_outbox_base.monitoring.events import describe
from inbox_outbox_base.words.outgoing import Accepted, Failed, Outcome, Refused, Unavailable, Unknown

LONGEST_ERROR = 4_000
"""The most characters of a reason that are kept."""

_log = logging.getLogger("outbox.relay")
_LONGEST_SHOWN = 80
_CUT_ADDRESS = re.compile(r"://\S*$")
"""An address at the end of a text that was cut: a password that was cut, too, would not be found."""


def as_outcome(answer: Any) -> Outcome:
    """The answer with its reason as text without passwords, and its delay as seconds, at most a day; whatever
    is not an Outcome is Unknown. Every answer passes here once before anything else reads it, so none can
    make a relay fail."""
    try:
        if isinstance(answer, Outcome):
            return _plain(answer)
    except Exception:  # noqa: BLE001 - an object whose attributes raise is no outcome either
        _log.debug("an outcome cannot be read", exc_info=True)
    given = in_words(answer)
    _log.error("the publisher gave %s, which is not an Outcome", given)
    return Unknown(f"the publisher gave {given}, which is not an Outcome")


def in_words(value: Any) -> str:
    """The value as it is shown in a reason: short, and without passwords."""
    return _text(shown(value, LONGEST_ERROR))[:_LONGEST_SHOWN]


def _plain(outcome: Outcome) -> Outcome:
    match outcome:
        case Accepted():
            return outcome
        case Refused():
            return Refused(_text(outcome.reason))
        case Unknown():
            return Unknown(_text(outcome.reason))
        case _:
            kind = Failed if isinstance(outcome, Failed) else Unavailable
            return kind(_text(outcome.reason), _seconds(outcome.retry_after))


def _text(reason: Any) -> str:
    """The reason as text that any database can store; empty if there is none."""
    if reason is None:
        return ""
    if isinstance(reason, BaseException):
        text = describe(reason)
    elif isinstance(reason, bytes):
        text = reason.decode(errors="backslashreplace")
    else:
        try:
            text = str(reason)
        except Exception:  # noqa: BLE001 - without text, its type has to do
            text = f"<{type(reason).__name__}>"
    if len(text) > 2 * LONGEST_ERROR:  # to look for passwords takes long in a long text
        text = _CUT_ADDRESS.sub("", text[: 2 * LONGEST_ERROR])
    clean = strike_out(text).encode(errors="backslashreplace").decode()
    return clean.replace("\0", "\\x00")[:LONGEST_ERROR]


def _seconds(delay: Any) -> float | None:
    """The delay in seconds; None, and with that the relay's backoff, if it is no time."""
    number = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(number, int | float) and number >= 0:
        return float(min(number, LONGEST_WAIT))
    return None
