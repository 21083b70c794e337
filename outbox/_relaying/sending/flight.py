"""One batch of a topic on its way to the broker."""

import logging
import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any

from inbox_outbox_base.calls.signals import FAILURES, as_failure
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.monitoring.events import describe
from inbox_outbox_base.monitoring.tracing import Tracing
from inbox_outbox_base.words.outgoing import Accepted, Envelope, Failed, Outcome, Refused, Unknown
from outbox._publishers.outcomes import as_outcome, in_words
from outbox._relaying.report import Report, SentMessage

from .batch import SOLO_AFTER
from .turns import Standing

log = logging.getLogger("outbox.relay")

HandOver = Callable[[list[Envelope]], Iterable[Any]]


class Flight:
    """A batch that is being sent: the outcomes that have arrived, and the messages that are on their way.

    One thread or task sends, while the relay's own collects the outcomes.
    """

    def __init__(
        self,
        letters: list[Letter],
        *,
        ordered: bool,
        give_up_after: float | None,
        arrived: Callable[[], object],
    ) -> None:
        self.letters = letters
        self.topic = letters[0].topic
        self.size = sum(letter.size for letter in letters)
        self.begun = time.monotonic()
        self.seconds = 0.0
        """How long it took until the last accepted message; if none was accepted, until the end."""
        self.lasted = 0.0
        """How long it took until the end."""
        self.standing = Standing.OTHER
        """The standing of its topic when it began."""
        self.is_over = False
        self._has_begun = False
        self.has_news_since = math.inf
        """When the first uncollected outcome arrived."""
        self.failure: BaseException | None = None
        """An interruption that `send` raised."""
        self.rejected_for: float | None = None
        """If the broker rejects the topic: the shortest delay that it asked for, in seconds."""
        self.reason = ""
        """Why the last message that was not accepted failed."""
        self._ordered = ordered
        self._give_up_after = math.inf if give_up_after is None else give_up_after
        self._arrived = arrived
        self._lock = threading.Lock()
        self._report = Report()
        self._unsent = dict.fromkeys(letters)
        self._failed: set[str] = set()
        self._queues = _queues(letters) if ordered else {}
        """For each key with several messages in this batch: the messages not noted yet, in order."""
        self._early: dict[str | None, dict[Letter, Outcome]] = defaultdict(dict)
        """By key, the outcomes of messages in its queue."""
        self._asked = math.inf
        self._failures = 0
        self._failure: Outcome | None = None
        """How many messages the broker has not accepted, and what became of the last one."""
        self.is_accepted = False
        """Whether the broker has accepted a message."""
        self._is_taken = False
        """Whether the broker has accepted or refused a message, so does not reject the topic."""

    @property
    def is_alone(self) -> bool:
        """Whether it is a single message, sent alone because its sends got no answer."""
        return self.letters[0].unanswered >= SOLO_AFTER

    def collect(self) -> Report:
        """The outcomes that have arrived since the last call. With a failed message, the later ones of its
        key are given back as unsent: it may be sent again before this batch is over."""
        with self._lock:
            report, self._report, self.has_news_since = self._report, Report(), math.inf
            if report.others:
                report.unsent = [each for each in self._unsent if each.key in self._failed]
            for letter in report.unsent:
                del self._unsent[letter]
        report.seconds = time.monotonic() - self.begun
        return report

    def unanswered(self) -> list[Letter]:
        """The messages without an outcome: if the flight is over, they were not sent."""
        with self._lock:
            return list(self._unsent)

    def unrecorded(self) -> list[Letter]:
        """The messages whose outcome has not been collected: they have been sent, or will be."""
        with self._lock:
            arrived = [*self._report.accepted, *(answer.letter for answer in self._report.others)]
            return [*arrived, *self._unsent]

    def cancel(self) -> None:
        """End the batch if it has not begun."""
        with self._lock:
            self.is_over = self.is_over or not self._has_begun

    def fly(self, hand_over: HandOver, may_go_on: Callable[[], bool], tracing: Tracing | None = None) -> None:
        """Send the batch, one message of each key at a time unless the publisher keeps their order."""
        with self._lock:
            if self.is_over:
                return  # it was cancelled
            self._has_begun = True
        try:
            for wave in [self.letters] if self._ordered else waves(self.letters):
                letters = [letter for letter in wave if letter.key not in self._failed]
                if not letters or self.rejected_for is not None:
                    continue
                if not may_go_on():
                    break
                self._send(letters, hand_over, tracing)
        except BaseException as error:  # noqa: BLE001 - the relay raises it once the outcomes are written
            self.failure = error
        finally:
            self.lasted = time.monotonic() - self.begun
            self.seconds = self.seconds or self.lasted
            self.is_over = True
            self._arrived()

    def _send(self, letters: list[Letter], hand_over: HandOver, tracing: Tracing | None) -> None:
        """Pass messages to the publisher, and record their outcomes as they arrive.

        A message without a usable outcome is unknown: the publisher raised, was interrupted, or gave too few
        outcomes. If it gave too many, or one for a wrong place, outcomes cannot be matched to messages: all
        messages without an outcome are unknown.
        """
        left = dict(enumerate(letters))
        in_turn: list[Any] = []
        silence = Unknown("the publisher gave no answer")
        envelopes = [letter.envelope for letter in letters]
        end = tracing.begin(self.topic, envelopes) if tracing else None
        failures = self._failures
        try:
            answers = hand_over(envelopes)
            if _are_accepted(answers, len(letters)):
                self._accept(letters)
                answers = left = {}
            for answer in answers:
                if isinstance(answer, tuple) and len(answer) == 2:
                    place, outcome = answer
                    if place not in left:
                        in_turn, silence = (
                            [],
                            _unknown(f"an outcome for place {in_words(place)}, which expects none"),
                        )
                        break
                    self._record([(left.pop(place), outcome)])
                elif len(in_turn) < len(left):
                    in_turn.append(answer)
                else:
                    in_turn, silence = [], _unknown("more answers than messages")
                    break
        except FAILURES as error:
            silence = _failed(as_failure(error))
        finally:  # also after an interruption, which goes on: the outcomes given so far are written
            self._record(zip(left.values(), chain(in_turn, repeat(silence)), strict=False))
            self.rejected_for = None if self._is_taken else self._asked
            if end is not None:
                end(self._failures - failures, self._failure)

    def _accept(self, letters: list[Letter]) -> None:
        """Record that the broker has taken all of these messages: many times faster, for the usual case."""
        with self._lock:
            self._report.accepted += letters
            self.is_accepted = self._is_taken = True
            for letter in letters:
                del self._unsent[letter]
            self.seconds = time.monotonic() - self.begun
            has_news = self._begin_news()
        if has_news:
            self._arrived()

    def _record(self, answers: Iterable[tuple[Letter, Any]]) -> None:
        # Called for each single message if the publisher yields pairs.
        outcomes = [(letter, as_outcome(answer)) for letter, answer in answers]
        with self._lock:
            for letter, outcome in outcomes:
                if letter.key in self._queues:
                    self._note_in_order(letter, outcome)
                else:
                    self._note(letter, outcome)
            has_news = self._begin_news()
        if has_news:
            self._arrived()

    def _begin_news(self) -> bool:
        """Whether the first outcomes have arrived since the last call of `collect`."""
        if self.has_news_since < math.inf or self._report.is_empty:
            return False
        self.has_news_since = time.monotonic()
        return True

    def _note_in_order(self, letter: Letter, outcome: Outcome) -> None:
        """Note the outcomes of a key in the order of its messages, in whatever order they arrive. A failure
        is noted once no later message is on its way; these count as not sent, whatever their outcome."""
        queue, early = self._queues[letter.key], self._early[letter.key]
        early[letter] = outcome
        while queue and isinstance(early.get(queue[0]), Accepted):
            first = queue.popleft()
            self._note(first, early.pop(first))
        if queue and len(early) == len(queue):
            self._note(queue[0], early[queue[0]])

    def _note(self, letter: Letter, outcome: Outcome) -> None:
        del self._unsent[letter]
        if isinstance(outcome, Accepted):
            self._report.accepted.append(letter)
            self.is_accepted = self._is_taken = True
            self.seconds = time.monotonic() - self.begun
        else:
            self._fail(letter, outcome)

    def _fail(self, letter: Letter, outcome: Outcome) -> None:
        is_last = letter.failing_for >= self._give_up_after and not isinstance(outcome, Refused)
        answer = SentMessage(letter, outcome, is_last)
        self._report.others.append(answer)
        self._failures += 1
        self._failure = outcome
        if letter.key is not None:
            self._failed.add(letter.key)
        self.reason = getattr(outcome, "reason", "")
        self._asked = min(answer.retry_after or 0.0, self._asked)
        self._is_taken |= is_last or isinstance(outcome, Refused | Failed)


