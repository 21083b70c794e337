"""A handler outlives its lease, and another claim has made its message dead or halted."""

import time
from typing import Any

import pytest

from inbox import Claim, Status, Verdict
from inbox._status_mode.stores import Store
from inbox.errors import LeaseLost
from tests.support.on_servers import both_stores
from tests.support.status_mode.repairs import KEY, deliver, fails, inbox_of
from tests.support.status_mode.stores import stored

OPTIONS: dict[str, Any] = {"lease": 0.2, "max_attempts": 1}


def is_found(store: Store, verdict: Verdict) -> None:
    """Claim the message until it has this verdict."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with inbox_of(store, **OPTIONS).claim(KEY) as claim:
            if claim.verdict is verdict:
                return
        time.sleep(0.02)
    raise TimeoutError


@pytest.mark.parametrize("status", [Status.DEAD, Status.HALTED])
@both_stores
def test_its_end_is_refused(store: Store, status: Status) -> None:
    """The handler then fails in the same way that the other claim has recorded: it gets LeaseLost, and the
    record stays as it is."""
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
