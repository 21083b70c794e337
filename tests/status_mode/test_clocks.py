"""Status-table mode when workers' clocks differ, and when the store is down for a while."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from examples.embedded_postgres import EmbeddedPostgres
from inbox import Status, Verdict
from inbox._status_mode.stores import Change, HeldRecord, Store
from inbox.errors import LeaseLost
from inbox_outbox_base.calls import clock
from tests.servers.redis import LocalRedis
from tests.support.on_servers import on
from tests.support.processes import Worker, wait_until, workers
from tests.support.status_mode.stores import CONSUMER, Place, new_prefix, request, status_inbox, stored
from tests.support.status_mode.worker import interrupted_order, wrong_clock
from tests.support.together import Task

MINUTES = (-10, 10)
YOUNG, OLD = timedelta(minutes=115), timedelta(minutes=125)
"""Ages of messages, by the store's clock, on both sides of the worker's retention of two hours."""
TOLERANCE = timedelta(minutes=1)


def test_workers_whose_clocks_are_wrong_agree(place: Place, store: Store) -> None:
    """Two workers whose clocks are 20 minutes apart agree: a held message is in flight for both, an expired
    one can be taken by both, a message's age does not depend on their clocks, and every stored time is the
    store's."""
    for minutes in MINUTES:
        store.claim(request(f"held for {minutes}"))
        store.claim(request(f"over for {minutes}", lease=0.0))
    with workers(*[(wrong_clock, place, minutes) for minutes in MINUTES]) as clocks:
        for minutes, clock in zip(MINUTES, clocks, strict=True):
            shift = datetime.fromisoformat(clock.hear()) - datetime.now(UTC)
            assert abs(shift - timedelta(minutes=minutes)) < TOLERANCE

            def ask(key: str, age: timedelta, clock: Worker = clock) -> tuple[Verdict, float | None]:
                clock.tell((key, age))
                answer: tuple[Verdict, float | None] = clock.hear()
                return answer

            verdict, retry_after = ask(f"held for {minutes}", YOUNG)
            assert verdict is Verdict.IN_FLIGHT
            assert retry_after is not None
            assert 0 < retry_after <= 60
            assert ask(f"over for {minutes}", YOUNG) == (Verdict.NEW, None)
            assert ask("new", YOUNG)[0] is (Verdict.NEW if minutes == MINUTES[0] else Verdict.DUPLICATE)
            assert ask("old", OLD)[0] is Verdict.TOO_OLD
    now = store.now()
    for record in store.list(None, None, 10):
        assert abs(record.created_at - now) < TOLERANCE
        assert abs(record.updated_at - now) < TOLERANCE


@on("postgresql", fixture="place")
def test_a_machine_that_was_suspended(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in which a machine is suspended counts for leases, by a clock that goes on meanwhile. When the
    machine resumes, the claim is lost, and a step asks the store before it begins."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert began <= clock.now() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    resumed, suspended = clock.now, timedelta(hours=1).total_seconds()
    with suppress(LeaseLost), status_inbox(store).claim("a") as claim:
        assert not claim.lost
        monkeypatch.setattr(clock, "now", lambda: resumed() + suspended)
        assert claim.lost
        store.write(HeldRecord(CONSUMER, "a", claim.token), Change(lease=0.0, forget_after=60))
        assert store.claim(request()).verdict is Verdict.NEW
        claim.step("pay", lambda: pytest.fail("it ran"))


Crash = Callable[[Place, Callable[[], None], Path], None]


def restart_between_steps(place: Place, restart: Callable[[], None], calls: Path) -> None:
    """The store is back before the handler goes on, and within the lease: the handler only sees a broken
    connection."""
    with workers((interrupted_order, place, calls, 60.0)) as (worker,):
        assert worker.hear() == "waiting"
        restart()
        worker.tell()
        assert worker.hear() is Verdict.NEW


def restart_during_a_step(place: Place, restart: Callable[[], None], calls: Path) -> None:
    """The handler goes on while the store is down: it succeeds, or gets a clear error."""
    with workers((interrupted_order, place, calls, 1.0)) as (worker,):
        assert worker.hear() == "waiting"
        restarting = Task(restart)
        worker.tell()
        assert worker.hear() in (Verdict.NEW, "StoreUnreachable", "LeaseLost")
        restarting.result()


crashes = pytest.mark.parametrize("crash", [restart_between_steps, restart_during_a_step])


def check_survival(place: Place, restart: Callable[[], None], crash: Crash, calls: Path) -> None:
    """After the crash the message is delivered until it is settled: no step was called twice."""
    crash(place, restart, calls)
    with place.open() as store:
        until = stored(store).lease_until
        wait_until(lambda: until is None or store.now() > until)
    with workers((interrupted_order, place, calls, 60.0)) as (worker,):
        if worker.hear() == "waiting":
            worker.tell()
            assert worker.hear() is Verdict.NEW
    with place.open() as store:
        status = stored(store).status
    made = Counter(calls.read_text().splitlines())
    assert made["reserve"] == 1
    assert made["ship"] <= 1
    assert (status, made["ship"]) in {(Status.CONSUMED, 1), (Status.HALTED, 1), (Status.HALTED, 0)}


@crashes
def test_a_crash_of_postgresql_repeats_nothing(
    private_postgres: EmbeddedPostgres, tmp_path: Path, crash: Crash
) -> None:
    """PostgreSQL crashes and restarts while a message is handled: no step runs twice, and the message ends as
    consumed or halted."""
    place = Place("postgresql", private_postgres.url.render_as_string(hide_password=False))
    check_survival(place, private_postgres.restart, crash, tmp_path / "calls")


@crashes
def test_a_crash_of_redis_repeats_nothing(private_redis: LocalRedis, tmp_path: Path, crash: Crash) -> None:
    """Redis is killed and restarts, without loss of data, while a message is handled: no step runs twice, and
    the message ends as consumed or halted."""
    place = Place("redis", private_redis.url, new_prefix())
    check_survival(place, private_redis.restart, crash, tmp_path / "calls")
