"""Operators' decisions about messages of status-table mode, on every store."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import Any

import pytest
from sqlalchemy import event

from inbox import (
    Claim,
    EventKind,
    Record,
    SqlStore,
    Status,
    StatusInbox,
    Verdict,
    discard,
    list_messages,
    release,
    resolve_step,
    retry,
    show_message,
)
from inbox._status_mode.stores import Store
from inbox.errors import GiveUp, LeaseLost, WrongStatus
from tests.support.database import Database
from tests.support.on_servers import STORES, on, spread
from tests.support.status_mode.repairs import (
    KEY,
    PAYLOAD,
    deliver,
    fails,
    gives_up,
    halts,
    has_ended,
    history,
    inbox_of,
)
from tests.support.status_mode.stores import CONSUMER, stored

one_store = on("sqlite", fixture="place")
two_stores = on("sqlite", "redis", fixture="place")


def test_list_and_show(store: Store) -> None:
    """Messages are listed by consumer and status, the longest unchanged first, up to a limit; one message is
    shown by its key, given as text or as a tuple."""
    for number in range(3):
        has_ended(store, Status.DEAD, f"dead-{number}")
    has_ended(store, Status.HALTED)
    with StatusInbox("shipping", store=store).claim(("order", 1)) as claim:
        claim.result = 7
    assert [each.key for each in list_messages(store, status="dead")] == ["dead-0", "dead-1", "dead-2"]
    assert [each.key for each in list_messages(store, limit=2)] == ["dead-0", "dead-1"]
    assert [each.key for each in list_messages(store, consumer=CONSUMER, status=Status.HALTED)] == [KEY]
    assert list_messages(store, consumer="shipping", status="dead") == []
    assert len(list_messages(store, consumer="shipping")) == 1
    shown = show_message(store, "shipping", ("order", 1))
    assert shown is not None
    assert (shown.key, shown.status, shown.result) == ('["order",1]', Status.CONSUMED, "7")
    assert show_message(store, CONSUMER, "nobody") is None
    dead = show_message(store, CONSUMER, "dead-0")
    assert dead is not None
    assert dead.payload == PAYLOAD
    retry(store, CONSUMER, "dead-0")
    assert [each.key for each in list_messages(store, consumer=CONSUMER)] == [
        "dead-1",
        "dead-2",
        KEY,
        "dead-0",
    ]


@spread("status", [Status.DEAD, Status.FAILED], where=STORES, fixture="place")
def test_retry(store: Store, status: Status) -> None:
    """A dead or failed message runs at its next delivery, with attempts counted from 1; its history, payload
    and finished steps are kept."""
    calls: list[int] = []

    def locks_and_fails(claim: Claim) -> None:
        claim.step("lock", lambda: calls.append(1))
        fails(claim)

    for _ in range(3):
        with pytest.raises(RuntimeError):
            deliver(store, locks_and_fails, max_attempts=3 if status is Status.DEAD else 4)
    before = stored(store, KEY)
    assert (before.status, before.attempts_started, before.attempts_finished) == (status, 3, 3)
    retry(store, CONSUMER, KEY, by="ann")
    record = stored(store, KEY)
    assert (record.status, record.attempts_started, record.attempts_finished) == (Status.FAILED, 0, 0)
    assert record.payload == before.payload
    assert record.error == "to be retried by ann"
    assert [each["error"] for each in history(store)] == [
        "RuntimeError: attempt 1",
        "RuntimeError: attempt 2",
        "RuntimeError: attempt 3",
        "to be retried",
    ]
    assert history(store)[-1]["owner"] == "ann"
    attempts: list[int] = []

    def succeeds(claim: Claim) -> None:
        claim.step("lock", lambda: calls.append(2))
        attempts.append(claim.attempt)

    assert deliver(store, succeeds, max_attempts=1) is Verdict.NEW
    assert (attempts, calls) == ([1], [1])


@one_store
def test_retry_after_steps_were_undone(store: Store) -> None:
    """After a retry, steps that were undone run again, with a new idempotency key each time; other finished
    steps do not."""
    calls: list[str] = []

    def handler(claim: Claim) -> None:
        claim.step("check", lambda: calls.append("check"))
        claim.step("lock", lambda: calls.append(claim.step_key("lock")), undo=lambda _: calls.append("undo"))
        claim.step("charge", lambda: gives_up(claim))

    for _ in range(3):
        with pytest.raises(GiveUp):
            deliver(store, handler)
        retry(store, CONSUMER, KEY)
    assert calls[0] == "check"
    assert calls[2::2] == ["undo"] * 3
    assert len(set(calls[1::2])) == 3

    def succeeds(claim: Claim) -> None:
        before = claim.step_key("lock")
        claim.step("lock", lambda: calls.append(claim.step_key("lock")))
        assert before == claim.step_key("lock")

    assert deliver(store, succeeds) is Verdict.NEW
    assert len(set(calls[1::2])) == 4


@one_store
def test_steps_that_run_again_are_undone_in_their_order(store: Store) -> None:
    """After a retry, undos run in the reverse order of the steps of the new run."""
    undone: list[str] = []

    def handler(claim: Claim, names: str) -> None:
        for name in names:
            claim.step(name, lambda: None, undo=lambda _, name=name: undone.append(name))  # type: ignore[misc]
        gives_up(claim)

    for names in ("ab", "ba"):
        with pytest.raises(GiveUp):
            deliver(store, partial(handler, names=names))
        retry(store, CONSUMER, KEY)
    assert undone == ["b", "a", "a", "b"]


@spread("status", [Status.DEAD, Status.HALTED, Status.FAILED], where=STORES, fixture="place")
def test_discard(store: Store, status: Status) -> None:
    """A discarded message never runs: every later delivery is a duplicate without a result. The record says
    who discarded it."""
    has_ended(store, status)
    discard(store, CONSUMER, KEY, by="ann")
    record = stored(store, KEY)
    assert (record.status, record.result, record.pending_step) == (Status.CONSUMED, None, None)
    assert record.error == "discarded by ann"
    assert [each["error"] for each in history(store)][1:] == ["discarded"]
    assert deliver(store, fails) is Verdict.DUPLICATE
    with inbox_of(store).claim(KEY) as claim:
        assert claim.result is None


def test_release(store: Store) -> None:
    """A released message can be claimed immediately, with the same attempt number; all writes of the former
    handler are rejected, and the successor's record is unchanged."""
    with pytest.raises(LeaseLost), inbox_of(store).claim(KEY) as zombie:
        is_taken_over(store, zombie)
    record = stored(store, KEY)
    assert (record.status, record.attempts_started) == (Status.CONSUMED, 1)


