"""Events as lines of the standard logging."""

import logging

from .events import Event, EventKind

LEVELS = {
    EventKind.CLAIMED: logging.DEBUG,
    EventKind.DUPLICATE: logging.DEBUG,
    EventKind.IN_FLIGHT: logging.DEBUG,
    EventKind.STEP_DONE: logging.DEBUG,
    EventKind.SENT: logging.DEBUG,
    EventKind.PURGED: logging.DEBUG,
    EventKind.COMPLETED: logging.INFO,
    EventKind.TAKEN: logging.INFO,
    EventKind.RETRIED: logging.INFO,
    EventKind.REPEATED: logging.INFO,
    EventKind.RELEASED: logging.INFO,
    EventKind.UNDONE: logging.INFO,
    EventKind.STARTED: logging.INFO,
    EventKind.RECONNECTED: logging.INFO,
    EventKind.LOAD_STARTED: logging.INFO,
    EventKind.LOADED: logging.INFO,
    EventKind.LOAD_ENDED: logging.INFO,
    EventKind.FAILED: logging.WARNING,
    EventKind.LOST: logging.WARNING,
    EventKind.ABANDONED: logging.WARNING,
    EventKind.FENCED_WRITE: logging.WARNING,
    EventKind.MISMATCH: logging.WARNING,
    EventKind.TOO_OLD: logging.WARNING,
    EventKind.UNPROTECTED: logging.WARNING,
    EventKind.COMMIT_RESOLVED: logging.WARNING,
    EventKind.REFUSED: logging.WARNING,
    EventKind.UNAVAILABLE: logging.WARNING,
    EventKind.UNKNOWN: logging.WARNING,
    EventKind.DISCONNECTED: logging.WARNING,
    EventKind.REJECTED: logging.WARNING,
    EventKind.LOAD_FAILED: logging.WARNING,
    EventKind.DEAD: logging.ERROR,
    EventKind.HALTED: logging.ERROR,
    EventKind.STEP_UNKNOWN: logging.ERROR,
    EventKind.DEAD_LETTER: logging.ERROR,
}
"""The log level of each kind of event."""


class LogEvents:
    """Logs one line for each event: give it to an inbox as `on_event`.

    The line names consumer and key or the topic, event, attempt and error, so that a key that fails
    repeatedly stands out by its attempt. Ordinary events are DEBUG or INFO; events that may need a look are
    WARNING; those that need an operator (dead, halted, step unknown, dead letter) are ERROR. The record's
    attribute `inbox_event` is the event itself.

    Args:
        logger: the target; None is the logger "inbox.messages".
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("inbox.messages")

    def __call__(self, event: Event) -> None:
        """Log it."""
        level = LEVELS[event.kind]
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", _line(event), extra={"inbox_event": event})


def _line(event: Event) -> str:
    """One line, whatever characters key and error contain."""
    parts = [f"{' '.join(_about(event))}: {event.kind.value.replace('_', ' ')}"]
    if event.count != 1:
        parts.append(f"count={event.count}")
    if event.partitions:
        parts.append(f"partitions={event.partitions}")
    if event.step is not None:
        parts.append(f"step={event.step!r}")
    if event.attempt:
        parts.append(f"attempt={event.attempt}")
    if event.token:
        parts.append(f"token={event.token}")
    if event.token or event.kind is EventKind.LOAD_ENDED:
        parts.append(f"seconds={event.seconds:.3f}")
    if event.digest is not None:
        parts.append(f"digest={event.digest} stored={event.stored_digest}")
    if event.error is not None:
        parts.append(f"error={event.error!r}")
    return " ".join(parts)


def _about(event: Event) -> list[str]:
    about = [] if event.topic is None else [f"topic={event.topic!r}"]
    if event.topic is None or event.consumer:
        about.append(repr(event.consumer))
    if event.run is not None:
        about.append(f"run={event.run!r} batch={event.batch}")
    elif event.key or (event.topic is None and event.count == 1 and event.kind is not EventKind.PURGED):
        about.append(f"key={event.key!r}")
    if event.message_id is not None:
        about.append(f"id={event.message_id!r}")
    return about
