"""Every handler causes one event when it begins and one when it ends."""

from collections.abc import Callable
from typing import Any

import pytest

from inbox import Backoff, Claim, Event, EventKind, Status, StatusInbox
from inbox._status_mode.stores import HeldRecord, Store
from inbox.errors import GiveUp, InvalidResult, LeaseLost
from tests.support.on_servers import on

BEGINS = {EventKind.CLAIMED, EventKind.UNPROTECTED}
ENDS = {
    EventKind.COMPLETED,
    EventKind.FAILED,
    EventKind.RELEASED,
    EventKind.DEAD,
    EventKind.HALTED,
    EventKind.ABANDONED,
}


def raising(error: BaseException) -> Callable[[Claim, Store], None]:
    """A handler that only raises."""

    def handle(claim: Claim, store: Store) -> None:
        raise error

    return handle


def succeed(claim: Claim, store: Store) -> None:
    pass


def lose(claim: Claim, store: Store) -> None:
    assert store.delete(HeldRecord("orders", claim.key, claim.token), [Status.CONSUMING])


def lose_at_a_step(claim: Claim, store: Store) -> None:
    lose(claim, store)
    claim.step("lock-stock", lambda: None)


def halt(claim: Claim, store: Store) -> None:
    claim.step("charge", lambda: 1 / 0, on_unknown="halt")


CASES: dict[str, tuple[Any, type[BaseException] | None, EventKind]] = {
    "success": (succeed, None, EventKind.COMPLETED),
    "an error": (raising(OSError()), OSError, EventKind.FAILED),
    "giving up": (raising(GiveUp()), GiveUp, EventKind.DEAD),
    "Ctrl-C": (raising(KeyboardInterrupt()), KeyboardInterrupt, EventKind.RELEASED),
    "an unknown step": (halt, ZeroDivisionError, EventKind.HALTED),
    "lost at the end": (lose, LeaseLost, EventKind.ABANDONED),
    "lost at a step": (lose_at_a_step, LeaseLost, EventKind.ABANDONED),
}


@on("sqlite", fixture="place")
@pytest.mark.parametrize("case", CASES)
def test_every_handler_has_one_end(store: Store, case: str) -> None:
    """However a handler ends, exactly one event says that it began and one that it ended."""
    handle, error, end = CASES[case]
    events: list[Event] = []
    inbox = StatusInbox("orders", store=store, on_event=events.append, heartbeat=False)

    def deliver() -> None:
        with inbox.claim("order-1") as claim:
            handle(claim, store)

    if error is None:
        deliver()
    else:
        with pytest.raises(error):
            deliver()
    found = [event.kind for event in events if event.kind in BEGINS | ENDS]
    assert found == [EventKind.CLAIMED, end]
    assert events[0].kind is EventKind.CLAIMED
    assert events[-1].kind is end


@on("sqlite", fixture="place")
def test_a_handler_without_a_claim_has_one_end(store: Store) -> None:
    """A message that runs without a claim also has one event for its beginning and one for its end."""
    events: list[Event] = []
    inbox = StatusInbox("orders", store=store, on_event=events.append, missing_key="run")
    with inbox.claim(None):
        pass
    assert [event.kind for event in events] == [EventKind.UNPROTECTED, EventKind.COMPLETED]


@on("sqlite", fixture="place")
def test_an_invalid_result_fails_the_message(store: Store) -> None:
    """A result that JSON cannot represent is reported like any other error of the handler, and the message
    can run again."""
    events: list[Event] = []
    inbox = StatusInbox("orders", store=store, on_event=events.append, backoff=Backoff(0.01))
    with pytest.raises(InvalidResult), inbox.claim("order-1") as claim:
        claim.result = object()
    assert [event.kind for event in events] == [EventKind.CLAIMED, EventKind.FAILED]
    with inbox.claim("order-1") as claim:
        assert claim.attempt == 2