def _queues(letters: list[Letter]) -> dict[str | None, deque[Letter]]:
    counts = Counter(letter.key for letter in letters if letter.key is not None)
    queues: dict[str | None, deque[Letter]] = {}
    for letter in letters:
        if letter.key is not None and counts[letter.key] > 1:
            queues.setdefault(letter.key, deque()).append(letter)
    return queues


def waves(letters: list[Letter]) -> list[list[Letter]]:
    """Split the batch so that no wave has two messages of one key: a message must not be sent before the
    outcome of its predecessor is known."""
    keys = [letter.key for letter in letters if letter.key is not None]
    if len({*keys}) == len(keys):
        return [letters]
    cut: list[list[Letter]] = []
    places: Counter[str] = Counter()
    for letter in letters:
        place = 0
        if letter.key is not None:
            place = places[letter.key]
            places[letter.key] += 1
        if place == len(cut):
            cut.append([])
        cut[place].append(letter)
    return cut


def _are_accepted(answers: Any, number: int) -> bool:
    return isinstance(answers, list) and len(answers) == number and {*map(type, answers)} == {Accepted}


def _failed(error: Exception) -> Unknown:
    log.error("the publisher failed", exc_info=error)
    return Unknown(describe(error))


def _unknown(what: str) -> Unknown:
    log.error("the publisher gave %s", what)
    return Unknown(f"the publisher gave {what}")
