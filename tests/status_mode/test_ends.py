"""Edge cases at the end of a claim: who may undo, when a message is over, and what may be acknowledged."""

import asyncio
import json
import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from inbox import Action, Claim, EventKind, SqlStore, Status, Verdict, release, retry
from inbox._status_mode.stores import Change, HeldRecord, Store, late_ends
from inbox._status_mode.stores.late_ends import LateEnds
from inbox.errors import GiveUp, InvalidOption, LeaseLost, StoreUnreachable
from inbox_outbox_base.calls import clock
from tests.status_mode.test_steps import Calls, called, undoing
from tests.support.database import Database
from tests.support.on_servers import both_stores, on
from tests.support.processes import wait_until
from tests.support.status_mode.asynchronous import beside, in_loop, inbox_at, recorded
from tests.support.status_mode.stores import (
    CONSUMER,
    Failed,
    Place,
    change,
    deliver,
    fail,
    held,
    request,
    status_inbox,
    stored,
)
from tests.support.together import Task


@both_stores
def test_a_handler_that_lost_the_message_undoes_nothing(store: Store) -> None:
    """A handler that gives up after another worker took over its expired lease does not undo the successor's
    finished steps."""
    calls = Calls()
    late = status_inbox(store, lease=1)

    def body(claim: Claim) -> None:
        claim.step("lock", called(calls, "lock"), undo=undoing(calls, "lock"))
        time.sleep(1.2)
        assert deliver(status_inbox(store)).is_new
        raise GiveUp

    with pytest.raises(LeaseLost):
        deliver(late, body)
    assert calls == ["lock"]
    assert stored(store).status is Status.CONSUMED


@both_stores
def test_a_handler_whose_message_was_released_undoes_nothing(store: Store) -> None:
    """A handler that gives up after an operator released its message undoes nothing."""
    calls = Calls()

    def body(claim: Claim) -> None:
        claim.step("lock", called(calls, "lock"), undo=undoing(calls, "lock"))
        release(store, CONSUMER, "a")
        raise GiveUp

    with pytest.raises(LeaseLost):
        deliver(status_inbox(store), body)
    assert calls == ["lock"]


@on("postgresql", "redis", fixture="place")
def test_the_lease_is_renewed_while_undoing(store: Store) -> None:
    """The lease is renewed during an undo that takes longer than the lease, so no other worker undoes at the
    same time."""
    inbox = status_inbox(store, lease=2, heartbeat=True)
    seen = []

    def undo(_: Any) -> None:
        time.sleep(3)
        seen.append(deliver(status_inbox(store)).verdict)

    def body(claim: Claim) -> None:
        claim.step("lock", lambda: 1, undo=undo)
        raise GiveUp

    with pytest.raises(GiveUp):
        deliver(inbox, body)
    assert seen == [Verdict.IN_FLIGHT]
    assert stored(store).status is Status.DEAD


@on("postgresql", "redis", fixture="place")
@in_loop
async def test_the_lease_is_renewed_while_a_task_undoes(place: Place) -> None:
    """Async: the lease is renewed during an undo; if the message is taken away, the undo is cancelled."""
    seen: list[Verdict | str] = []

    async def undo(key: str) -> None:
        await asyncio.sleep(3)
        async with beside(inbox).claim(key) as other:
            seen.append(other.verdict)
        if key == "b":
            with place.open() as store:
                release(store, CONSUMER, key)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

    async def give_up(key: str) -> None:
        async with inbox.claim(key) as claim:
            await claim.step("lock", lambda: key, undo=undo)
            raise GiveUp

    async with inbox_at(place, lease=2) as inbox:
        with pytest.raises(GiveUp):
            await give_up("a")
        with pytest.raises(LeaseLost):
            await give_up("b")
    assert seen == [Verdict.IN_FLIGHT, Verdict.IN_FLIGHT, "cancelled"]
    assert [recorded(place, key).status for key in "ab"] == [Status.DEAD, Status.FAILED]


@on("sqlite", fixture="place")
def test_a_message_that_is_half_undone_cannot_be_completed(store: Store) -> None:
    """Once a step was undone, the message cannot complete, even if the handler returns normally this time."""
    inbox, calls = status_inbox(store), Calls()
    undo_a = undoing(calls, "a", failures=1)

    def body(claim: Claim) -> Any:
        claim.step("a", called(calls, "a"), undo=undo_a)
        claim.step("b", called(calls, "b"), undo=undoing(calls, "b"))
        if claim.attempt == 1:
            raise GiveUp
        return "done"

    with pytest.raises(GiveUp):
        deliver(inbox, body)
    claim = deliver(inbox, body)
    assert calls == ["a", "b", "undo b None", "undo a None", "undo a None"]
    assert (claim.verdict, claim.result) == (Verdict.DEAD, None)
    assert stored(store).status is Status.DEAD


