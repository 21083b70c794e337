"""How often a message may fail before a listener gives up."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from inbox import Action, Outcome, Verdict
from inbox.errors import GiveUp, LeaseLost, StoreUnreachable, TablesMissing
from tests.support.cases import case
from tests.support.listeners import Decide, Fault, each_listener

FAILED = Outcome(Verdict.NEW, error=Fault("a bug"))


@each_listener
def test_a_message_that_fails_too_often(decide: Decide) -> None:
    """A failing message is tried `max_attempts` times, and then becomes a dead letter that says why. Other
    messages are not affected."""
    failures: Counter[str] = Counter()
    options: dict[str, Any] = {"failures": failures.__getitem__, "max_attempts": 3}

    def run() -> list[tuple[Action, str]]:
        decisions = decide(
            ["bad", "good"], {"bad": FAILED, "good": Outcome(Verdict.NEW)}.__getitem__, **options
        )
        assert decisions[0].outcome is not None
        failures["bad"] += decisions[0].outcome.is_failure
        return [(each.action, each.reason) for each in decisions]

    good = (Action.ACK, "new")
    assert run() == [(Action.RETRY, "Fault: a bug"), good]
    assert run() == [(Action.RETRY, "Fault: a bug"), good]
    assert run() == [(Action.DEAD_LETTER, "dead: GiveUp: it has failed 3 times: Fault: a bug"), good]
    assert failures == {"bad": 2}


NO_FAILURES = [
    Outcome(Verdict.NEW),
    Outcome(Verdict.IN_FLIGHT),
    Outcome(Verdict.NEW, error=StoreUnreachable("away")),
    Outcome(Verdict.NEW, error=OperationalError("SELECT", {}, Exception(), connection_invalidated=True)),
    Outcome(Verdict.NEW, error=TablesMissing("inbox")),
    Outcome(Verdict.NEW, error=LeaseLost("somebody else's")),
    Outcome(Verdict.NEW, None, 5.0, Fault("counted")),
    Outcome(Verdict.DEAD, error=Fault("counted")),
    Outcome(Verdict.DEAD, error=GiveUp("by itself")),
]


@each_listener
def test_what_is_no_failure(decide: Decide) -> None:
    """An outcome that is not a failure of the handler is decided in the same way with `max_attempts`: an
    error of the database, a failure that the inbox has counted itself, and anything that ends the message in
    any case."""
    free = decide(NO_FAILURES, lambda outcome: outcome)
    bounded = decide(NO_FAILURES, lambda outcome: outcome, failures=lambda _: 100, max_attempts=1)
    for outcome, one, other in zip(NO_FAILURES, free, bounded, strict=True):
        with case(outcome):
            assert not outcome.is_failure
            assert (other.action, other.reason) == (one.action, one.reason)


@each_listener
def test_something_else_was_cancelled(decide: Decide) -> None:
    """A handler that raises CancelledError, because something it waited for was cancelled, fails like any
    other; the listener goes on."""

    def wait(_: object) -> Outcome:
        raise asyncio.CancelledError

    (first,), (last,) = (
        decide(["m"], wait, failures=lambda _: failures, max_attempts=2)  # noqa: B023 - called in its turn
        for failures in range(2)
    )
    assert first.outcome is not None
    assert (first.action, first.outcome.is_failure) == (Action.RETRY, True)
    assert (last.action, isinstance(last.outcome and last.outcome.error, GiveUp)) == (
        Action.DEAD_LETTER,
        True,
    )


@each_listener
def test_a_message_whose_key_fails(decide: Decide) -> None:
    """A message whose key cannot be determined never reaches its handler, but is given up after
    `max_attempts`, too."""
    options: dict[str, Any] = {"key": {}.__getitem__, "failures": lambda _: 1, "max_attempts": 2}
    (decision,) = decide(["m"], lambda _: pytest.fail("called"), **options)
    assert decision.reason == "dead: GiveUp: it has failed 2 times: KeyError: 'm'"


@each_listener
def test_failures_may_fail(decide: Decide, caplog: pytest.LogCaptureFixture) -> None:
    """If `failures` raises or returns nonsense, the listener assumes no earlier failures, and the log says
    so."""
    wrong: list[Any] = [{}.__getitem__, lambda _: "many"]
    for failures in wrong:
        caplog.clear()
        (decision,) = decide(["m"], lambda _: FAILED, failures=failures, max_attempts=2)
        assert decision.action is Action.RETRY
        assert "failures= raised an error, using 0" in caplog.text
