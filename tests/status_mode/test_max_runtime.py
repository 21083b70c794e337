"""`max_runtime`: a message whose handler runs too long goes to another worker, and stays there."""

import asyncio
import time
from contextlib import ExitStack, suppress
from threading import Thread

import pytest
from sqlalchemy import Connection

from inbox import Claim, Event, EventKind, SqlStore, Status, StatusInbox, Verdict
from inbox._status_mode.stores import Store
from inbox.errors import GiveUp, LeaseLost
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import both_stores, on
from tests.support.processes import wait_until
from tests.support.status_mode.asynchronous import in_loop, inbox_at, recorded
from tests.support.status_mode.stores import CONSUMER, Place, request, stored

LEASE = 2.0
LONGEST = 1.0


@on("postgresql", fixture="place")
@pytest.mark.parametrize("heartbeat", [True, False], ids=["heartbeat", "no heartbeat"])
def test_a_handler_that_hangs_loses_its_message(store: Store, *, heartbeat: bool) -> None:
    """After `max_runtime` the claim is lost and an event says why, the next step is not called, another
    worker takes the message over once the lease has expired, and the first handler's end is rejected."""
    lost: list[str | None] = []

    def hook(event: Event) -> None:
        if event.kind is EventKind.LOST:
            lost.append(event.error)

    inbox = StatusInbox(
        CONSUMER, store=store, lease=LEASE, max_runtime=LONGEST, heartbeat=heartbeat, on_event=hook
    )
    with suppress(LeaseLost):
        with inbox.claim("a") as claim:
            claim.step("first", lambda: 1)
            wait_until(lambda: lost)
            assert claim.lost
            for act in (claim.heartbeat, lambda: claim.step("second", lambda: pytest.fail("it was called"))):
                with pytest.raises(LeaseLost, match="max_runtime"):
                    act()
            wait_until(lambda: store.claim(request()).verdict is Verdict.NEW)
        pytest.fail("it was completed")
    assert lost == ["the handler ran longer than max_runtime, 1 s"]
    record = stored(store)
    assert (record.status, record.owner, record.attempts_started) == (Status.CONSUMING, "worker", 2)
    assert record.token > claim.token


@both_stores
def test_an_overdue_handler_undoes_nothing(store: Store) -> None:
    """The next delivery does: otherwise two workers could undo a step at the same time."""
    calls: list[str] = []

    def handle(seconds: float) -> None:
        with StatusInbox(CONSUMER, store=store, lease=0.5, max_runtime=0.3).claim("a") as claim:
            claim.step("lock", lambda: None, undo=lambda _: calls.append(f"undo {seconds}"))
            time.sleep(seconds)
            raise GiveUp

    with pytest.raises(LeaseLost, match="max_runtime"):
        handle(0.35)
    wait_until(lambda: (until := stored(store).lease_until) is not None and until < store.now())
    with pytest.raises(GiveUp):
        handle(0)
    assert calls == ["undo 0"]


@on("sqlite", fixture="place")
def test_a_claim_whose_thread_has_ended(store: Store) -> None:
    """A claim whose block is never left, and that something keeps, goes to another worker, too."""
    inbox, kept = StatusInbox(CONSUMER, store=store, lease=LEASE, max_runtime=LONGEST), ExitStack()
    thread = Thread(target=lambda: kept.enter_context(inbox.claim("a")))
    thread.start()
    thread.join()
    wait_until(lambda: store.claim(request()).verdict is Verdict.NEW)
    with pytest.raises(LeaseLost):
        kept.close()


@on("sqlite", fixture="place")
@in_loop
async def test_an_asynchronous_handler_that_hangs_is_cancelled(place: Place) -> None:
    """Async: after `max_runtime` the handler is cancelled and the block raises LeaseLost; the lease is no
    longer renewed."""
    async with inbox_at(place, lease=60, max_runtime=LONGEST) as inbox:
        with pytest.raises(LeaseLost, match="max_runtime"):
            async with inbox.claim("a"):
                await asyncio.sleep(30)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
    assert recorded(place).status is Status.CONSUMING


@on("sqlite", fixture="place")
def test_a_late_end_counts_if_nobody_has_taken_over(store: Store) -> None:
    """A handler that ends late completes its message if no other worker has taken it over."""
    inbox = StatusInbox(CONSUMER, store=store, lease=60, max_runtime=LONGEST)
    with inbox.claim("a") as claim:
        claim.step("slow", lambda: time.sleep(LONGEST * 1.1))
        assert claim.lost
    assert stored(store).status is Status.CONSUMED


def test_a_transaction_that_takes_too_long_writes_nothing(sqlite: Database) -> None:
    """A step in a transaction that ends after `max_runtime` is rolled back, with what its body wrote."""
    engine = accounts.make(sqlite.engine())
    inbox = StatusInbox(CONSUMER, store=SqlStore(engine), lease=60, max_runtime=LONGEST)

    def slow(connection: Connection) -> None:
        accounts.add(connection)
        time.sleep(LONGEST * 1.1)

    def handle(claim: Claim) -> None:
        claim.transact("slow", slow)

    with suppress(LeaseLost), inbox.claim("a") as claim:
        handle(claim)
        pytest.fail("it went on")
    assert accounts.total(engine) == 0
    assert stored(inbox.store).steps is None
