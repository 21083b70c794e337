"""What a listener tells the broker about one message, whatever its handler returns or raises."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn

import pytest

from inbox import Action, AsyncListener, Backoff, Decision, Decisions, Inbox, Listener, Outcome, Verdict
from inbox.errors import (
    GiveUp,
    InvalidKey,
    InvalidOption,
    InvalidResult,
    LeaseLost,
    MessageInFlight,
    MessageTooOld,
    PayloadMismatch,
    StoreUnreachable,
    TablesMissing,
    TransactionEnded,
)
from tests.support.cases import case
from tests.support.listeners import Decide, each_listener, in_threads

ACK, RETRY, DEAD_LETTER = Action.ACK, Action.RETRY, Action.DEAD_LETTER
NEW = Outcome(Verdict.NEW)
DEAD = Outcome(Verdict.DEAD)

variable: ContextVar[str] = ContextVar("variable")


class Seen(list[Any]):
    """A handler that records its messages."""

    def __call__(self, message: object) -> Outcome:
        self.append(message)
        return NEW


def raising(error: BaseException) -> Any:
    def handle(*_: object) -> NoReturn:
        raise error

    return handle


MEANINGS: list[tuple[Verdict, Exception | None, Action]] = [
    (Verdict.NEW, None, ACK),
    (Verdict.DUPLICATE, None, ACK),
    (Verdict.IN_FLIGHT, None, RETRY),
    (Verdict.MISMATCH, None, DEAD_LETTER),
    (Verdict.TOO_OLD, None, DEAD_LETTER),
    (Verdict.DEAD, None, DEAD_LETTER),
    (Verdict.HALTED, None, DEAD_LETTER),
    (Verdict.NEW, ValueError("a"), RETRY),
    (Verdict.NEW, StoreUnreachable("a"), RETRY),
    (Verdict.NEW, TablesMissing("a"), RETRY),
    (Verdict.NEW, GiveUp("a"), RETRY),
    (Verdict.DEAD, ValueError("a"), DEAD_LETTER),
    (Verdict.HALTED, ValueError("a"), DEAD_LETTER),
    (Verdict.NEW, InvalidKey("a"), DEAD_LETTER),
    (Verdict.NEW, InvalidOption("a"), DEAD_LETTER),
    (Verdict.NEW, InvalidResult("a"), DEAD_LETTER),
    (Verdict.NEW, TransactionEnded("a"), DEAD_LETTER),
    (Verdict.NEW, LeaseLost("a"), RETRY),
    (Verdict.DEAD, LeaseLost("a"), RETRY),
    (Verdict.DUPLICATE, ValueError("a"), RETRY),
]


@each_listener
def test_what_an_outcome_means(decide: Decide) -> None:
    """A message is acknowledged only if it took effect. A message that can never succeed is a dead letter,
    and any other is delivered again. The decision contains the outcome, and its reason names the verdict or
    the error."""
    outcomes = [Outcome(verdict, error=error) for verdict, error, _ in MEANINGS]
    decisions = decide(outcomes, lambda outcome: outcome)
    for (verdict, error, action), outcome, decision in zip(MEANINGS, outcomes, decisions, strict=True):
        with case(outcome):
            assert decision.action is action
            assert decision.outcome is outcome
            assert (type(error).__name__ if error else verdict) in decision.reason


@each_listener
def test_what_a_handler_raises(decide: Decide, caplog: pytest.LogCaptureFixture) -> None:
    """An exception appears in the decision's outcome, and in the log with its traceback."""
    for error, verdict, action in (
        (ValueError("a"), Verdict.NEW, RETRY),
        (LeaseLost("a"), Verdict.NEW, RETRY),
        (InvalidKey("a"), Verdict.NEW, DEAD_LETTER),
        (GiveUp("a"), Verdict.DEAD, DEAD_LETTER),
    ):
        caplog.clear()
        (decision,) = decide(["m"], raising(error))
        assert decision.action is action
        assert decision.outcome == Outcome(verdict, error=error)
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("inbox.listener", logging.WARNING)
        assert record.exc_info is not None
        assert record.exc_info[1] is error


