"""An error means the same inside an exception group, which task groups raise."""

import asyncio
from functools import partial
from typing import Any

import pytest

from inbox import Action, AsyncClaim, Claim, Listener, Outcome, Status, Verdict
from inbox.errors import GiveUp, LeaseLost, MessageInFlight, TransientError
from tests.support.on_servers import on
from tests.support.status_mode.asynchronous import in_loop, inbox_at, recorded
from tests.support.status_mode.stores import Place
from tests.support.status_mode.worker import inbox_at as sync_inbox_at

on_sqlite = on("sqlite", fixture="place")  # errors are judged before any store is asked


def no() -> None:
    """A step that fails."""
    raise RuntimeError("no")


def undo(undone: list[Any], result: Any) -> None:
    """Undo a step, which fails the first time."""
    undone.append(result)
    if len(undone) == 1:
        raise RuntimeError("the first undo failed")


@on_sqlite
@in_loop
async def test_the_end_of_a_hopeless_handler(place: Place) -> None:
    """If a handler that runs only to undo its steps begins one in a TaskGroup, the steps are undone and the
    message is dead, as without a group."""
    undone: list[Any] = []

    async def unlock(result: Any) -> None:
        undo(undone, result)

    async with inbox_at(place, max_attempts=2) as inbox:

        @inbox.handler(key=str)
        async def handle(claim: AsyncClaim, _: str) -> None:
            await claim.step("lock", lambda: 1, undo=unlock)
            async with asyncio.TaskGroup() as group:
                group.create_task(claim.step("charge", no))

        listener = inbox.listener()
        actions = [(await listener.decide(["a"], handle))[0].action for _ in range(3)]
    assert actions == [Action.RETRY, Action.RETRY, Action.DEAD_LETTER]
    assert undone == [1, 1]
    assert recorded(place).status is Status.DEAD


@on_sqlite
@in_loop
async def test_a_task_that_gives_up(place: Place) -> None:
    """A GiveUp raised in a task of the handler ends the message at once; the stored error names it."""
    async with inbox_at(place, max_attempts=8) as inbox:

        @inbox.handler(key=str)
        async def handle(*_: object) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(raising(GiveUp("stolen")))

        assert (await inbox.listener().decide(["a"], handle))[0].action is Action.DEAD_LETTER
    record = recorded(place)
    assert (record.status, record.attempts_finished) == (Status.DEAD, 1)
    assert "GiveUp: stolen" in str(record.error)


async def raising(error: BaseException) -> None:
    """A task that fails."""
    raise error


@on_sqlite
def test_what_else_is_in_the_group(place: Place) -> None:
    """What a handler raises beside the end that was forced on it is raised, once its steps are undone."""
    undone: list[Any] = []

    def handle(claim: Claim) -> None:
        claim.step("lock", lambda: 1, undo=partial(undo, undone))
        try:
            claim.step("charge", no)
        except BaseException as error:
            raise BaseExceptionGroup("both", [error, SystemExit(3)]) from error

    with sync_inbox_at(place, max_attempts=2) as inbox:
        for _ in range(3):
            with pytest.raises(BaseExceptionGroup) as raised, inbox.claim("a") as claim:
                handle(claim)
    assert [type(each) for each in raised.value.exceptions] == [SystemExit]
    assert (undone, claim.verdict) == ([1, 1], Verdict.DEAD)


NESTED: dict[str, tuple[BaseException, Action | type[BaseException]]] = {
    "gives up": (GiveUp("for good"), Action.DEAD_LETTER),
    "passes": (TransientError("later"), Action.RETRY),
    "is lost": (LeaseLost("another one has it"), Action.RETRY),
    "is refused": (MessageInFlight("another one has it"), Action.RETRY),
    "was cancelled": (asyncio.CancelledError(), Action.DEAD_LETTER),
    "ends the program": (SystemExit(3), BaseExceptionGroup),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_a_listener_decides(name: str) -> None:
    """A group in a group is judged by the errors in it. A message that always fails counts until it is given
    up; a program that was told to end does."""
    error, expected = NESTED[name]
    inner = BaseExceptionGroup("inner", [error])

    def handle(_: object) -> Outcome:
        raise BaseExceptionGroup("outer", [inner])

    listener = Listener(max_attempts=1, failures=lambda _: 0)
    if isinstance(expected, Action):
        assert [each.action for each in listener.decide("a", handle)] == [expected]
    else:
        with pytest.raises(expected):
            listener.decide("a", handle)