@two_stores
def test_a_release_while_the_lease_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is not taken from a worker that has claimed it since the operator looked at it."""
    claim, find, looks = inbox_of(store, lease=0.5).claim(KEY), store.find, []
    claim.__enter__()

    def found(*where: str) -> Record | None:
        looks.append(where)
        if len(looks) == 2:
            time.sleep(0.7)
            assert successor.__enter__().is_new
        return find(*where)

    with ExitStack() as stack:
        successor = inbox_of(store).claim(KEY)
        stack.push(successor)
        monkeypatch.setattr(store, "find", found)
        with pytest.raises(WrongStatus, match="it has just been changed"):
            release(store, CONSUMER, KEY)
    assert stored(store, KEY).status is Status.CONSUMED
    with pytest.raises(LeaseLost):
        claim.__exit__(None, None, None)


def is_taken_over(store: Store, zombie: Claim) -> None:
    """An operator releases the message, and another worker handles it."""
    release(store, CONSUMER, KEY, by="ann")
    record = stored(store, KEY)
    assert (record.status, record.attempts_started) == (Status.FAILED, 0)
    assert record.error == "released by ann"
    with pytest.raises(LeaseLost):
        zombie.heartbeat()
    with inbox_of(store).claim(KEY) as successor:
        assert (successor.is_new, successor.attempt) == (True, 1)
        assert successor.token > zombie.token
        with pytest.raises(LeaseLost):
            zombie.step("lock", lambda: None)


@two_stores
def test_a_heartbeat_tells_a_released_handler(store: Store) -> None:
    """The heartbeat of a waiting handler finds out that its message was released."""
    events: list[EventKind] = []

    def waits(claim: Claim) -> None:
        release(store, CONSUMER, KEY)
        deadline = time.monotonic() + 30
        while not claim.lost and time.monotonic() < deadline:
            time.sleep(0.01)

    with pytest.raises(LeaseLost):
        deliver(store, waits, heartbeat=True, lease=6, on_event=lambda event: events.append(event.kind))
    assert events[:2] == [EventKind.CLAIMED, EventKind.LOST]


ENDS = [None, RuntimeError(), GiveUp(), KeyboardInterrupt()]
DECIDED: list[tuple[Callable[..., None], ...]] = [(retry, discard), (), (retry,), (discard,)]


# 32 items: each end of a handler is another write of the store.
@spread("decided, error", product(DECIDED, ENDS), elsewhere=len(ENDS), where=STORES, fixture="place")
def test_a_released_handler_cannot_end_it(
    store: Store, decided: tuple[Callable[..., None], ...], error: BaseException | None
) -> None:
    """However the handler ends, and whatever the operator did after the release, its end is rejected: it
    never mistakes the operator's write for its own."""
    left: list[Record] = []

    def handler(claim: Claim) -> None:
        release(store, CONSUMER, KEY)
        for decide in decided:
            decide(store, CONSUMER, KEY)
        left.append(stored(store, KEY))
        if error is not None:
            raise error

    with pytest.raises(LeaseLost):
        deliver(store, handler)
    assert [stored(store, KEY)] == left


