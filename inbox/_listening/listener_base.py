"""The part that the synchronous and the asynchronous listener share."""

import logging
import operator
import signal
import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from inbox_outbox_base.calls.signals import is_stopping, stopping
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.backoff import Backoff
from inbox_outbox_base.errors.groups import find, only
from inbox_outbox_base.errors.inbox import (
    GiveUp,
    InvalidOption,
    InvalidResult,
    LeaseLost,
    NotTaken,
    TransactionEnded,
)
from inbox_outbox_base.monitoring.events import stored
from inbox_outbox_base.monitoring.tracing import Tracing
from inbox_outbox_base.words.incoming import Verdict

from .counting import Recordings
from .judgements import origins
from .lanes import JobBatch, KeyLanes, MessageJob
from .noting import settle
from .outcome import Action, Decision, Outcome, TooOld, runner_of
from .traced import traced

Order = Literal["each", "in_order"]

STOPPING = "the listener is stopping"

_log = logging.getLogger("inbox.listener")
_FINAL = (Verdict.DEAD, Verdict.HALTED, Verdict.MISMATCH)


class ListenerBase:
    """Checks the options, decides from outcomes what to tell a broker, and stops gracefully."""

    tracing: Tracing | None = None
    """A consumer's hooks for spans around its handler."""
    _traced = staticmethod(traced)

    def __init__(
        self,
        *,
        order: Order = "each",
        concurrency: int = 1,
        key: Callable[[Any], Hashable | None] | None = None,
        attempt: Callable[[Any], int] | None = None,
        failures: Callable[[Any], int] | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        grace: float | timedelta = 30,
        too_old: TooOld = "dead_letter",
        dead_letter: Callable[[Any, Decision], Any] | None = None,
    ) -> None:
        self.order = options.one_of("order", order, ("each", "in_order"))
        self.concurrency = options.count("concurrency", concurrency)
        if order == "in_order" and concurrency > 1 and key is None:
            raise InvalidOption(
                f"concurrency={concurrency}: with order='in_order' this needs key=, because only messages of "
                "different keys can run concurrently"
            )
        if not isinstance(backoff, Backoff | None):
            raise InvalidOption(f"backoff={backoff!r}: expected a Backoff")
        self.backoff = backoff or Backoff()
        self.grace = options.seconds("grace", grace)
        self.too_old = Action(options.one_of("too_old", too_old, ("dead_letter", "ack")))
        self._key = _function("key", key)
        self._attempt = _function("attempt", attempt)
        self._failures = _function("failures", failures)
        self._max_attempts = None if max_attempts is None else options.count("max_attempts", max_attempts)
        if max_attempts is not None and failures is None:
            raise InvalidOption(
                f"max_attempts={max_attempts}: this needs failures=, which counts the failures"
            )
        self._dead_letter = _function("dead_letter", dead_letter)
        self._lanes = KeyLanes(self.concurrency)
        self._prepared: object = None
        self._wakes: set[Callable[[], Any]] = set()
        self._stopped_at: float | None = None

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called: do not fetch any more messages."""
        return self._stopped_at is not None

    @property
    def has_dead_letter(self) -> bool:
        """Whether there is a `dead_letter=`, which stores what no delivery can change."""
        return self._dead_letter is not None

    def stop(self) -> None:
        """Begin no more messages: from now on `decide` gives them back.

        Returns immediately. You can call it from any thread and from a signal handler; further calls change
        nothing.
        """
        # Without a lock: a signal handler may interrupt the main thread while that thread holds it.
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
        # A copy: other threads may begin and end calls meanwhile.
        for wake in tuple(self._wakes):
            wake()

    def on_stop(self, wake: Callable[[], Any]) -> None:
        """Let `stop` call this function as well, in any thread or a signal handler."""
        self._wakes.add(wake)

    def stopping_on_sigterm(self, *also: signal.Signals) -> AbstractContextManager[None]:
        """While the block runs, SIGTERM and the signals in `also` call `stop`; afterwards the former handlers
        are restored.

        Raises:
            ValueError: not called in the main thread; only the main thread can handle signals.
        """
        return stopping(self.stop, *also)

    def _preparing(self, handler: object) -> Callable[[], None] | None:
        """The handler's preparation before its first message, if it has not run yet."""
        if handler is self._prepared:
            return None
        self._prepared = handler
        return getattr(handler, "prepare", None)

    def _batch(
        self, messages: Iterable[Any], handler: Callable[[Any], Any], wake: Callable[[], Any]
    ) -> JobBatch:
        run = runner_of(handler)
        if not callable(run):
            raise InvalidOption(f"handler={handler!r}: expected a function of a message")
        if self.tracing:
            run = self._traced(run, self.tracing)
        batch = JobBatch(messages, run, in_order=self.order == "in_order", wake=wake)
        batch.preparation = self._preparing(handler)
        batch.counts = getattr(handler, "counts", None)
        for job in batch.jobs:
            job.context.run(is_stopping.set, self._is_stopping)
            job.context.run(job.recordings.begin)
            try:
                job.key = self._key and self._key(job.message)
                # The lanes need hashable keys; any other key fails only its own message.
                hash(job.key)
            except Exception as error:  # noqa: BLE001 - becomes the message's decision
                job.key, job.error = None, error
        return batch

    def _is_stopping(self) -> bool:
        return self.stopped

    def _take(self) -> list[MessageJob]:
        return [] if self.stopped else self._lanes.take()

    def _record(self, job: MessageJob, decision: Decision) -> None:
        if not job.batch.record(job, decision):
            _log.warning(
                "key %s: its handler ended after the message was given back: %s",
                options.shown(job.key),
                decision.reason,
            )
        elif job.batch.counts is not None:
            job.batch.counts(decision)
        if job.batch.is_decided:
            job.batch.wake()

    def _grace_left(self) -> float | None:
        """Seconds left for running messages; None: no limit."""
        if self._stopped_at is None:
            return None
        return max(0.0, self._stopped_at + self.grace - time.monotonic())

    def _judge(self, job: MessageJob, outcome: Outcome) -> Decision:
        """The decision for an outcome."""
        outcome = self._unless_failed_too_often(job, outcome)
        action, delay, reason = self._action(job, outcome), 0.0, str(outcome.verdict)
        settle(job.recordings, job.message, outcome, is_given_up=action is Action.DEAD_LETTER)
        if outcome.error is not None:
            cause = stored(outcome.error)
            reason = cause if outcome.verdict is Verdict.NEW else f"{reason}: {cause}"
        if _is_ended(job, outcome):
            reason = f"{reason}, after a body that ended its transaction: the rest of it never ran"
        if action is Action.RETRY:
            delay = self._retry_delay(job) if outcome.retry_after is None else outcome.retry_after
        if outcome.error is not None or action is Action.DEAD_LETTER:
            _tell(job, action, reason, outcome.error)
        return Decision(action, delay, outcome, reason)

    def _unless_failed_too_often(self, job: MessageJob, outcome: Outcome) -> Outcome:
        """The outcome; `DEAD` if the message has failed too often."""
        if self._max_attempts is None or not outcome.is_failure:
            return outcome
        # The message's count does not include this failure yet.
        failures = 1 + self._count(job, "failures", self._failures, 0)
        if failures < self._max_attempts or outcome.error is None:
            return outcome
        given_up = GiveUp(f"it has failed {failures} times: {stored(outcome.error)}")
        given_up.__cause__ = outcome.error
        return caught(given_up, job.recordings)

    def _action(self, job: MessageJob, outcome: Outcome) -> Action:
        if _is_ended(job, outcome):
            return Action.DEAD_LETTER
        # Another handler has the message now, and may still fail.
        if outcome.error is not None and find(outcome.error, LeaseLost) is not None:
            return Action.RETRY
        if outcome.verdict in _FINAL or _is_hopeless(job, outcome):
            return Action.DEAD_LETTER
        if outcome.verdict is Verdict.TOO_OLD:
            return self.too_old
        if outcome.error is not None or outcome.verdict is Verdict.IN_FLIGHT:
            return Action.RETRY
        return Action.ACK

    def _retry_delay(self, job: MessageJob) -> float:
        return self.backoff.delay(self._count(job, "attempt", self._attempt, 1))

    def _count(
        self, job: MessageJob, option: str, function: Callable[[Any], int] | None, default: int
    ) -> int:
        try:
            return default if function is None else operator.index(function(job.message))
        except Exception:  # noqa: BLE001 - a missing number must not cost a message
            _log.exception("key %s: %s= raised an error, using %d", options.shown(job.key), option, default)
            return default

    def _dead_letter_stored(self, decision: Decision) -> Decision:
        """The decision after `dead_letter` has stored the message."""
        return replace(decision, action=Action.ACK, reason=f"stored as a dead letter: {decision.reason}")

    def _dead_letter_failed(self, job: MessageJob, decision: Decision, failure: Exception) -> Decision:
        reason = f"dead_letter= failed ({stored(failure)}) on: {decision.reason}"
        _tell(job, Action.RETRY, reason, failure)
        return replace(decision, action=Action.RETRY, delay=self._retry_delay(job), reason=reason)

    def _unfinished(self, job: MessageJob) -> Decision:
        """The decision for a message whose handler did not finish."""
        is_late = self._grace_left() == 0
        reason = f"still running {self.grace:g} s after the stop" if is_late else "cancelled"
        _tell(job, Action.RETRY, reason)
        return Decision(Action.RETRY, self._retry_delay(job), reason=reason)