@each_listener
def test_what_cannot_be_printed(decide: Decide) -> None:
    """A message whose key has no repr, such as a number of 5,000 digits, ends no other message."""
    answers = {10**5_000: DEAD, "a": NEW}
    decisions = decide(answers, answers.__getitem__, key=lambda message: message)
    assert [each.action for each in decisions] == [DEAD_LETTER, ACK]


@each_listener
def test_a_handler_that_tells_its_outcome(decide: Decide) -> None:
    """If a handler has an attribute `outcome`, the listener calls that instead, since it returns errors
    together with a verdict."""
    handler = raising(AssertionError("called"))
    handler.outcome = lambda _: Outcome(Verdict.NEW, None, 7.5, ValueError("a"))
    (decision,) = decide(["m"], handler)
    assert (decision.action, decision.delay) == (RETRY, 7.5)


@each_listener
def test_how_long_a_retry_waits(decide: Decide) -> None:
    """A retry waits as long as the outcome says. Otherwise the backoff computes the delay from the number of
    deliveries that the broker reports."""
    backoff = Backoff(first=8, factor=2, longest=1_000)
    outcomes = {
        1: Outcome(Verdict.IN_FLIGHT, None, 3.0),
        2: Outcome(Verdict.NEW, None, 0.0, ValueError("a")),
        3: Outcome(Verdict.IN_FLIGHT),
        4: Outcome(Verdict.NEW, error=ValueError("a")),
    }
    decisions = decide(outcomes, outcomes.__getitem__, backoff=backoff, attempt=lambda message: message)
    assert [each.delay for each in decisions[:2]] == [3.0, 0.0]
    assert 16 <= decisions[2].delay <= 32
    assert 32 <= decisions[3].delay <= 64
    (first,) = decide([4], outcomes.__getitem__, backoff=backoff)
    assert 4 <= first.delay <= 8


@each_listener
def test_attempt_may_fail(decide: Decide, caplog: pytest.LogCaptureFixture) -> None:
    """If the number of a message's deliveries cannot be determined, the message waits as after its first one,
    and the log says why."""
    options: dict[str, Any] = {"backoff": Backoff(first=8), "attempt": raising(KeyError("count"))}
    (decision,) = decide(["m"], lambda _: Outcome(Verdict.IN_FLIGHT), **options)
    assert decision.action is RETRY
    assert 4 <= decision.delay <= 8
    assert "attempt=" in caplog.text


@each_listener
def test_several_refusals(decide: Decide) -> None:
    """If several inboxes of one handler have refused the message, it is delivered again while one of them may
    still take it, and is a dead letter before it is dropped, whatever their order."""
    refused = [MessageTooOld(), PayloadMismatch()]
    waits = [MessageInFlight(retry_after=5), MessageInFlight(retry_after=9), MessageInFlight()]
    groups = [[*refused, *waits], [*waits, *refused], refused, refused[::-1]]
    errors = [ExceptionGroup("both", group) for group in groups]
    decisions = decide(range(4), lambda number: raising(errors[number])(), too_old="ack")
    assert [each.action for each in decisions] == [RETRY, RETRY, DEAD_LETTER, DEAD_LETTER]
    assert decisions[0].delay == decisions[1].delay == 9


@each_listener
def test_too_old_may_be_dropped(decide: Decide) -> None:
    """With too_old="ack" a message older than the retention is dropped, instead of becoming a dead letter."""
    (decision,) = decide(["m"], lambda _: Outcome(Verdict.TOO_OLD), too_old="ack")
    assert (decision.action, decision.reason) == (ACK, "too_old")