def test_a_released_message_without_attempts_left(store: Store) -> None:
    """If a message was given back, and the next worker allows fewer attempts, it is dead; the record gives a
    reason although the last attempt left no error."""

    def is_interrupted(claim: Claim) -> None:
        raise KeyboardInterrupt

    has_ended(store, Status.FAILED)
    with pytest.raises(KeyboardInterrupt):
        deliver(store, is_interrupted)
    assert stored(store, KEY).error is None
    assert deliver(store, fails, max_attempts=1) is Verdict.DEAD
    assert stored(store, KEY).error == "its attempts are used up"


def test_release_within_a_step_that_may_not_be_repeated(store: Store) -> None:
    """A release inside a step with `on_unknown="halt"` halts the message, because the step's outcome is
    unknown."""

    def released() -> None:
        release(store, CONSUMER, KEY)

    with pytest.raises(LeaseLost), inbox_of(store).claim(KEY) as claim:
        claim.step("charge", released, on_unknown="halt")
    record = stored(store, KEY)
    assert (record.status, record.pending_step) == (Status.HALTED, "charge")
    assert record.error is not None
    assert record.error.startswith("the outcome of step 'charge' is unknown: released by ")
    assert deliver(store, fails) is Verdict.HALTED


@spread("max_attempts", [16, 1], where=STORES, fixture="place")
def test_resolve_a_step_as_done(store: Store, max_attempts: int) -> None:
    """A step resolved as done is not called; the attempt gets the operator's result, even if no attempt was
    left."""
    with pytest.raises(TimeoutError):
        deliver(store, halts, max_attempts=max_attempts)
    resolve_step(store, CONSUMER, KEY, "charge", "done", result={"id": 7}, by="ann")
    record = stored(store, KEY)
    assert (record.status, record.pending_step) == (Status.FAILED, None)
    assert record.error == "step 'charge': done by ann"
    assert deliver(store, halts, max_attempts=max_attempts) is Verdict.NEW
    assert json.loads(stored(store, KEY).result or "") == {"id": 7}


@two_stores
def test_resolve_a_step_as_not_done(store: Store) -> None:
    """A step resolved as not done is called by the next attempt."""
    has_ended(store, Status.HALTED)
    resolve_step(store, CONSUMER, KEY, "charge", "not_done")
    assert deliver(store, lambda claim: claim.step("charge", lambda: 8, on_unknown="halt")) is Verdict.NEW
    assert stored(store, KEY).result == "8"


@one_store
def test_a_step_that_was_resolved_is_undone(store: Store) -> None:
    """A step resolved as done is undone like any other when the handler gives up."""
    undone: list[Any] = []

    def handler(claim: Claim) -> None:
        claim.step("charge", lambda: 1 / 0, undo=undone.append, on_unknown="halt")
        gives_up(claim)

    with pytest.raises(ZeroDivisionError):
        deliver(store, handler)
    resolve_step(store, CONSUMER, KEY, "charge", "done", result="receipt")
    assert stored(store, KEY).undos == 1
    with pytest.raises(GiveUp):
        deliver(store, handler)
    assert undone == ["receipt"]
    assert stored(store, KEY).status is Status.DEAD


def test_lists_are_found_by_the_index(postgres: Database) -> None:
    """On PostgreSQL the messages of one consumer and status are read in the order of the index, however many
    others there are."""
    store = SqlStore(postgres.engine())
    has_ended(store, Status.DEAD)
    same = "consumer, status, token, claim, owner, attempts_started, attempts_finished, error"
    copies = (
        f"INSERT INTO inbox_status ({same}, key, updated_at) SELECT {same}, 'copy-' || number,"
        " updated_at + number * interval '1 second' FROM inbox_status, generate_series(1, 5000) AS number"
    )
    statements: list[tuple[str, Any]] = []
    with postgres.engine().begin() as connection:
        connection.exec_driver_sql(copies)
        connection.exec_driver_sql("ANALYZE inbox_status")
    event.listen(store.engine, "before_cursor_execute", lambda *args: statements.append((args[2], args[3])))
    assert len(list_messages(store, consumer=CONSUMER, status="dead")) == 100
    ((sql, parameters),) = statements
    with postgres.engine().begin() as connection:
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {sql}", parameters).scalars())
    assert "Index Scan using inbox_status_updated_at" in plan
    assert "Sort" not in plan
