"""Batches on their way to the broker."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

from inbox import Backoff
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.errors.secrets import strike_out
from inbox_outbox_base.words.outgoing import Accepted, Envelope, Outcome, Refused, Unknown

from .batch import Batch, Demand
from .report import Answer, Report

log = logging.getLogger("outbox.relay")

_PAUSE = Backoff(first=0.25, longest=2)
"""The backoff from a topic the broker rejects; once it accepts again, a new message may wait this long."""
_FIRST_BATCH = 100
_QUICK, _SLOW = 0.5, 2.0
"""Seconds in which a batch should be sent: a larger one delays the lease's renewal and a stop too long."""


_SAID_EVERY = 60.0
"""Seconds after which the log repeats that the broker rejects a topic."""


@dataclass(slots=True)
class _Rest:
    rejections: int
    until: float
    said: float = -math.inf
    """When this was last logged."""


class Pace:
    """Chooses the size of a batch, and how long to back off from topics the broker rejects."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = min(_FIRST_BATCH, most)
        self._rests: dict[str, _Rest] = {}

    def demand(self) -> Demand:
        """The limits of the next batch; a topic that has rested is tried with a single message."""
        now = time.monotonic()
        rests = {topic: rest.until - now for topic, rest in self._rests.items()}
        return Demand(self._size, rests)

    def wake(self) -> None:
        """Let every topic be tried immediately."""
        for rest in self._rests.values():
            rest.until = 0.0

    def learn(self, report: Report, letters: list[Letter], seconds: float) -> None:
        """Adapt to the outcomes of a batch."""
        rejected = report.rejected()
        if rejected:
            self._let_rest(rejected, report.reasons())
        if self._rests:
            sent = {letter.envelope.topic for letter in report.accepted}
            sent |= {answer.letter.envelope.topic for answer in report.others}
            for topic in (sent - rejected.keys()) & self._rests.keys():
                del self._rests[topic]
                log.info("topic %r is taken again", topic)
        if seconds > _SLOW:
            self._size = max(1, self._size // 2)
        elif len(letters) >= self._size and seconds < _QUICK:
            self._size = min(self._most, self._size * 2)

    def _let_rest(self, rejected: dict[str, float], reasons: dict[str, str]) -> None:
        now = time.monotonic()
        for topic, asked in rejected.items():
            rest = self._rests.setdefault(topic, _Rest(0, 0.0))
            rest.rejections += 1
            rest.until = now + max(_PAUSE.delay(rest.rejections), min(asked, _PAUSE.longest))
            if now >= rest.said + _SAID_EVERY:
                rest.said = now
                log.warning(
                    "topic %r is not taken by the broker, retrying: %s", topic, strike_out(reasons[topic])
                )


class Sending:
    """One batch being sent: which messages are next, and the outcomes of the others."""

    def __init__(self, batch: Batch, give_up_after: float | None) -> None:
        self.report = Report(exhausted=batch.exhausted)
        self.begun = time.monotonic()
        self._give_up_after = math.inf if give_up_after is None else give_up_after
        self._failed: set[str] = set()
        self._rejected: dict[str, float] = {}

    def wave(self, letters: list[Letter]) -> list[Letter]:
        """The messages of a wave to send. Left out: those behind an unsent message of their key, and keyed
        ones whose topic was rejected earlier in this batch."""
        if not (self._failed or self._rejected):
            return letters
        leaving = []
        for letter in letters:
            if letter.envelope.topic in self._rejected and letter.key is not None:
                self._failed.add(letter.key)
            elif letter.key not in self._failed:
                leaving.append(letter)
        return leaving

    def send(self, letters: list[Letter], hand_over: Callable[[list[Envelope]], Iterable[Outcome]]) -> None:
        """Pass a wave to the publisher, and record its outcomes.

        A message without a usable outcome, because the publisher raised, was interrupted, or gave too few,
        is unknown. If it gave too many, they cannot be matched to messages: all are unknown.
        """
        answers: list[Outcome] = []
        silence = Unknown("the publisher gave no answer")
        try:
            # If it raises in the middle, the outcomes it gave before are kept.
            answers.extend(islice(hand_over([letter.envelope for letter in letters]), len(letters) + 1))
        except Exception as error:
            log.exception("the publisher failed")
            silence = Unknown(f"{type(error).__name__}: {error}")
        finally:  # an interruption is not swallowed, and the outcomes given so far are written
            if len(answers) > len(letters):
                answers, silence = [], _unknown("more answers than messages")
            failed = len(self.report.others)
            for letter, answer in zip(letters, chain(answers, repeat(silence)), strict=False):
                if isinstance(answer, Accepted):
                    self.report.accepted.append(letter)
                else:
                    self._fail(letter, _checked(answer))
            if len(self.report.others) > failed:
                self._rejected = self.report.rejected()

    def _fail(self, letter: Letter, outcome: Outcome) -> None:
        is_last = letter.failing_for >= self._give_up_after and not isinstance(outcome, Refused)
        self.report.others.append(Answer(letter, outcome, is_last))
        if letter.key is not None:
            self._failed.add(letter.key)


def _checked(answer: Any) -> Outcome:
    return answer if isinstance(answer, Outcome) else _unknown(f"{answer!r:.80}, which is not an Outcome")


def _unknown(what: str) -> Unknown:
    log.error("the publisher gave %s", what)
    return Unknown(f"the publisher gave {what}")
