"""Status-table mode between processes: races, zombies, and workers that die."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from inbox import Status, Verdict
from inbox._status_mode.stores import Store
from tests.support.on_servers import both_stores
from tests.support.processes import CONTEXT, wait_until, workers
from tests.support.status_mode.stores import Place, change, held, request, stored
from tests.support.status_mode.worker import (
    POINTS,
    ZOMBIE_ACTS,
    compensate,
    order,
    poison,
    race,
    renewer,
    sleeper,
    wait_for_ever,
)

RACERS = 32
KEYS = 10
"""Of each kind: new ones, ones whose lease is over, and failed ones."""

REFUSED = [("LeaseLost", True)] * len(ZOMBIE_ACTS)
"""What comes of each, and that `claim.lost` says so."""

SHORT = 0.4
"""Seconds of a lease that is to run out."""


def is_free(store: Store, key: str) -> bool:
    """Whether the lease of a message that was being handled has expired."""
    until = stored(store, key).lease_until
    return until is not None and until <= store.now()


@pytest.mark.quick("postgresql", "redis")
def test_one_of_32_processes_wins_each_key(place: Place, store: Store) -> None:
    """32 processes claim each key at the same time, whether it is new, failed or held by a dead worker:
    exactly one handles it, all others get IN_FLIGHT, and none is lost."""
    new = [f"new {number}" for number in range(KEYS)]
    expired = [f"expired {number}" for number in range(KEYS)]
    failed = [f"failed {number}" for number in range(KEYS)]
    before = {key: store.claim(request(key, lease=0.0)) for key in expired + failed}
    for key in failed:
        assert store.write(held(before[key]), change(status=Status.FAILED, finished=1, error="no"))
    keys = [key for three in zip(new, expired, failed, strict=True) for key in three]
    barrier = CONTEXT.Barrier(RACERS)
    with workers(*[(race, place, barrier, keys)] * RACERS) as racers:
        verdicts = [racer.hear(120) for racer in racers]
    for key, heard in zip(keys, zip(*verdicts, strict=True), strict=True):
        assert Counter(heard) == {Verdict.NEW: 1, Verdict.IN_FLIGHT: RACERS - 1}, key
        record = stored(store, key)
        attempts = 1 if key in new else 2
        assert (record.status, record.attempts_started) == (Status.CONSUMED, attempts)
        assert key in new or record.token > before[key].record.token


def test_a_frozen_worker_can_write_nothing_any_more(place: Place, store: Store) -> None:
    """A worker is frozen past its lease, another one takes the message over, and the first one resumes: its
    heartbeat, step, complete, fail and release raise LeaseLost and do not change the successor's record."""
    works = [(sleeper, place, SHORT, act) for act in ZOMBIE_ACTS]
    with workers(*works) as zombies:
        tokens = {act: zombie.hear() for act, zombie in zip(ZOMBIE_ACTS, zombies, strict=True)}
        for zombie in zombies:
            zombie.freeze()
        successors = {}
        for act in ZOMBIE_ACTS:
            wait_until(lambda act=act: is_free(store, act))  # type: ignore[misc]
            assert store.claim(request(act)).verdict is Verdict.NEW
            successors[act] = stored(store, act)
            assert successors[act].token > tokens[act]
        for zombie in zombies:
            zombie.tell()
            zombie.thaw()
        outcomes = [zombie.hear() for zombie in zombies]
    assert outcomes == REFUSED
    assert {act: stored(store, act) for act in ZOMBIE_ACTS} == successors


@both_stores
def test_a_heartbeat_finds_out_that_the_message_is_lost(place: Place, store: Store) -> None:
    """A worker with heartbeats is frozen past its lease and another one takes the message over: the next
    heartbeat shows that the claim is lost."""
    with workers((renewer, place, 2.0)) as (zombie,):
        zombie.hear()
        first = stored(store).lease_until
        wait_until(lambda: stored(store).lease_until != first)
        zombie.freeze()
        wait_until(lambda: is_free(store, "a"))
        assert store.claim(request()).verdict is Verdict.NEW
        successor = stored(store)
        zombie.thaw()
        assert zombie.hear() == "lost"
        assert zombie.hear() == "LeaseLost"
    assert stored(store) == successor


