"""The protocol of status-table mode, explored exhaustively over all interleavings."""

from collections import deque

import pytest

from inbox import Status, Verdict
from inbox._status_mode.stores.records import Judgement
from tests.support.status_mode.protocol import MAX_ATTEMPTS, Protocol, Row, State, Step, judged

WORKERS = 3
SETTLED = {Status.CONSUMED, Status.DEAD, Status.HALTED}


def violation(before: State, step: Step) -> str | None:
    """The promise that this step breaks, if any."""
    row, after = before.row, step.after
    held = [worker.token for worker in after.workers if worker.token]
    is_claim = after.claims != before.claims
    broken = {
        "two workers have the same token": len(held) != len(set(held)),
        "a zombie's write was accepted": step.wrote is not None and step.wrote != before.newest,
        "a token is not larger than all before": is_claim and after.newest <= before.newest,
        "a message was taken from who has its lease": is_claim and row is not None and row.live,
        "a step that may not be repeated can be": is_claim and after.row is not None and after.row.pending,
        "what is settled was changed": row is not None
        and row.status in SETTLED
        and after.row not in (row, None),
        "more attempts than allowed": after.row is not None and after.row.started > MAX_ATTEMPTS,
        "more attempts ended than began": after.row is not None and after.row.finished > after.row.started,
    }
    return next((promise for promise, is_broken in broken.items() if is_broken), None)


def explore(protocol: Protocol) -> tuple[str | None, int, list[str]]:
    """The first broken promise on a shortest path, the number of states seen, and that path."""
    start = protocol.start(WORKERS)
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for step in protocol.steps(state):
            broken = violation(state, step)
            if broken is not None:
                return broken, len(came_from), [*path(came_from, state), step.name]
            if step.after not in came_from:
                came_from[step.after] = (state, step.name)
                queue.append(step.after)
    return None, len(came_from), []


def path(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    """The steps that led to this state."""
    names: list[str] = []
    while (link := came_from[state]) is not None:
        state, name = link
        names.append(name)
    return names[::-1]


def test_no_interleaving_breaks_a_promise() -> None:
    """Three workers claim, look and take over, renew, run steps, end, release, die and come back as zombies,
    while leases expire and the record is purged, in every order: at most one holds the newest token, only the
    newest token writes, settled messages stay settled, and attempts are bounded."""
    broken, states, steps = explore(Protocol())
    assert broken is None, steps
    assert states > 10_000


def takes_live_leases(row: Row, clock: int) -> tuple[Judgement, int]:
    """A judge that does not check whether the lease has expired."""
    return judged(row._replace(live=False), clock)


def revives(row: Row, clock: int) -> tuple[Judgement, int]:
    """A judge that lets a dead message run."""
    is_dead = row.status is Status.DEAD
    return judged(row._replace(status=Status.FAILED, started=1) if is_dead else row, clock)


def repeats_tokens(row: Row, clock: int) -> tuple[Judgement, int]:
    """A judge that reuses the token."""
    return judged(row, clock)[0], row.token


def counts_nothing(row: Row, clock: int) -> tuple[Judgement, int]:
    """A judge that never finds the attempts used up."""
    judgement, token = judged(row._replace(started=1), clock)
    return (Judgement(Verdict.NEW), row.token + 1) if judgement.bury is Status.DEAD else (judgement, token)


WITHOUT = {
    "fencing": (Protocol(fences=False), "a zombie's write was accepted"),
    "looking again": (Protocol(looks_again=False), "a message was taken from who has its lease"),
    "asking for pending steps": (Protocol(knows_steps=False), "a step that may not be repeated can be"),
    "waiting for leases": (
        Protocol(judges=takes_live_leases, looks_again=False),
        "a message was taken from who has its lease",
    ),
    "the end of the dead": (Protocol(judges=revives), "what is settled was changed"),
    "new tokens": (Protocol(judges=repeats_tokens), "two workers have the same token"),
    "counting": (Protocol(judges=counts_nothing), "more attempts than allowed"),
}


@pytest.mark.parametrize(("protocol", "promise"), WITHOUT.values(), ids=WITHOUT)
def test_every_rule_is_needed(protocol: Protocol, promise: str) -> None:
    """If any one rule is left out, the exploration finds a path that breaks the expected promise."""
    broken, _, steps = explore(protocol)
    assert broken == promise, steps