@each_listener
def test_dead_letters_are_put_away(decide: Decide) -> None:
    """A message that `dead_letter` has stored is acknowledged, so an ordered batch continues after it."""
    taken: list[tuple[str, Decision]] = []
    options: dict[str, Any] = {
        "order": "in_order",
        "dead_letter": lambda message, decision: taken.append((message, decision)),
    }
    decisions = decide("abc", lambda message: DEAD if message == "b" else NEW, **options)
    assert [each.action for each in decisions] == [ACK] * 3
    assert decisions.acknowledged == 3
    ((message, decision),) = taken
    assert (message, decision.action, decision.reason) == ("b", DEAD_LETTER, "dead")
    assert decisions[1].reason == "stored as a dead letter: dead"


def test_a_dead_letter_that_would_have_to_be_awaited_comes_again() -> None:
    """A listener for synchronous handlers does not take an asynchronous `dead_letter` for one that has stored
    the message."""

    class Unfinished:
        """What an asynchronous function returns, but nobody is warned if it is not awaited."""

        def __await__(self) -> Iterator[None]:
            raise AssertionError("it runs")

    listener = Listener(dead_letter=lambda message, decision: Unfinished())
    (decision,) = listener.decide(["m"], lambda _: DEAD)
    assert decision.action is RETRY
    assert "dead_letter: it is asynchronous, and was not awaited" in decision.reason


@each_listener
def test_a_dead_letter_that_cannot_be_put_away_comes_again(
    decide: Decide, caplog: pytest.LogCaptureFixture
) -> None:
    """When `dead_letter` raises, the message is not lost: it is delivered again later."""
    options: dict[str, Any] = {"dead_letter": raising(OSError("no room")), "backoff": Backoff(first=8)}
    (decision,) = decide(["m"], lambda _: DEAD, **options)
    assert decision.action is RETRY
    assert 4 <= decision.delay <= 8
    assert decision.outcome == DEAD
    assert decision.reason == "dead_letter= failed (OSError: no room) on: dead"
    assert "dead_letter= failed" in caplog.text


@each_listener
def test_a_message_without_a_usable_key_does_not_run(decide: Decide) -> None:
    """A message whose key cannot be determined, or is not hashable, does not run: the listener cannot tell
    which messages may run at the same time."""
    seen = Seen()
    keys: list[tuple[Any, type[Exception]]] = [(raising(KeyError("id")), KeyError), (lambda _: [], TypeError)]
    for key, error in keys:
        (decision,) = decide(["m"], seen, key=key)
        assert decision.action is RETRY
        assert decision.outcome is not None
        assert isinstance(decision.outcome.error, error)
    assert seen == []


@each_listener
def test_a_handler_without_an_outcome_is_a_mistake(decide: Decide) -> None:
    """A function that does not return an outcome is rejected; it does not count as success."""
    with pytest.raises(InvalidOption, match=r"None, expected an inbox\.Outcome"):
        decide(["m", "n"], lambda _: None)  # type: ignore[arg-type, return-value]


@each_listener
def test_an_exit_comes_through(decide: Decide) -> None:
    """An exception that is not a subclass of Exception ends the call, and no further message starts."""
    seen: list[str] = []

    def handle(message: str) -> Outcome:
        seen.append(message)
        raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        decide("ab", handle)
    assert caught.value.code == 3
    assert seen == ["a"]


@each_listener
def test_context_variables_reach_the_handler(decide: Decide) -> None:
    """The handler sees the caller's context variables, so traces stay connected."""
    seen: list[str] = []

    def handle(_: object) -> Outcome:
        seen.append(variable.get())
        return NEW

    token = variable.set("of the caller")
    try:
        decide("ab", handle, concurrency=2)
    finally:
        variable.reset(token)
    assert seen == ["of the caller"] * 2


