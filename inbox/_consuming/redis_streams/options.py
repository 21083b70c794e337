"""The consumer's options, checked."""

from typing import Any

from inbox._consuming.leased import options as leased
from inbox_outbox_base.errors.inbox import InvalidOption

_SHORTEST = 1
FEWEST = 100


def name(option: str, value: Any) -> str:
    """A name of a stream or a group."""
    if not isinstance(value, str) or not value:
        raise InvalidOption(f"{option}={value!r}: expected a name")
    return value


def idle(value: Any) -> int:
    """Seconds after which another consumer takes a message."""
    return leased.lease("idle", value, _SHORTEST)


def dead_letter(value: Any, stream: str) -> Any:
    """A stream or a function; by default the stream with ".dead" behind its name."""
    given = f"{stream}.dead" if value is None else value
    return leased.dead_letter(given, name, (stream,), "stream")
