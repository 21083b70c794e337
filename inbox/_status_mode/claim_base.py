"""The part of a claim that synchronous and asynchronous handlers share."""

import json
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from inbox._listening.counting import ClaimedPart
from inbox._listening.judgements import Recorded
from inbox._listening.outcome import Outcome
from inbox_outbox_base.calls.signals import as_failure, is_interruption
from inbox_outbox_base.checks.options import done
from inbox_outbox_base.checks.results import encode_result
from inbox_outbox_base.errors.blame import is_failure, is_own
from inbox_outbox_base.errors.groups import find, without
from inbox_outbox_base.errors.inbox import GiveUp, InvalidOption, LeaseLost
from inbox_outbox_base.words.incoming import Verdict

from .hold import GivingUp, Hold, OnUnknown, describe
from .stores import Status, Store

_VERDICTS = {Status.DEAD: Verdict.DEAD, Status.HALTED: Verdict.HALTED}
Undo = Callable[[Any], Any]


class ClaimBase:
    """One message, and what the store says about it."""

    __slots__ = (
        "_hold",
        "_part",
        "_result",
        "_store",
        "_text",
        "_unawaited",
        "_undos",
        "key",
        "retry_after",
        "verdict",
    )

    def __init__(self, key: str, store: Store, given: Hold | Outcome, part: ClaimedPart) -> None:
        self.key = key
        """The key as it is stored; empty if the message runs without one."""
        self._store = store
        self._undos: dict[str, Undo] = {}
        self._unawaited: list[str] = []
        """The steps of an asynchronous handler that it has called and that have not begun."""
        self._hold = given if isinstance(given, Hold) else None
        self._part = part
        refusal = None if isinstance(given, Hold) else given
        self.verdict: Verdict = Verdict.NEW if refusal is None else refusal.verdict
        """What the inbox says; only `NEW` means "run the message". After a block that failed for good, it is
        `DEAD` or `HALTED`."""
        self.retry_after = refusal.retry_after if refusal else None
        """For `IN_FLIGHT` and after a recorded failure: seconds after which to deliver the message again."""
        self._result: Any = refusal.result if refusal else None
        self._text: str | None = None
        """The result as JSON; None once somebody has read the result, and may have changed it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(key={self.key!r}, verdict={self.verdict.name})"

    def __bool__(self) -> bool:
        return self.is_new

    @property
    def is_new(self) -> bool:
        """Whether to run the message."""
        return self._hold is not None

    @property
    def token(self) -> int:
        """The fencing token; 0 without a claim. It grows with every claim of a key, so a service that gets
        the token can refuse older ones. After the record was purged, tokens start from the store's clock
        again, so they still grow unless that clock went back."""
        return self._hold.held.token if self._hold else 0

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1; 0 if the message must not run."""
        return self._hold.attempt if self._hold else 0

    @property
    def lost(self) -> bool:
        """Whether the lease has ended, or the block. If so, stop: somebody else may have the message."""
        return self._hold is not None and self._hold.lost

    @property
    def result(self) -> Any:
        """A JSON value: what you set; for a duplicate, what the first run set.

        It reads back as a duplicate will see it: a tuple becomes a list.

        Raises, when it is set:
            InvalidResult: not JSON, or more than a million bytes of JSON.
            InvalidOption: the message is not new, or the block is over.
        """
        if self._text is not None:
            self._result, self._text = json.loads(self._text), None
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if not self.is_new:
            raise InvalidOption(f"claim.result: only a new message gets a result, this one is {self.verdict}")
        if self._hold is not None and self._hold.status is not Status.CONSUMING:
            raise InvalidOption("claim.result: the block is over, so the result cannot be stored")
        # Check now, so that a bad result fails inside the handler and not at completion.
        text = None if value is None else encode_result(value)
        self._result, self._text = None, text

    def step_key(self, name: str) -> str:
        """The idempotency key of a step, 32 characters. It is the same in every attempt, and no other step,
        message or consumer has it. After an undo of the step it changes if an operator lets the message run
        again."""
        held, run = self._held.held, self._held.steps.run(name)
        parts = (held.consumer, held.key, name, *([str(run)] if run > 1 else []))
        # With the length of each part, so that two different steps never give the same text.
        text = "".join(f"{len(part.encode())}:{part}" for part in parts)
        return blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def _held(self) -> Hold:
        if self._hold is None:
            raise InvalidOption(f"claim: a message that is {self.verdict} has no steps; check claim.is_new")
        return self._hold

    def _step(self, name: str, body: Callable[[], Any], undo: Undo | None, on_unknown: OnUnknown) -> Any:
        """Run a step, unless it is finished; return its result."""
        hold = self._held
        with hold.running(name):
            if hold.begin_step(name, on_unknown, has_undo=undo is not None):
                began = time.monotonic()
                try:
                    result = body()
                except BaseException as error:
                    hold.abandon_step(name, error)
                    raise
                seconds = time.monotonic() - began
                hold.end_step(name, result, has_undo=undo is not None, seconds=seconds)
        return self._finished(name, undo)

    def _finished(self, name: str, undo: Undo | None) -> Any:
        """The result of a finished step; remember its undo."""
        if undo is not None:
            self._undos[name] = undo
        return self._held.steps.result(name)

    def _end(self, error: BaseException | None, delay: Callable[[int], float]) -> None:
        """See `end_claim`."""
        hold = self._held
        if error is None and (unfinished := self._unfinished()) is not None:
            self._end(unfinished, delay)
            raise unfinished
        if error is None:
            hold.check_process()
        elif not hold.is_here:
            # The block has raised in a fork: only the process that has the claim records the end.
            return
        if error is None and hold.steps.is_undoing:  # once an undo has run, the handler can no longer succeed
            error, self.result = GivingUp(), None
        try:
            if error is None:
                hold.complete(self._encoded())
            elif not self._let_go(error):
                self._give_up_or_fail(error)
        finally:
            self._settle(delay)

    def _unfinished(self) -> InvalidOption | None:
        """Why the message has not succeeded, although its block has ended without an error."""
        hold = self._held
        if self._unawaited:
            return InvalidOption(f"step={self._unawaited[0]!r}: it was not awaited, so it did not run")
        if not hold.is_here:  # a fork has a copy of what the handler was doing
            return None
        if (name := hold.close()) is not None:
            return InvalidOption(
                f"step={name!r}: it was still running when the block ended; wait for it inside"
            )
        if hold.steps.pending is not None:
            return InvalidOption(
                f"step={hold.steps.pending!r}: it raised an error that the block has handled; nobody knows "
                "whether it has happened"
            )
        return None

    def _encoded(self) -> str | None:
        """The result as JSON."""
        if self._text is None and self._result is not None:
            return encode_result(self._result)
        return self._text

    def _give_up_or_fail(self, error: BaseException) -> None:
        hold, to_undo = self._held, self._to_undo(error)
        if to_undo:
            hold.undoing(to_undo[0][0])  # raises if the message was lost: then nothing is undone
        for name, undo in to_undo:
            hold.check()
            try:
                done("undo", undo(hold.steps.result(name)))
            except BaseException as failure:
                is_interrupted = not isinstance(failure, Exception) and is_interruption(failure)
                if not (is_interrupted and self._let_go(failure)):
                    self._undo_failed(name, failure)
                if is_interrupted:
                    raise
                if find(error, GivingUp) is not None:
                    raise as_failure(failure) from failure.__cause__
                return  # a later delivery retries the undo
            # Recorded one by one: after a crash, only the remaining steps are undone.
            hold.undone(name)
        self._failed(error)

    def _let_go(self, error: BaseException) -> bool:
        """Let go of the message if the handler did not fail: somebody else has the message, the handler was
        interrupted, or the store did not answer. Return whether one of these is so."""
        hold = self._held
        # The LeaseLost may also be another message's: then it is a failure of this handler.
        if find(error, LeaseLost) is not None and hold.lost:
            hold.lose()
            return True
        # The store or the database failed, not the handler, so the attempt does not count. Only the next one
        # will know all steps.
        if is_own(error) or hold.is_doubted:
            hold.release(error)
            return True
        interruption = without(error, GivingUp)
        if interruption is None or isinstance(interruption, Exception) or not is_interruption(interruption):
            return False
        if hold.counts_interruptions:
            return False
        hold.release(error, is_interrupted=True)
        return True

    def _to_undo(self, error: BaseException) -> list[tuple[str, Undo]]:
        """The steps to undo because of this error, the last one first."""
        hold = self._held
        if not hold.gives_up_on(error) or hold.steps.pending is not None:
            return []
        return [(name, self._undos[name]) for name in hold.steps.to_undo() if name in self._undos]

    def _undo_failed(self, name: str, failure: BaseException) -> None:
        """A later delivery retries the undo, a few times."""
        hold = self._held
        error = RuntimeError(f"undo of step {name!r} failed: {describe(failure)}")
        hold.fail(error, for_good=not hold.may_retry_undo())

    def _failed(self, error: BaseException) -> None:
        hold = self._held
        for_good = hold.gives_up_on(error)
        left = list(hold.steps.to_undo()) if for_good and hold.steps.pending is None else []
        if left:
            error = RuntimeError(
                f"{describe(error)}; not undone, because the handler did not reach them again: {left}"
            )
        hold.fail(error, for_good=for_good)

    def _settle(self, delay: Callable[[int], float]) -> None:
        """Set the verdict and the delay that the caller sees after the block."""
        status = self._held.status
        self.verdict = _VERDICTS.get(status, self.verdict)
        if status is Status.FAILED and self._held.is_protected:
            self.retry_after = delay(self.attempt)