def _is_hopeless(job: MessageJob, outcome: Outcome) -> bool:
    """Whether each redelivery would end the same. Inside a claim, such an error is a failed attempt."""
    error = outcome.error
    has_answered = outcome.verdict is not Verdict.NEW or outcome.retry_after is not None
    if error is None or has_answered or outcome.is_answered or job.recordings.has_claimed(error):
        return False
    ends = origins(error)
    if any(isinstance(each, TransactionEnded) for each in ends):
        return True
    return all(isinstance(each, InvalidOption | InvalidResult) for each in ends)


def _is_ended(job: MessageJob, outcome: Outcome) -> bool:
    """Whether a body has committed too early. A redelivery would be a duplicate, and the rest of the body
    lost, whatever claims of the same message may still do; so is a second try of the handler."""
    # Without an error, the handler has dealt with it, as a loop over the lines of a message does.
    is_done = outcome.error is None and outcome.verdict in (Verdict.NEW, Verdict.DUPLICATE)
    return job.recordings.has_lost_rest or (job.recordings.has_ended and not is_done)


def _tell(job: MessageJob, action: Action, reason: str, error: Exception | None = None) -> None:
    place = f"key {options.shown(job.key)}, message {job.index} of its batch"
    _log.warning("%s: %s, %s", place, action, reason, exc_info=error)


def caught(error: Exception, recordings: Recordings) -> Outcome:
    """The outcome of a handler that raised."""
    answer = recordings.answer(error)
    if answer is None:
        gives_up = any(isinstance(each, GiveUp) for each in origins(error))
        return Outcome(Verdict.DEAD if gives_up else Verdict.NEW, error=error)
    is_refused = answer.verdict is not Verdict.NEW and only(error, NotTaken)
    return Outcome(
        answer.verdict,
        retry_after=answer.retry_after,
        error=None if is_refused else error,
        is_answered=True,
    )


def checked(outcome: object) -> Outcome:
    """The handler's result, checked.

    Raises:
        InvalidOption: not an `Outcome`, so the handler never asked an inbox.
    """
    if not isinstance(outcome, Outcome):
        raise InvalidOption(f"handler: it returned {options.shown(outcome)}, expected an inbox.Outcome")
    return outcome


def _function(option: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise InvalidOption(f"{option}={value!r}: expected a function")
    return value
