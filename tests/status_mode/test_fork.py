"""A process that is forked inside a handler: the message stays with the original process."""

import os
from collections.abc import Callable
from typing import NoReturn

import pytest

from inbox import Claim, Event, EventKind, Status, StatusInbox
from inbox._status_mode.stores import Store
from inbox.errors import LeaseLost
from tests.support.on_servers import each_on
from tests.support.status_mode.stores import NAMES, status_inbox, stored

AS_EXPECTED, OTHERWISE = 17, 18
"""How a forked process ends."""


def leave(_: Claim) -> NoReturn:
    """Leave the handler with SystemExit."""
    raise SystemExit


def fail(_: Claim) -> NoReturn:
    """Leave the handler with an error."""
    raise ZeroDivisionError


ENDS: dict[str, tuple[Callable[[Claim], object], type[BaseException]]] = {
    "SystemExit": (leave, SystemExit),
    "an error": (fail, ZeroDivisionError),
    "its end": (lambda _: None, LeaseLost),
    "a step": (lambda claim: claim.step("two", lambda: os._exit(OTHERWISE)), LeaseLost),
    "a heartbeat": (lambda claim: claim.heartbeat(), LeaseLost),
}


def handle(inbox: StatusInbox, act: Callable[[Claim], object]) -> None:
    """A handler that forks; the child runs `act`, and the original process waits for its exit and goes on."""
    with inbox.claim("a") as claim:
        claim.step("one", lambda: 1)
        child = os.fork()
        if not child:
            assert claim.lost
            act(claim)
            return
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == AS_EXPECTED
        assert not claim.lost
        claim.step("two", lambda: 2)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@each_on("sqlite", "end", [(end,) for end in ENDS], [("SystemExit",)], among=NAMES, fixture="place")
def test_only_the_original_process_has_the_message(store: Store, end: str) -> None:
    """However the child leaves the handler, it writes nothing about the message and sends no event; the
    original process completes it."""
    act, expected = ENDS[end]
    events: list[EventKind] = []

    def hook(event: Event) -> None:
        if os.getpid() != original:
            os._exit(OTHERWISE)
        events.append(event.kind)

    original = os.getpid()
    inbox = status_inbox(store, heartbeat=True, on_event=hook)
    try:
        handle(inbox, act)
    except expected:
        if os.getpid() != original:
            os._exit(AS_EXPECTED)
        raise
    finally:
        if os.getpid() != original:
            os._exit(OTHERWISE)
    record = stored(store)
    assert (record.status, record.attempts_started, record.attempts_finished) == (Status.CONSUMED, 1, 1)
    assert events == [EventKind.CLAIMED, EventKind.STEP_DONE, EventKind.STEP_DONE, EventKind.COMPLETED]