@both_stores
def test_finished_steps_are_not_called_again(place: Place, store: Store, tmp_path: Path) -> None:
    """A worker is killed before, inside or after each step of an order, and the message is redelivered: a
    finished step is not called again; an interrupted step is called a second time if it may be repeated, and
    otherwise the message is halted."""
    calls = tmp_path / "calls"
    works = [(order, place, calls, point, point, SHORT) for point in POINTS]
    with workers(*works) as killed:
        assert [worker.exit_code() for worker in killed] == [-signal.SIGKILL] * len(POINTS)
    wait_until(lambda: all(is_free(store, point) for point in POINTS))
    with workers(*[(order, place, calls, None, point, 60.0) for point in POINTS]) as successors:
        outcomes = dict(zip(POINTS, [worker.hear() for worker in successors], strict=True))
    made = Counter(calls.read_text().splitlines())
    for point in POINTS:
        called = {step: made[f"{point} {step}"] for step in ("reserve", "charge", "ship", "unreserve")}
        if point == "inside charge":
            assert outcomes[point] == (Verdict.HALTED, 0)
            assert called == {"reserve": 1, "charge": 1, "ship": 0, "unreserve": 0}
            assert stored(store, point).pending_step == "charge"
            continue
        cut_off = {point.removeprefix("inside "): 2} if point.startswith("inside") else {}
        assert outcomes[point] == (Verdict.NEW, 2)
        assert called == {"reserve": 1, "charge": 1, "ship": 1, "unreserve": 0} | cut_off, point
        assert stored(store, point).status is Status.CONSUMED


@both_stores
def test_a_message_that_kills_its_workers_ends_dead(place: Place, store: Store) -> None:
    """Attempts that never end count: after `max_attempts` killed workers the message is dead, and the history
    lists each attempt."""
    for attempt in (1, 2, 3):
        with workers((poison, place, SHORT, 3)) as (worker,):
            assert worker.exit_code() == -signal.SIGKILL
        assert stored(store, "poison").attempts_started == attempt
        wait_until(lambda: is_free(store, "poison"))
    with workers(*[(poison, place, SHORT, 3)] * 2) as survivors:
        assert [worker.hear() for worker in survivors] == [Verdict.DEAD] * 2
    record = stored(store, "poison")
    assert (record.status, record.attempts_started, record.attempts_finished) == (Status.DEAD, 3, 0)
    assert [entry["attempt"] for entry in json.loads(record.history or "")] == [1, 2, 3]


@both_stores
def test_a_worker_that_dies_while_it_undoes_is_followed_by_one_that_goes_on(
    place: Place, store: Store, tmp_path: Path
) -> None:
    """A worker dies while it undoes steps. The next one does not repeat finished undos; it runs the
    interrupted undo again, then the rest, and runs no step."""
    calls = tmp_path / "calls"
    with workers((compensate, place, calls, "charge", SHORT)) as (worker,):
        assert worker.exit_code() == -signal.SIGKILL
    wait_until(lambda: is_free(store, "a"))
    with workers((compensate, place, calls, None, SHORT)) as (worker,):
        assert worker.hear() is Verdict.DEAD
    assert calls.read_text().split("\n")[:-1] == ["undo ship", "undo charge", "undo charge", "undo reserve"]
    record = stored(store)
    assert (record.status, record.undos) == (Status.DEAD, 0)


@both_stores
def test_ctrl_c_gives_the_message_back(place: Place, store: Store) -> None:
    """A worker interrupted by Ctrl-C gives its message back: the next delivery runs immediately, as the first
    attempt."""
    with workers((wait_for_ever, place)) as (worker,):
        assert worker.hear() == "begun"
        worker.interrupt()
        assert worker.exit_code() == 0
    answer = store.claim(request())
    assert (answer.verdict, answer.record.attempts_started) == (Verdict.NEW, 1)
