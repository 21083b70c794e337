"""What monitoring is told, as lines of the standard logging."""

import logging

from ._events import Event, EventKind

LEVELS = {
    EventKind.CLAIMED: logging.DEBUG,
    EventKind.DUPLICATE: logging.DEBUG,
    EventKind.IN_FLIGHT: logging.DEBUG,
    EventKind.STEP_DONE: logging.DEBUG,
    EventKind.COMPLETED: logging.INFO,
    EventKind.RELEASED: logging.INFO,
    EventKind.UNDONE: logging.INFO,
    EventKind.FAILED: logging.WARNING,
    EventKind.LOST: logging.WARNING,
    EventKind.ABANDONED: logging.WARNING,
    EventKind.FENCED_WRITE: logging.WARNING,
    EventKind.MISMATCH: logging.WARNING,
    EventKind.TOO_OLD: logging.WARNING,
    EventKind.UNPROTECTED: logging.WARNING,
    EventKind.DEAD: logging.ERROR,
    EventKind.HALTED: logging.ERROR,
    EventKind.STEP_UNKNOWN: logging.ERROR,
}
"""How loud each kind of event is."""


class LogEvents:
    """Logs one line for each event: give it to an inbox as `on_event`.

    The line names consumer, key, event, attempt and error, so that a key that fails again and again stands
    out by its attempt. What is ordinary is DEBUG or INFO; what may need a look is WARNING; what will not pass
    by itself (dead, halted, step unknown) is ERROR. The record's attribute `inbox_event` is the event itself.

    Args:
        logger: where to; None is the logger "inbox.messages".
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("inbox.messages")

    def __call__(self, event: Event) -> None:
        """Log it."""
        level = LEVELS[event.kind]
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", _line(event), extra={"inbox_event": event})


def _line(event: Event) -> str:
    """One line, whatever characters key and error are made of."""
    parts = [f"{event.consumer!r} key={event.key!r}: {event.kind.value.replace('_', ' ')}"]
    if event.step is not None:
        parts.append(f"step={event.step!r}")
    if event.attempt:
        parts.append(f"attempt={event.attempt}")
    if event.token:
        parts.append(f"token={event.token}")
        parts.append(f"seconds={event.seconds:.3f}")
    if event.error is not None:
        parts.append(f"error={event.error!r}")
    return " ".join(parts)
