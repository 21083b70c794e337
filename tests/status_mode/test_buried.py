"""A handler that outlives its lease, and whose message another claim has found dead or halted by then."""

import time
from typing import Any

import pytest

from inbox import Claim, Status, Verdict
from inbox._status_mode.stores import Store
from inbox.errors import LeaseLost
from tests.support.repairs import KEY, deliver, fails, inbox_of
from tests.support.status_stores import stored

OPTIONS: dict[str, Any] = {"lease": 0.2, "max_attempts": 1}


def is_found(store: Store, verdict: Verdict) -> None:
    """Claim the message until it is found to be so."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with inbox_of(store, **OPTIONS).claim(KEY) as claim:
            if claim.verdict is verdict:
                return
        time.sleep(0.02)
    raise TimeoutError


@pytest.mark.parametrize("status", [Status.DEAD, Status.HALTED])
def test_its_end_is_refused(store: Store, status: Status) -> None:
    """The handler fails in the very way that the other claim has recorded; it is told that the message is not
    its own any more, and what was recorded stays."""
    before = []

    def outlives(claim: Claim) -> None:
        is_found(store, Verdict[status.name])
        before.append(stored(store, KEY))
        fails(claim)

    def in_a_step(claim: Claim) -> None:
        claim.step("charge", lambda: outlives(claim), on_unknown="halt")

    with pytest.raises(LeaseLost):
        deliver(store, outlives if status is Status.DEAD else in_a_step, **OPTIONS)
    assert [stored(store, KEY)] == before
    assert before[0].status is status
