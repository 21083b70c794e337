"""Options that these consumers share, checked."""

from collections.abc import Callable, Container
from datetime import timedelta
from typing import Any

from inbox_outbox_base.checks.options import seconds
from inbox_outbox_base.errors.inbox import InvalidOption

_LONGEST = timedelta(hours=11)


def lease(option: str, value: float | timedelta, shortest: int) -> int:
    """Whole seconds, since the brokers take no others, and time enough to renew them."""
    given = seconds(option, value, _LONGEST.total_seconds())
    if given < shortest or given != int(given):
        raise InvalidOption(f"{option}={value!r}: expected whole seconds, {shortest} or more")
    return int(given)


def dead_letter(value: Any, name: Callable[[str, Any], str], consumed: Container[str], what: str) -> Any:
    """The name of a queue or topic, as `name` checks it, which is not among the consumed ones; a function; or
    None."""
    if isinstance(value, str):
        if name("dead_letter", value) in consumed:
            raise InvalidOption(f"dead_letter={value!r}: the consumer would take its own dead letters")
    elif value is not None and not callable(value):
        raise InvalidOption(f"dead_letter={value!r}: expected the name of a {what}, or a function")
    return value
