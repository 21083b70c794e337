"""One message while this process handles it: all writes about the message, synchronously.

Handlers use it through `Claim` or `AsyncClaim`.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from inbox._memory import Known, Memory
from inbox_outbox_base.calls import clock
from inbox_outbox_base.checks import options
from inbox_outbox_base.errors.groups import find
from inbox_outbox_base.errors.inbox import GiveUp, InvalidOption, LeaseLost, StepNotDone
from inbox_outbox_base.monitoring import events
from inbox_outbox_base.monitoring.events import EventKind, Hooks

from .lease import Caller, MessageLease
from .steps import Steps, checked_name
from .stores import UNDO_ATTEMPTS, USED_UP, Change, ClaimAnswer, Request, Status, Store, remember

OnUnknown = Literal["retry", "halt"]

INTERRUPTIONS = 16
"""How often an interrupted message is given back without counting the attempt."""

_MOST_VERSIONS = 10
"""How many of its own writes an attempt remembers, beside the first."""

_FAILURE_EVENTS = {
    Status.FAILED: EventKind.FAILED,
    Status.DEAD: EventKind.DEAD,
    Status.HALTED: EventKind.HALTED,
}


class GivingUp(BaseException):
    """The message can no longer succeed: raised in a handler that runs only to undo its finished steps.

    It is not an Exception, so that a handler which catches Exception does not stop it.
    """


class Hold(MessageLease):
    """A claimed message: records its steps and its end."""

    def __init__(
        self,
        store: Store | None,
        request: Request,
        answer: ClaimAnswer,
        *,
        sent: float,
        hooks: Hooks,
        call: Caller,
        max_runtime: float | None = None,
        memory: Memory | None = None,
        remembered: float = 0.0,
    ) -> None:
        super().__init__(store, request, answer, sent=sent, hooks=hooks, call=call, max_runtime=max_runtime)
        self._answer = answer
        self._memory = memory
        self._remembered = remembered
        self._is_unsure = False
        """Whether the last write about steps got no answer, so that the record may not have it."""
        self._has_committed = False
        """Whether a transaction has committed a step: a record without it is older than the attempt, as after
        a fail-over."""
        self.is_doubted = False
        """Whether a transaction may have recorded a step that this attempt does not know."""
        self.step_under_way: str | None = None
        self._is_closing = False
        """Whether the block has ended: no other step begins."""
        self._turn = threading.Lock()
        self._used: set[str] = set()
        self.versions: tuple[bytes, ...] = (request.claim,)
        """The claims that the record can have by this attempt's own writes: each write about steps changes
        it, perhaps without an answer, and a store can lose some. If it has another one, a transaction has
        committed that seemed lost."""
        self.steps = Steps(None if answer.is_first else answer.record.steps)
        self.status = Status.CONSUMING
        # Attempts beyond `max_attempts` and attempts after an undo can only undo: they begin no new step.
        self.giving_up = self.attempt > request.max_attempts or self.steps.is_undoing
        self.emit(EventKind.CLAIMED if store else EventKind.UNPROTECTED)

    def close(self) -> str | None:
        """Let no other step begin, as the block has ended, or return the one that is still running."""
        with self._turn:
            self._is_closing = self.step_under_way is None
            return self.step_under_way

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Around a step. Meanwhile no other step begins, inside or beside it, because each step overwrites
        the record of all steps."""
        if not self.is_here:  # a fork may have copied the lock while another thread held it
            self.check_process()
        with self._turn:
            if self._is_closing:
                raise LeaseLost(f"key={self.held.key!r}: the block is over")
            if self.step_under_way is not None:
                raise InvalidOption(
                    f"step={name!r}: step {self.step_under_way!r} is still running; run one after the other"
                )
            if self.steps.pending is not None:
                raise InvalidOption(
                    f"step={name!r}: nobody knows whether step {self.steps.pending!r} has happened; let its "
                    "error leave the block"
                )
            self.step_under_way = name
        try:
            yield
        finally:
            self.step_under_way = None

    def begin_step(self, name: str, on_unknown: OnUnknown, *, has_undo: bool = False) -> bool:
        """Whether to run the step; if not, its result is `steps.result(name)`."""
        options.one_of("on_unknown", on_unknown, ("retry", "halt"))
        # Steps are found by name: a second step of the same name would get the first step's result.
        if checked_name(name) in self._used:
            raise InvalidOption(f"step={name!r}: this attempt already has a step of this name")
        self._used.add(name)
        self.check()
        state = self.steps.state(name)
        if state in ("done", "undoing", "undone"):
            return False
        if self.giving_up:
            raise GivingUp
        # Recorded before the step runs: else a crash would hide that the step may have happened.
        if on_unknown == "halt":
            self._save(self.steps.begun(name, has_undo=has_undo), f"step {name!r}", begins=True)
        return True

    def end_step(self, name: str, result: Any, *, has_undo: bool, seconds: float) -> None:
        """Record a finished step with its result, which every later attempt gets.

        Raises:
            LeaseLost: somebody else has the message; nothing was recorded.
            InvalidResult: the result is not JSON, or too large.
        """
        self._save(self.steps.done(name, result, has_undo=has_undo), f"the end of step {name!r}")
        self.emit(EventKind.STEP_DONE, step=name, seconds=seconds)

    def abandon_step(self, name: str, error: BaseException) -> None:
        """A step raised. The outcome of a step that must not be repeated is unknown, unless it raised
        `StepNotDone`."""
        if self.steps.state(name) != "begun":
            return
        if isinstance(error, StepNotDone):
            self._save(self.steps.without(name), f"step {name!r}")
        else:
            self.emit(EventKind.STEP_UNKNOWN, step=name, error=describe(error))

    def halt_at(self, name: str, witness: bytes, *, has_undo: bool) -> None:
        """Part of the step may be committed, and the transaction's claim with it, so it must not be repeated:
        the message halts when it fails."""
        self.steps = self.steps.begun(name, has_undo=has_undo)
        self.versions = (*self.versions, witness)
        self._is_unsure = True  # the message's end records the step
        self.emit(EventKind.STEP_UNKNOWN, step=name)

    def doubt_steps(self) -> None:
        """Nobody knows whether a transaction has recorded a step: this attempt decides nothing for good, and
        its end writes steps only for one that must not be repeated."""
        self.is_doubted = True
        self._is_unsure = self._is_unsure and self.steps.pending is not None

    def adopt(self, name: str, steps: Steps, witness: bytes, *, sent: float, seconds: float) -> None:
        """A transaction has committed a step and renewed the lease; `sent` is when the renewal was sent."""
        self.steps, self.versions = steps, (witness,)
        self._has_committed = True
        self._until = sent + self.lease
        self.emit(EventKind.STEP_DONE, step=name, seconds=seconds)

    def complete(self, text: str | None) -> None:
        """The handler has succeeded, with this result as JSON.

        Raises:
            LeaseLost: somebody else has the message.
        """
        change = Change(status=Status.CONSUMED, finished=1, result=text, forget_after=self._request.retention)
        # Before the end is written: if another connection breaks meanwhile, the record may be lost.
        history = None if self._store is None else self._store.history
        self._end(change, "completing")
        if self._memory is not None and self._store is not None:
            # Memory may answer duplicates only after the store has recorded the end.
            known = Known(self._answer.record.digest, text)
            self._memory.remember((history, self.held.key), known, self._remembered)
        self.emit(EventKind.COMPLETED)

    def fail(self, error: BaseException, *, for_good: bool) -> None:
        """The handler has raised; with `for_good` no attempt follows.

        Raises:
            LeaseLost: somebody else has the message.
        """
        text = describe(error)
        status = Status.DEAD if for_good else Status.FAILED
        # Whatever the handler raised, only an operator can find out whether the pending step has happened.
        if self.steps.pending is not None:
            status = Status.HALTED
            text = f"the outcome of step {self.steps.pending!r} is unknown: {text}"
        self._end(self._failure(status, text), "failing")
        self.emit(_FAILURE_EVENTS[status], error=text, step=self.steps.pending)

    @property
    def counts_interruptions(self) -> bool:
        """Whether the message was interrupted so often that an interruption now counts as a failure."""
        return self._answer.record.interruptions >= INTERRUPTIONS

    def release(self, interruption: BaseException, *, is_interrupted: bool = False) -> None:
        """Give the message back unfinished, without counting the attempt. If `is_interrupted`, count an
        interruption.

        Raises:
            LeaseLost: somebody else has the message.
        """
        # A step that must not be repeated has begun: the attempt counts, and the message halts.
        if self.steps.pending is not None:
            self.fail(interruption, for_good=False)
            return
        change = Change(
            status=Status.FAILED,
            started=-1,
            interruptions=self._answer.record.interruptions + 1 if is_interrupted else None,
            forget_after=self._request.retention,
        )
        self._end(change, "releasing")
        self.emit(EventKind.RELEASED)

    def leave(self) -> None:
        """The block is over; tell monitoring if its end was not recorded."""
        self._is_over = True
        if self.status is Status.CONSUMING and self.is_here:
            self.emit(EventKind.ABANDONED)

    def gives_up_on(self, error: BaseException) -> bool:
        """Whether no attempt may follow after this error."""
        return self.giving_up or find(error, GiveUp) is not None or self.attempt >= self._request.max_attempts

    def may_retry_undo(self) -> bool:
        """Whether another attempt can retry an undo that failed in this attempt."""
        return self.attempt < self._request.max_attempts + UNDO_ATTEMPTS

    def undoing(self, name: str) -> None:
        """Record that the first step is being undone: the message can no longer succeed. Renews the lease.

        Raises:
            LeaseLost: somebody else has the message, or may have it; nothing may be undone.
        """
        self.check()
        if self.steps.is_undoing:
            self.renew()
        else:
            self._save(self.steps.undoing(name), f"the undoing of step {name!r}")

    def undone(self, name: str) -> None:
        """Record that a step was undone."""
        self._save(self.steps.undone(name), f"the undoing of step {name!r}")
        self.emit(EventKind.UNDONE, step=name)

    def _failure(self, status: Status, text: str) -> Change:
        is_over = status is not Status.FAILED
        # By the store's clock, like all times of a record, but without asking it again.
        at = self._answer.now + timedelta(seconds=clock.now() - self._sent)
        return Change(
            status=status,
            finished=1,
            error=text,
            history=remember(self._answer.record, text, at),
            # A redelivery brings the message again, so only the record of one that is given up needs it.
            payload=self._request.payload if is_over else None,
            delivery=self._request.delivery if is_over else None,
            forget_after=self._request.dead_retention if is_over else self._request.retention,
        )

    def _save(self, steps: Steps, what: str, *, begins: bool = False) -> None:
        """Write the progress of the steps. If no answer comes, a step about to begin counts as not begun, and
        any other change counts as made; the claim's end writes the steps again."""
        was_pending, version = self.steps.pending is not None or self._is_unsure, os.urandom(16)
        text, (first, *others) = steps.text(), self.versions
        self.versions = (first, *others[-_MOST_VERSIONS:], version)  # also if only the answer is lost
        change = Change(
            claim=version,
            expects=self.versions,
            steps=text,
            undos=steps.undos,
            # None if the stored value is surely right: most steps may be repeated, and are never pending.
            pending_step=(steps.pending or "") if begins or was_pending else None,
            forget_after=self._kept_alive(),
        )
        # If the answer is lost, a step about to begin does not run, but a finished step stays finished.
        if not begins:
            self.steps = steps
        self._is_unsure = True
        self._write(change, what)
        self._is_unsure = False
        self.steps = steps

    def _end(self, change: Change, what: str) -> None:
        # Before the write: a heartbeat that finds the message ended must not report a lost claim.
        self._ended = True
        # The last write about steps may be missing, so repeat it with the end. An operator's decision rests
        # on all of them, and a store can lose writes that it has answered.
        steps, is_given_up = self.steps, change.status in (Status.DEAD, Status.HALTED)
        if self._is_unsure or (is_given_up and steps):
            change = replace(change, steps=steps.text(), undos=steps.undos, pending_step=steps.pending or "")
        # What is decided for good must know all steps: one that seemed lost may have committed, and one that
        # has committed may be lost.
        if self._is_unsure or is_given_up or self._has_committed:
            change = replace(change, expects=self.versions)
        self._fenced(change, what)
        assert change.status is not None  # noqa: S101 - an end has one
        self.status = change.status


def describe(error: BaseException) -> str:
    """The text of an error, as it is stored."""
    return USED_UP if find(error, GivingUp) is not None else events.stored(error)