@both_stores
@pytest.mark.parametrize("raises", [False, True])
def test_an_undo_of_which_the_record_is_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    """The undo may have happened, so the message cannot complete: the next delivery undoes the step again.
    So does an undo that has raised."""
    inbox, calls = status_inbox(store), Calls()

    def unreachable(*_: object) -> bool:
        raise StoreUnreachable("it does not answer")

    def undo(_: Any) -> None:
        calls.append("undo")
        if len(calls) == 2:
            if raises:
                raise ZeroDivisionError
            monkeypatch.setattr(store, "write", unreachable)

    def body(claim: Claim) -> Any:
        claim.step("lock", called(calls, "lock"), undo=undo)
        if len(calls) == 1:
            raise GiveUp
        return "done"

    with pytest.raises((GiveUp, StoreUnreachable)):
        deliver(inbox, body)
    monkeypatch.undo()
    if stored(store).status is Status.CONSUMING:  # nobody has it any more
        release(store, CONSUMER, "a")
    claim = deliver(inbox, body)
    assert (claim.verdict, claim.result) == (Verdict.DEAD, None)
    assert calls == ["lock", "undo", "undo"]


@both_stores
def test_an_end_that_the_store_refuses(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept, and the message is not taken over meanwhile."""

    def refuse(*_: object) -> bool:
        raise PermissionError

    inbox = status_inbox(store, lease=0.2, heartbeat=False)
    with monkeypatch.context() as patch:
        patch.setattr(store._late, "_write", refuse)
        patch.setattr(store, "write", refuse)
        with suppress(PermissionError), inbox.claim("a"):
            pass
        time.sleep(0.3)
        with pytest.raises(PermissionError), inbox.claim("a"):
            pytest.fail("it runs again")
    with inbox.claim("b"):
        pass
    with inbox.claim("a") as claim:
        assert claim.verdict is Verdict.DUPLICATE


@on("sqlite", fixture="place")
def test_other_ends_do_not_delay_a_handler(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written when a handler is over, or its message is refused: a lease has not begun then."""
    inbox, written = status_inbox(store), list[str]()

    def unreachable(*_: object) -> bool:
        raise StoreUnreachable("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(store._late, "_write", unreachable)
        patch.setattr(store, "write", unreachable)
        with suppress(StoreUnreachable), inbox.claim("a"):
            pass
    write = store._late._write

    def note(held: HeldRecord, change: Change) -> bool:
        written.append(held.key)
        return write(held, change)

    monkeypatch.setattr(store._late, "_write", note)
    with inbox.claim("b"):
        assert written == []
    assert written == ["a"]


@on("sqlite", fixture="place")
def test_a_message_with_something_left_to_undo_is_not_acknowledged(store: Store) -> None:
    """A delivery that only undoes, and whose undo fails, is retried and not acknowledged."""
    inbox, calls = status_inbox(store, max_attempts=1), Calls()
    undo = undoing(calls, "lock", failures=2)

    @inbox.handler(key=lambda _: "a")
    def handle(claim: Claim, _: Any) -> None:
        claim.step("lock", called(calls, "lock"), undo=undo)
        claim.step("ship", fail)

    actions = [inbox.listener().decide([0], handle)[0].action for _ in range(3)]
    assert calls == ["lock"] + ["undo lock None"] * 3
    assert actions == [Action.RETRY, Action.RETRY, Action.DEAD_LETTER]


@on("sqlite", fixture="place")
def test_another_messages_lost_lease_is_an_error_like_any_other(store: Store) -> None:
    """A handler that lets the LeaseLost of another claim through has failed: its own message can run
    again."""
    kinds: list[EventKind] = []
    inbox = status_inbox(store, on_event=lambda event: kinds.append(event.kind))
    other = status_inbox(store)
    with pytest.raises(LeaseLost), inbox.claim("a"), other.claim("b"):
        release(store, CONSUMER, "b")
    assert stored(store).status is Status.FAILED
    assert kinds == [EventKind.CLAIMED, EventKind.FAILED]


@both_stores
def test_an_end_that_got_no_answer_is_written_with_another_claim(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store does not answer when a handler ends, the end is written with the next claim of another
    message."""

    def unreachable(*_: object) -> bool:
        raise StoreUnreachable("it does not answer")

    inbox = status_inbox(store)
    with suppress(StoreUnreachable), inbox.claim("a"):
        monkeypatch.setattr(store, "write", unreachable)
    monkeypatch.undo()
    assert stored(store).status is Status.CONSUMING
    with inbox.claim("b"):
        pass
    assert stored(store).status is Status.CONSUMED


@both_stores
def test_an_end_that_cannot_be_written_yet(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next claim of the same message takes it over only once that end is written, even if its lease is
    over: its handler has succeeded."""

    def unreachable(*_: object) -> bool:
        raise StoreUnreachable("it does not answer")

    inbox = status_inbox(store, lease=0.2, heartbeat=False)
    careless, verdicts = status_inbox(store, lease=0.2, heartbeat=False, unreachable="run"), list[Verdict]()
    with monkeypatch.context() as patch:
        patch.setattr(store._late, "_write", unreachable)
        patch.setattr(store, "write", unreachable)
        for key, error in ("a", None), ("b", ZeroDivisionError()):
            with suppress(StoreUnreachable, ZeroDivisionError), inbox.claim(key):
                if error is not None:
                    raise error
        time.sleep(0.3)
        for each in (inbox, careless):  # the store answers a claim, but not this
            with pytest.raises(StoreUnreachable), each.claim("a"):
                pytest.fail("it runs again")
        with suppress(StoreUnreachable), inbox.claim("b") as claim:  # it has failed, so it may
            verdicts.append(claim.verdict)
    assert verdicts == [Verdict.NEW]
    with inbox.claim("a") as claim:
        assert claim.verdict is Verdict.DUPLICATE


@on("sqlite", fixture="place")
def test_an_error_whose_text_raises(store: Store) -> None:
    """An exception whose `str()` raises fails the message like any other."""

    class Untold(Exception):
        def __str__(self) -> str:
            raise TypeError

    def body(_: Claim) -> None:
        raise Untold

    with pytest.raises(Untold):
        deliver(status_inbox(store), body)
    assert (stored(store).status, stored(store).error) == (Status.FAILED, "Untold")


@on("sqlite", fixture="place")
def test_an_invalid_payload_is_an_error(store: Store) -> None:
    """A payload that no store can keep is rejected before the claim: the message could never become a dead
    letter."""
    for payload in (b"x" * 1_000_001, {"n": float("nan")}):
        with pytest.raises(InvalidOption, match=r"^payload"):
            deliver(status_inbox(store, keep_payload=True), payload=payload)
    assert store.find(CONSUMER, "a") is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@both_stores
def test_a_forked_process_does_not_keep_its_parents_messages(place: Place) -> None:
    """If a worker dies, its message is redelivered after the lease, even if a forked child of the worker goes
    on with messages of its own."""
    talk, listen = os.pipe()[::-1]
    worker = os.fork()
    if worker == 0:
        _fork_and_die(place, talk)
    os.waitpid(worker, 0)
    child = int(os.read(listen, 20))
    try:
        with place.open() as store:
            wait_until(lambda: store.claim(request("parent")).verdict is Verdict.NEW)
            assert stored(store, "child").status is Status.CONSUMING
            assert stored(store, "child").owner.endswith(f":{child}")
    finally:
        os.kill(child, signal.SIGKILL)


def test_bytes_as_old_clients_like_them(postgres: Database) -> None:
    """A database with bytea_output set to "escape" returns the same records."""
    engine = postgres.engine(connect_args={"options": "-c bytea_output=escape"})
    store, given = SqlStore(engine), bytes(range(256)) + b"\\x41"
    claimed = store.claim(request())
    store.write(held(claimed), change(status=Status.DEAD, finished=1, error="no", payload=given))
    record = store.claim(request()).record
    assert (record.payload, record.claim) == (given, claimed.record.claim)


def test_a_duplicate_does_not_wait_for_a_transaction(migrated: Database) -> None:
    """While a step's transaction is open, another delivery gets IN_FLIGHT immediately."""
    options = {"connect_args": {"options": "-c lock_timeout=5s"}} if migrated.name == "postgresql" else {}
    inbox = status_inbox(SqlStore(migrated.engine()))
    beside = status_inbox(SqlStore(migrated.engine(**options)))
    seen = []

    def body(claim: Claim) -> None:
        claim.transact("pay", lambda _: seen.append(deliver(beside).verdict))

    assert deliver(inbox, body).verdict is Verdict.NEW
    assert seen == [Verdict.IN_FLIGHT]


def _fork_and_die(place: Place, talk: int) -> None:
    with place.open() as store:
        inbox = status_inbox(store, lease=0.5, heartbeat=True)
        claim = inbox.claim("parent")
        claim.__enter__()
        if os.fork():
            os.kill(os.getpid(), signal.SIGKILL)
    with place.open() as store:
        inbox.store = store
        with inbox.claim("child"):
            os.write(talk, str(os.getpid()).encode())
            time.sleep(60)
    os._exit(0)


def test_the_newest_end_is_kept() -> None:
    """An attempt that was taken over keeps no end in place of its successor's."""
    written: list[int] = []

    def write(held: HeldRecord, _: Change) -> bool:
        written.append(held.token)
        return True

    ends = LateEnds(write)
    for token in (1, 3, 2):
        ends.keep(HeldRecord(CONSUMER, "a", token), Change(status=Status.CONSUMED, forget_after=60))
    ends.write_all()
    assert written == [3]


def test_an_end_that_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """The log does not say that it was recorded."""
    ends = LateEnds(lambda *_: False)
    ends.keep(HeldRecord(CONSUMER, "a", 1), Change(status=Status.CONSUMED, forget_after=60))
    ends.write_all()
    assert "key 'a': how its handler ended was refused" in caplog.text
    assert not ends


def test_a_full_list_of_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end replaces an older one of its message; another message's is not kept."""
    monkeypatch.setattr(late_ends, "_MOST", 1)
    ends = LateEnds(lambda *_: True)
    for key, token, status in (("a", 1, Status.FAILED), ("b", 1, Status.DEAD), ("a", 2, Status.CONSUMED)):
        ends.keep(HeldRecord(CONSUMER, key, token), Change(status=status, forget_after=60))
    assert ends.settles((CONSUMER, "a"))
    assert not ends.settles((CONSUMER, "b"))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_ends_in_a_fork() -> None:
    """A fork that begins while another thread writes the ends writes them as well."""
    talk, said = os.pipe()
    forked, begun = threading.Event(), threading.Event()

    def write(*_: object) -> bool:
        begun.set()
        return forked.wait(60)

    ends = LateEnds(write)
    ends.keep(HeldRecord(CONSUMER, "a", 1), Change(status=Status.CONSUMED, forget_after=60))
    writing = Task(ends.write_all)
    assert begun.wait(60)
    child = os.fork()
    forked.set()
    if not child:
        ends.write_all()
        os.write(said, b"0" if ends else b"1")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(talk, 1) == b"1"
    writing.result()


@both_stores
def test_what_a_block_leaves_behind(store: Store) -> None:
    """A thread that goes on after the block runs no further step: the next attempt may be running it."""
    claims: list[Claim] = []

    def body(claim: Claim) -> None:
        claims.append(claim)
        raise Failed

    deliver(status_inbox(store), body)
    assert claims[0].lost
    for go_on in (lambda: claims[0].step("charge", called([], "charge")), claims[0].heartbeat):
        with pytest.raises(LeaseLost, match="the block is over"):
            go_on()


@both_stores
def test_a_retry_after_an_undo_that_raised(store: Store) -> None:
    """The step counts as finished, so an operator's retry does not call it again."""
    inbox, calls = status_inbox(store), Calls()

    def body(claim: Claim) -> None:
        claim.step("charge", called(calls, "charge"), undo=undoing(calls, "charge", failures=1))
        if len(calls) == 1:
            raise GiveUp

    with pytest.raises(GiveUp):
        deliver(inbox, body)
    retry(store, CONSUMER, "a")
    assert deliver(inbox, body).verdict is Verdict.NEW
    assert calls == ["charge", "undo charge None"]


@both_stores
def test_many_writes_without_an_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that goes on without them still has the message when the store is back."""

    def unreachable(*_: object) -> bool:
        raise StoreUnreachable("it does not answer")

    def body(claim: Claim) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(store, "write", unreachable)
            for number in range(20):
                with suppress(StoreUnreachable):
                    claim.step(f"mail {number}", lambda: None)
        claim.step("last", lambda: None)

    assert deliver(status_inbox(store), body).verdict is Verdict.NEW
    assert len(json.loads(stored(store).steps or "")) == 21


def test_an_end_whose_record_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not delay the others for long: for some seconds nothing is tried, and then they come first."""
    tried, now = list[str](), [0.0]

    def write(held: HeldRecord, _: Change) -> bool:
        tried.append(held.key)
        if held.key == "locked":
            raise StoreUnreachable("somebody has locked it")
        return True

    monkeypatch.setattr(clock, "now", lambda: now[0])
    ends = LateEnds(write)
    for key in ("locked", "a", "b"):
        ends.keep(HeldRecord(CONSUMER, key, 1), Change(status=Status.CONSUMED, forget_after=60))
    ends.write_all()
    ends.write_all()
    assert tried == ["locked"]
    now[0] += 60
    ends.write_all()
    assert tried == ["locked", "a", "b", "locked"]