def test_one_message_can_be_decided_in_the_callers_thread() -> None:
    """So what its framework raises there reaches the handler, and leaves it; errors become decisions."""
    listener, threads = Listener(dead_letter=lambda message, decision: None), list[int]()

    def handle(error: BaseException | None) -> Outcome:
        threads.append(threading.get_ident())
        if error is not None:
            raise error
        return NEW

    assert listener.decide_here(None, handle).action is ACK
    assert listener.decide_here(ValueError("a"), handle).action is RETRY
    assert listener.decide_here(PayloadMismatch("a"), handle).reason.startswith("stored as a dead letter")
    with pytest.raises(KeyboardInterrupt):
        listener.decide_here(KeyboardInterrupt(), handle)
    assert set(threads) == {threading.get_ident()}


def test_context_variables_of_calls_do_not_mix() -> None:
    """A message that starts because a message of another call has ended still sees its own caller's
    context."""

    async def scenario() -> None:
        listener = AsyncListener()

        async def handle(message: str) -> Outcome:
            await asyncio.sleep(0)
            assert variable.get() == message
            return NEW

        async def call(name: str) -> int:
            variable.set(name)
            return (await listener.decide([name] * 3, handle)).acknowledged

        assert await asyncio.gather(*map(call, "abc")) == [3, 3, 3]

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", [Listener, AsyncListener])
def test_invalid_options(kind: Any) -> None:
    """An invalid option raises an error that names it."""
    invalid: list[dict[str, Any]] = [
        {"order": "random"},
        {"concurrency": 0},
        {"order": "in_order", "concurrency": 2},
        {"key": "id"},
        {"attempt": 1},
        {"failures": 1},
        {"failures": len, "max_attempts": 0},
        {"max_attempts": 3},
        {"backoff": 1},
        {"grace": -1},
        {"too_old": "retry"},
        {"dead_letter": True},
    ]
    for options in invalid:
        with case(options), pytest.raises(InvalidOption, match=f"^{list(options)[-1]}="):
            kind(**options)


def test_an_asynchronous_handler_is_for_the_other_listener() -> None:
    """`Listener` rejects an asynchronous handler before anything runs."""

    async def handle(_: object) -> Outcome:
        raise AssertionError("called")

    class Handler:
        async def __call__(self, _: object) -> Outcome:
            raise AssertionError("called")

    for each in (handle, Handler(), partial(Handler())):
        with pytest.raises(InvalidOption, match="AsyncListener"):
            in_threads(["m"], each)  # type: ignore[arg-type]


def test_a_synchronous_handler_is_for_the_other_listener() -> None:
    """`AsyncListener` rejects a handler of a synchronous inbox before anything runs. It accepts a plain
    function that returns an awaitable, and the outcome of one that does not."""
    booked: Any = Inbox("payments").handler(lambda: None, key=str)  # type: ignore[arg-type, return-value]
    refused = booked(lambda *_: pytest.fail("called"))
    refused.__wrapped__ = refused

    async def handle(_: object) -> Outcome:
        return NEW

    async def scenario() -> None:
        with pytest.raises(InvalidOption, match="see Listener"):
            await AsyncListener().decide(["m"], refused)
        for each in (lambda message: handle(message), Seen()):
            (decision,) = await AsyncListener().decide(["m"], each)  # type: ignore[arg-type]
            assert decision.action is ACK

    asyncio.run(scenario())


def test_an_invalid_handler() -> None:
    """A handler that is not callable is rejected before anything runs."""
    with pytest.raises(InvalidOption, match="handler='no function'"):
        Listener().decide(["m"], "no function")  # type: ignore[arg-type]


def test_acknowledged_counts_from_the_start() -> None:
    """`acknowledged` is for brokers that acknowledge up to an index: it does not count anything after the
    first failure."""
    ack, retry = Decision(ACK), Decision(RETRY)
    assert Decisions([ack, ack, retry, ack]).acknowledged == 2
    assert Decisions([retry, ack]).acknowledged == 0
    assert Decisions([ack, Decision(DEAD_LETTER), ack]).acknowledged == 1
    assert Decisions([ack, ack]).acknowledged == 2
