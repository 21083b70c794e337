"""The consumer's options, checked."""

from datetime import timedelta
from typing import Any

from inbox._consuming.leased import options as leased
from inbox_outbox_base.brokers.sqs.queue import Queue, is_name
from inbox_outbox_base.errors.inbox import InvalidOption

MOST = 10
"""The most messages in one answer of SQS."""
_SHORTEST = 3


def name(option: str, value: Any) -> str:
    """A name of a queue."""
    if not is_name(value):
        raise InvalidOption(f"{option}={value!r}: expected the name of a queue: letters, digits, - and _")
    return str(value)


def visibility(value: float | timedelta) -> int:
    """Seconds for which a message is hidden."""
    return leased.lease("visibility", value, _SHORTEST)


def dead_letter(value: Any, queue: str) -> Any:
    """A queue, a function or None."""
    return leased.dead_letter(value, name, (queue,), "queue")


def check_deliveries(queue: Queue, max_attempts: int | None) -> None:
    """SQS must not bury a message before its attempts are used up."""
    if max_attempts is not None and 0 < queue.deliveries <= max_attempts:
        raise InvalidOption(
            f"max_attempts={max_attempts}: queue {queue.name!r} has maxReceiveCount={queue.deliveries} in "
            f"its RedrivePolicy, so SQS moves a message to its dead letters after {queue.deliveries} "
            "deliveries, without the reason; increase maxReceiveCount, or use fewer attempts"
        )
