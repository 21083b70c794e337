"""Tries faults: each with messages of its own, which are delivered until the handler answers."""

import pickle
import random
import re
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._handler_process import DeliveryOutcome, HandlerProcess, Launcher, UnusableHandler
from ._plan import PlannedFault
from ._report import FaultKind, Violation, ViolationKind
from ._stage import Spot, Stage, Strike

_HUNG = 30.0
"""Seconds without an answer after which a process is killed."""
_ENOUGH = 5
"""Deliveries after which a message may be called stuck."""
_SETTLED = 0.3
"""Seconds after its answer in which a handler may still do something."""
_MOST = 6
"""Runs without a fault at most, until two that follow each other are the same."""
_NUMBER = re.compile(r"\d{9,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """What the caller of `exactly_once` has given."""

    messages: Callable[[int], Sequence[Any]]
    effects: Callable[[], Mapping[Any, int]]
    lease: float | None
    restart: Callable[[], None] | None


class FaultTrials:
    """Runs of one handler."""

    def __init__(
        self, launcher: Launcher, stage: Stage, options: TrialOptions, chance: random.Random
    ) -> None:
        self._launcher = launcher
        self._stage = stage
        self._options = options
        self._chance = chance
        self._first = self._run = 200_000_000 + secrets.randbelow(1_800_000_000)
        self._ready: list[HandlerProcess] = []
        self._expected = Counter[str]()
        self._patience = 1 + 2 * (options.lease or 0)
        self._ways: dict[FaultKind, Callable[[Sequence[Any]], str | None]] = {
            FaultKind.TWICE: self._twice,
            FaultKind.LATE: self._late,
            FaultKind.OUT_OF_ORDER: self._out_of_order,
            FaultKind.ACK_LOST: self._ack_lost,
            FaultKind.ACKED_AND_KILLED: self._acked_and_killed,
        }

    def without_fault(self) -> tuple[list[Spot], int]:
        """Runs that show what the handler does if nothing happens: the spots that it comes to, and the number
        of its messages. What a process does for its first messages only is not among the spots."""
        seen: list[tuple[list[Spot], Counter[str]]] = []
        for _ in range(_MOST):
            self._expected, number = self._clean()
            seen.append((self._stage.spots, self._expected))
            if seen[-2:-1] == seen[-1:]:
                break
        else:
            if seen[-2][1] != self._expected:
                raise UnusableHandler(
                    "effects: runs without a fault differ: rows may differ only in the number that messages "
                    f"gets, so leave out times and drawn ids\none:     {dict(seen[-2][1])}\n"
                    f"another: {dict(self._expected)}"
                )
        if not self._expected:
            raise UnusableHandler(
                "effects: it counts nothing that a run without a fault adds: it has to count what the "
                "handler writes, and each run's messages have to differ by the number that messages gets"
            )
        return self._stage.spots, number

    def attempt(self, fault: PlannedFault) -> list[Violation] | None:
        """What a fault has doubled or lost; None if the handler did not come to its spot again, not even in a
        process that no fault has struck before."""
        violations = self._attempt(fault)
        if violations is None:
            for process in self._ready:
                process.kill()
            violations = self._attempt(fault)
        return violations

    def _attempt(self, fault: PlannedFault) -> list[Violation] | None:
        run, messages, before = self._begin()
        if fault.spot is None:
            stuck = self._ways[fault.kind](messages)
        else:
            was_there, stuck = self._strike(fault, fault.spot, messages)
            if not was_there:
                return None
        found = self._compare(self._changes(run, before))
        if any(kind is ViolationKind.LOST for kind, _, _ in found):
            time.sleep(_SETTLED)  # it may only be late
            found = self._compare(self._changes(run, before))
        violations = [
            Violation(kind, effect, fault.kind, fault.where, fault.line, self._expected[effect], number)
            for kind, effect, number in found
        ]
        if stuck is not None:
            text = stuck.replace(str(run), "{run}")
            violations.append(Violation(ViolationKind.STUCK, text, fault.kind, fault.where, fault.line, 0, 0))
        return violations

    def _clean(self) -> tuple[Counter[str], int]:
        run, messages, before = self._begin()
        for index, message in enumerate(messages):
            process = self._take()
            self._stage.ask_line = lambda _, process=process: process.line()
            self._stage.watch(process.pid, index)
            outcome = self._deliver(process, message)
            self._stage.unwatch()
            self._stage.ask_line = None
            if outcome.error is not None:
                raise UnusableHandler(f"handler: without any fault, it ended with {outcome.error}")
        time.sleep(_SETTLED)
        return self._changes(run, before), len(messages)

    def _begin(self) -> tuple[int, Sequence[Any], Counter[Any]]:
        self._run += 1
        messages = list(self._options.messages(self._run))
        if not messages:
            raise ValueError("messages: it returned none")
        try:
            pickle.dumps(messages)
        except Exception as error:
            raise TypeError(f"messages: they cannot be passed to a process: {error}") from error
        before = self._rows()
        self._stage.run_begins()
        return self._run, messages, before

    def _strike(self, fault: PlannedFault, spot: Spot, messages: Sequence[Any]) -> tuple[bool, str | None]:
        """Whether the fault struck, and what the handler raises if a message is stuck."""
        was_there, stuck = False, None
        for index, message in enumerate(messages):
            left = [message]
            if index == spot.message:
                overtakes = fault.kind in (FaultKind.AT_ONCE, FaultKind.LEASE_LOST)
                was_there, left = (self._overtaken if overtakes else self._struck)(fault, spot, message)
            stuck = self._finish(left) or stuck
        return was_there, stuck

    def _struck(self, fault: PlannedFault, spot: Spot, message: Any) -> tuple[bool, list[Any]]:
        process = self._take()
        is_over = threading.Event()
        errors: list[Exception] = []

        def act() -> bool:
            try:
                if fault.kind is FaultKind.KILLED:
                    process.end_now()
                if fault.kind is FaultKind.RESTARTED and self._options.restart:
                    self._options.restart()
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                errors.append(error)
            is_over.set()
            return False

        strike = Strike(spot, fault.is_before, act)
        self._stage.watch(process.pid, spot.message, strike)
        outcome = self._deliver(process, message)
        self._stage.unwatch()
        if strike.is_done:
            is_over.wait()
        if errors:
            raise errors[0]
        return strike.is_done, [] if outcome.error is None else [message]

    def _overtaken(self, fault: PlannedFault, spot: Spot, message: Any) -> tuple[bool, list[Any]]:
        """A duplicate is handled while the first delivery stands still at the spot."""
        first, second = self._take(), self._take()
        is_there, goes_on = threading.Event(), threading.Event()

        def act() -> bool:
            is_there.set()
            return goes_on.wait(_HUNG)

        self._stage.watch(first.pid, spot.message, Strike(spot, fault.is_before, act))
        first.give(message)
        outcomes: list[DeliveryOutcome | None] = [None, None]
        deadline = time.monotonic() + _HUNG
        while not is_there.is_set() and outcomes[0] is None:
            outcomes[0] = first.result(0.01) if time.monotonic() < deadline else self._outcome(first)
        if is_there.is_set():
            if fault.kind is FaultKind.LEASE_LOST:
                first.freeze()
                time.sleep(1.1 * (self._options.lease or 0))
            second.give(message)
            outcomes[1] = self._until_still(second)
            first.thaw()
            goes_on.set()
            outcomes = [
                outcome or self._outcome(process)
                for process, outcome in zip((first, second), outcomes, strict=True)
            ]
        self._stage.unwatch()
        self._ready += [first, second]
        failed = [message for outcome in outcomes if outcome is not None and outcome.error is not None]
        return is_there.is_set(), failed

    def _until_still(self, process: HandlerProcess) -> DeliveryOutcome | None:
        while not self._stage.is_still(process.pid):
            if outcome := process.result(0.01):
                return outcome
        return None

    def _twice(self, messages: Sequence[Any]) -> str | None:
        return self._finish([message for message in messages for _ in range(2)])

    def _late(self, messages: Sequence[Any]) -> str | None:
        stuck = self._finish(messages)
        time.sleep(1.1 * (self._options.lease or 0))
        return self._finish(messages) or stuck

    def _out_of_order(self, messages: Sequence[Any]) -> str | None:
        order = places = list(range(len(messages)))
        while order == places:
            order = self._chance.sample(places, len(places))
        return self._finish([messages[place] for place in order])

    def _ack_lost(self, messages: Sequence[Any]) -> str | None:
        stuck = self._acked_and_killed(messages)
        return self._finish(messages) or stuck

    def _acked_and_killed(self, messages: Sequence[Any]) -> str | None:
        stuck = None
        for message in messages:
            stuck = self._finish([message]) or stuck
            if self._ready:  # the last one has just answered
                self._ready.pop().kill()
        return stuck

    def _finish(self, messages: Sequence[Any]) -> str | None:
        """Deliver each message until the handler answers, or seems never to; what it raises then."""
        stuck = None
        waiting = deque((message, 1) for message in messages)
        started, pause = time.monotonic(), 0.01
        while waiting:
            message, number = waiting.popleft()
            error = self._deliver(self._take(), message).error
            if error is None:
                continue
            if number >= _ENOUGH and time.monotonic() - started > self._patience:
                stuck = error
                continue
            waiting.append((message, number + 1))
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
        return stuck

    def _deliver(self, process: HandlerProcess, message: Any) -> DeliveryOutcome:
        process.give(message)
        outcome = self._outcome(process)
        if not process.is_dead:
            self._ready.append(process)
        return outcome

    def _outcome(self, process: HandlerProcess) -> DeliveryOutcome:
        outcome = process.result(_HUNG)
        if outcome is None:
            process.kill()
            return DeliveryOutcome(f"no answer within {_HUNG:.0f} s")
        return outcome

    def _take(self) -> HandlerProcess:
        while self._ready:
            process = self._ready.pop()
            if not process.is_dead:
                return process
        return self._launcher.start()

    def _rows(self) -> Counter[Any]:
        counted = self._options.effects()
        if not isinstance(counted, Mapping):
            raise TypeError(f"effects: expected a Counter, it returned {type(counted).__name__}")
        return Counter(dict(counted))

    def _changes(self, run: int, before: Counter[Any]) -> Counter[str]:
        """What a run has added, with `{run}` in place of its number."""
        after = self._rows()
        changes = Counter[str]()
        rows: set[Hashable] = {*before, *after}
        for row in rows:
            text, change = str(row), after[row] - before[row]
            if change and not self._is_of_another(text, run):
                changes[text.replace(str(run), "{run}")] += change
        for name, number in self._stage.effects().items():
            changes[f"effect {name}"] += number
        return changes

    def _is_of_another(self, text: str, run: int) -> bool:
        """Whether a row is of an earlier run, and late."""
        runs = (int(number) for number in _NUMBER.findall(text))
        return any(self._first < number < run for number in runs)

    def _compare(self, found: Counter[str]) -> list[tuple[ViolationKind, str, int]]:
        violations = []
        for effect in sorted({*found, *self._expected}):
            expected, number = self._expected[effect], found[effect]
            if number < expected:
                violations.append((ViolationKind.LOST, effect, number))
            elif number > expected:
                kind = ViolationKind.DOUBLED if expected else ViolationKind.ADDED
                violations.append((kind, effect, number))
        return violations
