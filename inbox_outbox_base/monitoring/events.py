"""Monitoring events: one small object for everything that happens to messages, in every part."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from inbox_outbox_base.errors import groups
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.incoming import Verdict
from inbox_outbox_base.words.outgoing import Outcome, Refused, Unknown

_log = logging.getLogger("inbox.events")


LONGEST_ERROR = 2_000
"""The most characters of an error to keep."""


class EventKind(StrEnum):
    """The kind of an event.

    In status-table mode, a run that begins with `CLAIMED` or `UNPROTECTED` ends with exactly one of
    `COMPLETED`, `FAILED`, `RELEASED`, `DEAD`, `HALTED` and `ABANDONED`, in the same thread or task.
    """

    CLAIMED = "claimed"
    """A handler begins."""
    DUPLICATE = "duplicate"
    IN_FLIGHT = "in_flight"
    """Another worker has the message: it will be redelivered."""
    MISMATCH = "mismatch"
    TOO_OLD = "too_old"
    COMPLETED = "completed"
    FAILED = "failed"
    """The handler raised; the message will be redelivered."""
    RELEASED = "released"
    """Given back unfinished, which does not count as an attempt."""
    DEAD = "dead"
    HALTED = "halted"
    LOST = "lost"
    """The lease ran out, or an operator took the claim away, while the handler was running."""
    ABANDONED = "abandoned"
    """The handler has ended, but its end was not recorded: the claim is lost or the store does not answer."""
    FENCED_WRITE = "fenced_write"
    """A write was refused because its claim has lost the message."""
    STEP_DONE = "step_done"
    STEP_UNKNOWN = "step_unknown"
    """A step that must not be repeated has ended, and nobody knows whether its call has happened."""
    UNDONE = "undone"
    """A finished step was undone, because the handler gave up."""
    UNPROTECTED = "unprotected"
    """A handler begins without a claim, as the options for such cases allow."""
    TAKEN = "taken"
    """Exactly-once path: a new message and the writes of its body have committed."""
    RETRIED = "retried"
    """Exactly-once path: a transient error rolled the transaction back, and the handler tries again."""
    COMMIT_RESOLVED = "commit_resolved"
    """The answer to a COMMIT was lost; the database was asked, and it had committed."""
    REPEATED = "repeated"
    """Outbox: a message was published with an id that the outbox knows, and was not added."""
    SENT = "sent"
    """Relay: the broker has accepted messages."""
    REFUSED = "refused"
    """Relay: the broker has refused messages, and would do so again."""
    UNAVAILABLE = "unavailable"
    """Relay: messages were not sent, and will be retried."""
    UNKNOWN = "unknown"
    """Relay: messages may have arrived; they are sent again with the same id."""
    DEAD_LETTER = "dead_letter"
    """Relay: messages became dead letters."""
    PURGED = "purged"
    """Purge: rows of a consumer were deleted, because they were older than its retention."""
    STARTED = "started"
    """A broker's consumer is connected for the first time."""
    DISCONNECTED = "disconnected"
    """A broker's consumer has lost its connection, and tries to get another one."""
    RECONNECTED = "reconnected"
    """A broker's consumer is connected again."""
    LOAD_STARTED = "load_started"
    """Spark: the driver has begun to write a batch."""
    LOADED = "loaded"
    """Spark: rows of a batch were new, and have committed."""
    REJECTED = "rejected"
    """Spark: the target has refused rows of a batch, and they are in `inbox_rejected`."""
    LOAD_ENDED = "load_ended"
    """Spark: all rows of a batch have committed."""
    LOAD_FAILED = "load_failed"
    """Spark: a batch was given up; partitions that have committed stay."""


OF_VERDICT = {
    Verdict.DUPLICATE: EventKind.DUPLICATE,
    Verdict.IN_FLIGHT: EventKind.IN_FLIGHT,
    Verdict.MISMATCH: EventKind.MISMATCH,
    Verdict.TOO_OLD: EventKind.TOO_OLD,
    Verdict.DEAD: EventKind.DEAD,
    Verdict.HALTED: EventKind.HALTED,
}
"""The event of a message that is not run."""