def end_claim(claim: ClaimBase, error: BaseException | None, delay: Callable[[int], float]) -> None:
    """Record how the handler ended: with this error, or with success if it is None. If the handler gives up
    for good, first undo its finished steps. `delay` gives the seconds to wait after an attempt.

    A function and no method of the claim, so that handlers, which get the claim, cannot end it.

    The message's listener is told what was recorded because of an error.

    Raises the error of an undo, unless the handler has its own error.
    """
    try:
        claim._end(error, delay)  # noqa: SLF001 - of this module
    except BaseException as raised:
        _tell(claim, raised)
        raise
    _tell(claim, error)


def _tell(claim: ClaimBase, error: BaseException | None) -> None:
    if not claim._held.is_here:  # noqa: SLF001 - of this module
        return  # a fork may have copied the listener's lock while a thread held it
    is_recorded = claim.verdict is not Verdict.NEW or claim.retry_after is not None
    # Without a record nobody has counted the attempt, so the listener does.
    is_answered = error is not None and (is_recorded or not is_failure(error))
    answer = Recorded(claim.verdict, claim.retry_after) if is_answered else None
    claim._part.end(error, answer)  # noqa: SLF001


def raise_rest(error: BaseException) -> None:
    """Raise the error of a handler again, without `GivingUp`, which has done its work."""
    rest = without(error, GivingUp)
    if rest is not None:
        raise rest


def outcome_of(claim: ClaimBase | None, error: Exception | None = None) -> Outcome:
    """The outcome after the handler, with its error if there is one; without a claim the handler never
    began."""
    if claim is None:
        gives_up = error is not None and find(error, GiveUp) is not None  # in `key=`, for example
        return Outcome(Verdict.DEAD if gives_up else Verdict.NEW, error=error)
    return Outcome(claim.verdict, claim.result if error is None else None, claim.retry_after, error)
