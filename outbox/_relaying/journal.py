"""A relay's log lines, its summary each minute, and its events for monitoring."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from inbox import Event, EventKind
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.monitoring.events import Hooks, kind_of
from inbox_outbox_base.words.counted import counted

from .report import Report

_log = logging.getLogger("outbox.relay")

MINUTE = 60.0
_MOST_AGES = 32
"""The most ages in an event."""


class RelayJournal:
    """Counts and reports what happened to messages, once it is committed."""

    def __init__(self, name: str, hooks: Hooks) -> None:
        self._name = name
        self._hooks = hooks
        self._counts: Counter[str] = Counter()
        self._next = time.monotonic() + MINUTE
        self._next_complaint = 0.0
        self._owned = 0

    def say(self, what: str, *args: object) -> None:
        """Log a line about the relay."""
        _log.info(f"relay %s {what}", self._name, *args)

    def owns(self, buckets: int) -> None:
        """Log how many buckets the relay owns, if the number has changed."""
        if buckets != self._owned:
            self.say("owns %d buckets, %d before", buckets, self._owned)
            self._owned = buckets

    def overlooked(self, messages: int) -> None:
        """Count messages that were found below the marks."""
        self._counts["overlooked"] += messages

    def not_looked(self, error: Exception) -> None:
        """Log, at most once a minute, that the search for overlooked messages failed."""
        now = time.monotonic()
        if now >= self._next_complaint:
            self._next_complaint = now + MINUTE
            _log.warning("the search for overlooked messages failed: %s", reason(error))

    def settled(self, report: Report) -> None:
        """Record a batch whose outcomes have been committed."""
        for death in report.dead:
            _log.error(
                "message %s to %r is dead after %s: %s",
                death.letter.id,
                death.letter.topic,
                counted(death.attempts, "attempt"),
                death.error,
            )
        self._counts["sent"] += len(report.accepted)
        self._counts["not taken"] += len(report.others)
        self._counts["dead"] += len(report.dead)
        if self._hooks:
            for event in events(report):
                self._hooks(event)

    def summarise(self) -> None:
        """Log what was sent, once a minute and only if there was something."""
        now = time.monotonic()
        if now >= self._next:
            counts, self._counts = self._counts, Counter()
            if moved := [f"{number:,} {what}" for what, number in counts.items() if number]:
                self.say("in the last minute: %s", ", ".join(moved))
            self._next = now + MINUTE


def events(report: Report) -> Iterator[Event]:
    """The events of a batch: one for each kind and topic."""
    now = datetime.now(UTC)
    groups: dict[tuple[EventKind, str], list[tuple[Letter, str | None]]] = {}
    for letter in report.accepted:
        groups.setdefault((EventKind.SENT, letter.topic), []).append((letter, None))
    for answer in report.others:
        place = kind_of(answer.outcome), answer.letter.topic
        groups.setdefault(place, []).append((answer.letter, getattr(answer.outcome, "reason", None)))
    for death in report.dead:
        place = EventKind.DEAD_LETTER, death.letter.topic
        groups.setdefault(place, []).append((death.letter, death.error))
    for (kind, topic), group in groups.items():
        letter, reason = group[-1]
        event = Event(
            kind=kind,
            topic=topic,
            count=len(group),
            seconds=report.seconds,
            error=reason,
            ages=_ages([each for each, _ in group], now) if kind is EventKind.SENT else (),
        )
        if event.count == 1:
            event = replace(event, message_id=letter.id, key=letter.key or "", attempt=letter.attempts + 1)
        yield event


def _ages(letters: list[Letter], now: datetime) -> tuple[float, ...]:
    """Of some messages, evenly chosen: those of one batch are much alike."""
    return tuple(_age(each, now) for each in letters[:: math.ceil(len(letters) / _MOST_AGES)])


def _age(letter: Letter, now: datetime) -> float:
    """By this machine's clock, and so never negative; of a delayed message since it was due."""
    due = None if letter.attempts else letter.retry_at
    return max(0.0, (now - (due or letter.created_at)).total_seconds())