def kind_of(outcome: Outcome) -> EventKind:
    """The event of a message that a broker has not accepted."""
    if isinstance(outcome, Refused):
        return EventKind.REFUSED
    return EventKind.UNKNOWN if isinstance(outcome, Unknown) else EventKind.UNAVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that has happened to one message, or to several alike.

    Attributes:
        consumer: the inbox's consumer; empty for a relay and a broker's consumer.
        key: the message's key, as it is stored; empty if the event is about several messages.
        attempt: the message's attempt, from 1; 0 if attempts are not counted here.
        token: the claim's token; 0 if there is none.
        seconds: since the claim or the transaction began; for a step or a load, how long it took; of
            `accept`, `accept_many` and `take`, from their answer to the COMMIT.
        step: the step that the event is about.
        error: what went wrong, as text.
        topic: the topic of outgoing messages; of a broker's consumer, its queue or topics.
        message_id: the id of an outgoing message, if the event is about a single one.
        digest: of a mismatch, the digest of the payload that was delivered, in hexadecimal.
        stored_digest: the digest of the payload with which the key was taken.
        count: how many messages the event is about. A relay sends an event for each topic and batch, a purge
            for each batch, `accept_many` for each verdict, a load for each kind.
        ages: of at most 32 of the sent messages, evenly chosen, the seconds since each was published, or due
            if it was delayed.
        run, batch: of a load, as in its report.
        partitions: of a load that has ended, how many partitions had rows.
    """

    kind: EventKind
    consumer: str = ""
    key: str = ""
    attempt: int = 0
    token: int = 0
    seconds: float = 0.0
    step: str | None = None
    error: str | None = None
    topic: str | None = None
    message_id: str | None = None
    count: int = 1
    digest: str | None = None
    stored_digest: str | None = None
    ages: tuple[float, ...] = field(default=(), repr=False)
    run: str | None = None
    batch: int = 0
    partitions: int = 0


def digests_of(verdict: Verdict, digest: bytes | None, stored_digest: bytes | None) -> dict[str, Any]:
    """Both digests, for the event of a mismatch; nothing for that of another verdict."""
    if verdict is not Verdict.MISMATCH or digest is None or stored_digest is None:
        return {}
    return {"digest": digest.hex(), "stored_digest": stored_digest.hex()}


Hook = Callable[[Event], object]
"""Called with each event, in the thread or task of the message's handler (for `LOST`, of the heartbeat)."""


class Hooks:
    """All hooks of one object."""

    def __init__(
        self, hooks: Hook | Iterable[Hook] | None, *, error: type[InvalidOption] = InvalidOption
    ) -> None:
        given = () if hooks is None else hooks
        if not callable(given) and not isinstance(given, Iterable):
            raise error(f"on_event={hooks!r}: expected a function or a list of functions")
        self._hooks: tuple[Hook, ...] = (given,) if callable(given) else tuple(given)
        for hook in self._hooks:
            if not callable(hook):
                raise error(f"on_event={hooks!r}: {hook!r} is not a function")

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def has(self, kind: type) -> bool:
        """Whether one of them is of this class."""
        return any(isinstance(hook, kind) for hook in self._hooks)

    def methods(self, name: str) -> list[Callable[..., Any]]:
        """The methods of this name that hooks have."""
        found = (getattr(hook, name, None) for hook in self._hooks)
        return [each for each in found if callable(each)]

    def __call__(self, event: Event) -> None:
        """Call all hooks; an error in one is logged and does not affect the message."""
        for hook in self._hooks:
            try:
                hook(event)
            except Exception:  # noqa: BLE001 - monitoring must not hurt what it watches
                _log.exception("on_event= failed on %s", event)


def describe(error: BaseException) -> str:
    """An error as it is stored, a group with its errors; characters that a database cannot store are escaped
    as in Python."""
    text, separator = "", ""
    for each in groups.walk(error):
        text += separator + _described(each)
        separator = ": " if isinstance(each, BaseExceptionGroup) else "; "
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def _described(error: BaseException) -> str:
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an error without text must not block the message's end
        said = ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def stored(error: BaseException) -> str:
    """The same, shortened to fit its column."""
    return describe(error)[:LONGEST_ERROR]
