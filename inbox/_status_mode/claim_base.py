"""The part of a claim that synchronous and asynchronous handlers share."""

import json
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from inbox._listening.outcome import Outcome
from inbox_outbox_base.calls.signals import is_interruption
from inbox_outbox_base.checks.results import encode_result
from inbox_outbox_base.errors.fault import is_own
from inbox_outbox_base.errors.inbox import InvalidOption, LeaseLost
from inbox_outbox_base.words.incoming import Verdict

from .hold import GivingUp, Hold, OnUnknown, describe
from .stores import Status, Store

_VERDICTS = {Status.DEAD: Verdict.DEAD, Status.HALTED: Verdict.HALTED}
Undo = Callable[[Any], Any]


class ClaimBase:
    """One message, and what the store says about it."""

    __slots__ = ("_hold", "_result", "_store", "_text", "_undos", "key", "retry_after", "verdict")

    def __init__(self, key: str, store: Store, given: Hold | Outcome) -> None:
        self.key = key
        """The key as it is stored; empty if the message runs without one."""
        self._store = store
        self._undos: dict[str, Undo] = {}
        self._hold = given if isinstance(given, Hold) else None
        refusal = None if isinstance(given, Hold) else given
        self.verdict: Verdict = Verdict.NEW if refusal is None else refusal.verdict
        """What the inbox says; only `NEW` means "run it". After a block that failed for good it is `DEAD` or
        `HALTED`."""
        self.retry_after = refusal.retry_after if refusal else None
        """For `IN_FLIGHT` and after a failure: seconds after which to deliver the message again."""
        self._result: Any = refusal.result if refusal else None
        self._text: str | None = None
        """The result as JSON; None once somebody has read the result, and may have changed it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(key={self.key!r}, verdict={self.verdict.name})"

    @property
    def is_new(self) -> bool:
        """Whether to run the message."""
        return self._hold is not None

    @property
    def token(self) -> int:
        """The fencing token: it grows with every claim of a key, so a service that you pass it to can refuse
        an older one. After the record was purged it starts from the store's clock again, so it is still
        larger unless that clock went back. 0 without a claim."""
        return self._hold.held.token if self._hold else 0

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; 0 if the message is not to be run."""
        return self._hold.attempt if self._hold else 0

    @property
    def lost(self) -> bool:
        """Whether the lease ran out, so that somebody else may have the message: stop."""
        return self._hold is not None and self._hold.lost

    @property
    def result(self) -> Any:
        """A JSON value: what you set, or for a duplicate what its first run set.

        It reads back as a duplicate will see it: a tuple becomes a list.

        Raises, when it is set:
            InvalidResult: not JSON, or more than a million bytes of JSON.
            InvalidOption: the message is not new.
        """
        if self._text is not None:
            self._result, self._text = json.loads(self._text), None
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if not self.is_new:
            raise InvalidOption(f"claim.result: only a new message gets a result, this one is {self.verdict}")
        # Check now, so that a bad result fails inside the handler and not at completion.
        text = None if value is None else encode_result(value)
        self._result, self._text = None, text

    def step_key(self, name: str) -> str:
        """The idempotency key of a step, 32 characters. It is the same in every attempt, and differs for
        every other step, message and consumer. It changes once the step was undone and an operator lets the
        message run again."""
        held, run = self._held.held, self._held.steps.run(name)
        parts = (held.consumer, held.key, name, *([str(run)] if run > 1 else []))
        # With the lengths of its parts, so that two different steps never give the same text.
        text = "".join(f"{len(part.encode())}:{part}" for part in parts)
        return blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def _held(self) -> Hold:
        if self._hold is None:
            raise InvalidOption(f"claim: a message that is {self.verdict} has no steps; check claim.is_new")
        return self._hold

    def _step(self, name: str, body: Callable[[], Any], undo: Undo | None, on_unknown: OnUnknown) -> Any:
        """Run a step, unless it is finished; its result."""
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
        """The result of a finished step; note whether it now has something to undo."""
        if undo is not None:
            self._undos[name] = undo
        return self._held.steps.result(name)

    def _end(self, error: BaseException | None, delay: Callable[[int], float]) -> None:
        """As `end_claim` describes."""
        hold = self._held
        if error is None:
            hold.check_process()
        elif not hold.is_here:
            # A fork of the block has raised: only the process that has the claim writes how it ended.
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

    def _encoded(self) -> str | None:
        """The result as JSON."""
        if self._text is None and self._result is not None:
            return encode_result(self._result)
        return self._text

    def _give_up_or_fail(self, error: BaseException) -> None:
        hold, to_undo = self._held, self._to_undo(error)
        if to_undo:
            hold.renew()  # raises if the message was lost: then nothing is undone
        for name, undo in to_undo:
            try:
                undo(hold.steps.result(name))
            except Exception as failure:
                self._undo_failed(name, failure)
                if isinstance(error, GivingUp):
                    raise
                return  # a later delivery retries the undo
            # One by one: after a crash only the steps that are left are undone again.
            hold.undone(name)
        self._failed(error)

    def _let_go(self, error: BaseException) -> bool:
        """Let go of the message if the handler did not fail: it is somebody else's, or is given back because
        it was interrupted or its store did not answer. Return whether that is so."""
        hold = self._held
        # The handler may also pass on the LeaseLost of another message, which is a failure of this one.
        if isinstance(error, LeaseLost) and hold.lost:
            hold.lose()
            return True
        # The store or the database failed, not the handler, so the attempt does not count.
        if is_own(error):
            hold.release(error)
            return True
        if isinstance(error, Exception | GivingUp) or not is_interruption(error) or hold.is_tired:
            return False
        hold.release(error, is_interrupted=True)
        return True

    def _to_undo(self, error: BaseException) -> list[tuple[str, Undo]]:
        """The steps to undo because of this error, the last one first."""
        hold = self._held
        if not hold.gives_up_on(error) or hold.steps.pending is not None:
            return []
        return [(name, self._undos[name]) for name in hold.steps.to_undo() if name in self._undos]

    def _undo_failed(self, name: str, failure: Exception) -> None:
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
        """Set what the caller sees once the block is over."""
        status = self._held.status
        self.verdict = _VERDICTS.get(status, self.verdict)
        if status is Status.FAILED:
            self.retry_after = delay(self.attempt)


def end_claim(claim: ClaimBase, error: BaseException | None, delay: Callable[[int], float]) -> None:
    """Record how the handler ended: with this error, or well if it is None; if it gives up for good, first
    undo its finished steps. `delay` says how long to wait after an attempt.

    A function and no method of the claim, which handlers get: none may end its own claim.

    Raises: what an undo raised, unless the handler has its own error.
    """
    claim._end(error, delay)  # noqa: SLF001 - of this module


def outcome_of(claim: ClaimBase | None, error: Exception | None = None) -> Outcome:
    """The outcome of a message whose handler has ended, with this error unless it is None; without a claim it
    never began."""
    if claim is None:
        return Outcome(Verdict.NEW, error=error)
    return Outcome(claim.verdict, claim.result if error is None else None, claim.retry_after, error)
