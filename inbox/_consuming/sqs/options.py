"""The consumer's options, checked."""

from datetime import timedelta
from typing import Any

from inbox_outbox_base.brokers.sqs.queue import Queue, is_name
from inbox_outbox_base.checks.options import count, seconds
from inbox_outbox_base.errors.inbox import InvalidOption

MOST = 10
"""The most messages in one answer of SQS."""
_SHORTEST = 3
_LONGEST = timedelta(hours=11)


def name(option: str, value: Any) -> str:
    """A name of a queue."""
    if not is_name(value):
        raise InvalidOption(f"{option}={value!r}: expected the name of a queue: letters, digits, - and _")
    return str(value)


def prefetch(value: int | None, concurrency: int) -> int:
    """How many messages to hold."""
    return count("prefetch", max(MOST, 2 * concurrency) if value is None else value)


def visibility(value: float | timedelta) -> int:
    """Whole seconds, since SQS takes no others, and time enough to renew it."""
    given = seconds("visibility", value, _LONGEST.total_seconds())
    if given < _SHORTEST or given != int(given):
        raise InvalidOption(f"visibility={value!r}: expected whole seconds, {_SHORTEST} or more")
    return int(given)


def dead_letter(value: Any, queue: str) -> Any:
    """A queue, a function or None."""
    if isinstance(value, str):
        if name("dead_letter", value) == queue:
            raise InvalidOption(f"dead_letter={value!r}: the consumer would take its own dead letters")
    elif value is not None and not callable(value):
        raise InvalidOption(f"dead_letter={value!r}: expected the name of a queue, or a function")
    return value


def check_deliveries(queue: Queue, max_attempts: int | None) -> None:
    """SQS must not bury a message before its attempts are used up."""
    if max_attempts is not None and 0 < queue.deliveries <= max_attempts:
        raise InvalidOption(
            f"max_attempts={max_attempts}: queue {queue.name!r} has maxReceiveCount={queue.deliveries} in "
            f"its RedrivePolicy, so SQS moves a message to its dead letters after {queue.deliveries} "
            "deliveries, without the reason; increase maxReceiveCount, or use fewer attempts"
        )
