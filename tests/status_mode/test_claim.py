"""The verdicts and records of claims in status-table mode, on every store."""

import functools
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from inbox import Backoff, Claim, Event, EventKind, Outcome, Status, Verdict
from inbox._status_mode.stores import Store
from inbox.errors import GiveUp, InvalidKey, InvalidOption, InvalidResult, LeaseLost
from tests.support.on_servers import STORES, both_stores, on
from tests.support.processes import wait_until
from tests.support.status_mode.stores import (
    CONSUMER,
    Failed,
    deliver,
    fail,
    held,
    request,
    status_inbox,
    stored,
)

pytestmark = pytest.mark.mysql

INTERRUPTIONS = (KeyboardInterrupt, GeneratorExit)


@on(*STORES, "psycopg2", "mysqldb", fixture="place")
def test_a_message_runs_once_and_its_result_is_replayed(store: Store) -> None:
    """The first delivery is NEW and runs; every later one is a DUPLICATE with the stored result, or with none
    if the first had none. The first one, too, reads the result as JSON returns it."""
    inbox, runs = status_inbox(store), list[Claim]()

    def body(claim: Claim) -> Any:
        runs.append(claim)
        return {"invoice": (7, "é")}

    for _ in range(3):
        claim = deliver(inbox, body)
        assert claim.result == {"invoice": [7, "é"]}
    (first,) = runs
    assert (first.verdict, first.attempt, first.key) == (Verdict.NEW, 1, "a")
    assert first.token == stored(store).token > 0
    assert (claim.verdict, claim.is_new, claim.token, claim.attempt) == (Verdict.DUPLICATE, False, 0, 0)
    assert stored(store).status is Status.CONSUMED
    for _ in range(2):
        with inbox.claim("b") as claim:
            assert claim.result is None


@both_stores
def test_a_running_message_is_in_flight(store: Store) -> None:
    """While the handler runs, a duplicate is IN_FLIGHT, with a delay that ends no later than the lease."""
    patient = status_inbox(store, lease=5, backoff=Backoff(first=100, longest=100))
    quick = status_inbox(store, backoff=Backoff(first=2, longest=2))
    with patient.claim("a") as claim:
        assert claim.is_new
        for inbox, longest in ((patient, 5), (quick, 2)):
            with inbox.claim("a") as other:
                assert other.verdict is Verdict.IN_FLIGHT
            assert other.retry_after is not None
            assert 0 < other.retry_after <= longest
    assert deliver(quick).verdict is Verdict.DUPLICATE


@on(*STORES, "psycopg2", "mysqldb", fixture="place")
def test_a_failure_comes_through_and_the_next_delivery_runs(store: Store) -> None:
    """The handler's exception comes through unchanged and is recorded; the message runs again."""
    inbox = status_inbox(store, backoff=Backoff(first=8, longest=8))
    error = Failed("out of stock")
    with pytest.raises(Failed) as caught, inbox.claim("a") as claim:
        raise error
    assert caught.value is error
    assert claim.verdict is Verdict.NEW
    assert claim.retry_after is not None
    assert 4 <= claim.retry_after <= 8
    record = stored(store)
    assert (record.status, record.error) == (Status.FAILED, "Failed: out of stock")
    assert (record.attempts_started, record.attempts_finished) == (1, 1)
    again = deliver(inbox)
    assert (again.verdict, again.attempt) == (Verdict.NEW, 2)
    record = stored(store)
    assert (record.status, record.attempts_finished, record.error) == (Status.CONSUMED, 2, None)
    assert [entry["error"] for entry in json.loads(record.history or "")] == ["Failed: out of stock"]


@both_stores
def test_a_message_that_fails_too_often_is_dead(store: Store) -> None:
    """After `max_attempts` failures the message is DEAD and does not run again; the history lists every
    failure."""
    inbox, runs = status_inbox(store, max_attempts=3), list[int]()

    def body(claim: Claim) -> None:
        runs.append(claim.attempt)
        fail()

    verdicts = [deliver(inbox, body).verdict for _ in range(5)]
    assert runs == [1, 2, 3]
    assert verdicts == [Verdict.NEW, Verdict.NEW, Verdict.DEAD, Verdict.DEAD, Verdict.DEAD]
    record = stored(store)
    assert (record.status, record.error, record.attempts_finished) == (Status.DEAD, "Failed: no", 3)
    assert [entry["attempt"] for entry in json.loads(record.history or "")] == [1, 2, 3]


@both_stores
def test_a_handler_can_give_up_at_once(store: Store) -> None:
    """`GiveUp` makes a message dead at its first attempt, and reaches the caller."""
    inbox = status_inbox(store)
    with pytest.raises(GiveUp), inbox.claim("a") as claim:
        raise GiveUp("no such customer")
    assert (claim.verdict, claim.retry_after) == (Verdict.DEAD, None)
    assert stored(store).error == "GiveUp: no such customer"
    assert deliver(inbox, fail).verdict is Verdict.DEAD


@on("sqlite", fixture="place")
@pytest.mark.parametrize("status", ["running", *Status], ids=str)
def test_another_payload_is_never_run(store: Store, status: str) -> None:
    """The same key with another payload is a MISMATCH, whatever the status of the first message; the order of
    a JSON object's members does not matter."""
    inbox, ran = status_inbox(store, max_attempts=1 if status == "dead" else 3), list[Claim]()
    ends: dict[str, Callable[[Claim], Any]] = {
        "failed": fail,
        "dead": fail,
        "halted": lambda claim: claim.step("charge", fail, on_unknown="halt"),
    }

    def body(claim: Claim) -> None:
        if status in ("running", "consuming"):
            assert deliver(inbox, ran.append, {"n": 2, "m": 1}).verdict is Verdict.MISMATCH
            assert deliver(inbox, ran.append, {"m": 1, "n": 1}).verdict is Verdict.IN_FLIGHT
        if status in ends:
            ends[status](claim)

    deliver(inbox, body, {"n": 1, "m": 1})
    assert deliver(inbox, ran.append, {"n": 2, "m": 1}).verdict is Verdict.MISMATCH
    assert ran == []


PAYLOADS: list[tuple[Any, bytes]] = [
    (b"\x00\xff", b"\x00\xff"),
    ("é", "é".encode()),
    ({"order": 7}, b'{"order":7}'),
    (bytearray(b"x"), b"x"),
]


@on("sqlite", fixture="place")
@pytest.mark.parametrize(("payload", "kept"), PAYLOADS, ids=repr)
def test_a_payload_is_kept_only_of_dead_letters_and_if_allowed(
    store: Store, payload: Any, kept: bytes
) -> None:
    """Only with `keep_payload`, and only for a dead message, does the record contain the payload."""
    keeping = status_inbox(store, keep_payload=True, max_attempts=2)
    deliver(keeping, fail, payload)
    assert stored(store).payload is None
    deliver(keeping, fail, payload)
    assert (stored(store).status, stored(store).payload) == (Status.DEAD, kept)
    store.delete(held(stored(store)), list(Status))
    deliver(status_inbox(store, max_attempts=1), fail, payload)
    assert (stored(store).status, stored(store).payload) == (Status.DEAD, None)


@on("sqlite", fixture="place")
@pytest.mark.parametrize("kind", INTERRUPTIONS)
def test_an_interrupted_message_is_given_back(store: Store, kind: type[BaseException]) -> None:
    """Ctrl-C and similar exceptions come through; the attempt does not count, and the next delivery runs
    immediately and keeps the finished steps."""
    inbox, calls = status_inbox(store, max_attempts=1), []

    def body(claim: Claim) -> None:
        assert (claim.verdict, claim.attempt) == (Verdict.NEW, 1)
        claim.step("reserve", lambda: calls.append("reserve"))
        raise kind

    for _ in range(3):
        with pytest.raises(kind):
            deliver(inbox, body)
        record = stored(store)
        assert (record.status, record.attempts_started, record.attempts_finished) == (Status.FAILED, 0, 0)
    assert deliver(inbox).verdict is Verdict.NEW
    assert calls == ["reserve"]


def test_a_claim_that_was_lost_is_neither_completed_nor_failed(store: Store) -> None:
    """A worker that leaves the block after another one took the message over gets LeaseLost and does not
    change the other's record; before that, `lost` is true."""
    inbox, successors = status_inbox(store, lease=0.1), []

    def lose(claim: Claim, *, fails: bool) -> None:
        wait_until(lambda: claim.lost)
        wait_until(lambda: store.claim(request()).verdict is Verdict.NEW)
        successors.append(stored(store))
        if fails:
            fail()

    for fails in (False, True):
        with pytest.raises(LeaseLost, match="key='a'"):
            deliver(inbox, functools.partial(lose, fails=fails))
        assert stored(store) == successors.pop()
        store.delete(held(stored(store)), list(Status))


@on("sqlite", fixture="place")
def test_without_a_key_a_message_is_refused(store: Store) -> None:
    """By default a message without a key is rejected, and nothing runs."""
    with pytest.raises(InvalidKey, match="key=None"), status_inbox(store).claim(None, message_id="m"):
        pytest.fail("ran")
    assert store.list(None, None, 1) == []


@on("sqlite", fixture="place")
def test_the_message_id_can_stand_in_for_the_key(store: Store) -> None:
    """With `missing_key="message_id"` a message without a key is identified by its message id; a message with
    neither is rejected. A key takes precedence, and never equals a message id with the same text."""
    inbox, verdicts = status_inbox(store, missing_key="message_id"), []
    for key, message_id in [(None, "m"), (None, "m"), (None, "n"), ("m", "m"), ("m", "n")]:
        with inbox.claim(key, message_id=message_id) as claim:
            verdicts.append(claim.verdict)
    new, duplicate = Verdict.NEW, Verdict.DUPLICATE
    assert verdicts == [new, duplicate, new, new, duplicate]
    with pytest.raises(InvalidKey, match="message_id=None"), inbox.claim(None):
        pytest.fail("ran")


@on("sqlite", fixture="place")
def test_a_message_without_a_key_can_run_unprotected(store: Store) -> None:
    """With `missing_key="run"` a message without a key runs at every delivery, with its steps; nothing is
    stored."""
    events: list[EventKind] = []
    inbox = status_inbox(store, missing_key="run", on_event=lambda event: events.append(event.kind))
    for _ in range(2):
        with inbox.claim(None) as claim:
            assert (claim.verdict, claim.token, claim.key, claim.lost) == (Verdict.NEW, 0, "", False)
            assert claim.step("reserve", lambda: (1, 2)) == [1, 2]
            claim.heartbeat()
    assert store.list(None, None, 1) == []
    assert events == [EventKind.UNPROTECTED, EventKind.STEP_DONE, EventKind.COMPLETED] * 2


@both_stores
def test_a_message_older_than_the_retention_is_too_old(store: Store) -> None:
    """A message older than the retention does not run, because its record may have been purged; if the record
    still exists, it decides. A recent message is NEW."""
    events: list[EventKind] = []
    inbox = status_inbox(store, retention=3_600, on_event=lambda event: events.append(event.kind))
    old = store.now() - timedelta(hours=2)
    with inbox.claim("a", message_time=old) as claim:
        assert (claim.verdict, claim.is_new) == (Verdict.TOO_OLD, False)
    assert events == [EventKind.TOO_OLD]
    assert store.find(CONSUMER, "a") is None
    for verdict in (Verdict.NEW, Verdict.DUPLICATE):
        with inbox.claim("a", message_time=store.now()) as claim:
            assert claim.verdict is verdict
    with inbox.claim("a", message_time=old) as claim:
        assert claim.verdict is Verdict.DUPLICATE


@on("sqlite", fixture="place")
def test_only_a_new_message_has_a_result_and_steps(store: Store) -> None:
    """Setting the result of a duplicate, or running a step in it, is an error that names the verdict."""
    inbox = status_inbox(store)
    deliver(inbox)
    claim = deliver(inbox)
    with pytest.raises(InvalidOption, match="duplicate"):
        claim.result = 1
    for use in (claim.heartbeat, lambda: claim.step("s", fail), lambda: claim.step_key("s")):
        with pytest.raises(InvalidOption, match="duplicate"):
            use()


@on("sqlite", fixture="place")
def test_an_invalid_result_is_an_error(store: Store) -> None:
    """A result that JSON cannot represent, or of more than a million bytes, is an error where it is set: the
    message fails."""
    for key, result in {"a": object(), "b": {1, 2}, "c": float("nan"), "d": "x" * 1_000_000}.items():
        with pytest.raises(InvalidResult, match=r"^result"), status_inbox(store).claim(key) as claim:  # noqa: PT012 - not reached
            claim.result = result
            pytest.fail("the result was taken")
        assert stored(store, key).status is Status.FAILED
        assert claim.retry_after is not None


@on("sqlite", fixture="place")
def test_the_decorator_does_the_same(store: Store) -> None:
    """A decorated body runs once, its return value is the result of every delivery, and its exception comes
    through; `outcome` returns the exception in the Outcome instead."""
    runs: list[int] = []

    @status_inbox(store, max_attempts=2).handler(key=lambda message: f"order-{message}", payload=str)
    def handle(claim: Claim, message: int) -> Any:
        """Take an order."""
        runs.append(claim.attempt)
        return fail() if message == 13 else message

    assert [handle(1), handle(1)] == [Outcome(Verdict.NEW, 1), Outcome(Verdict.DUPLICATE, 1)]
    with pytest.raises(Failed):
        handle(13)
    failed = handle.outcome(13)
    assert (failed.verdict, type(failed.error)) == (Verdict.DEAD, Failed)
    assert handle(13) == Outcome(Verdict.DEAD)
    assert runs == [1, 1, 2]
    assert (handle.__name__, handle.__doc__) == ("handle", "Take an order.")


@both_stores
def test_monitoring_hears_of_everything_in_order(store: Store) -> None:
    """Each change of a message is one event, in order, with the attempt and the token; a failing hook does no
    harm."""
    events: list[Event] = []
    hooks = [fail, events.append]
    inbox = status_inbox(store, max_attempts=2, on_event=hooks)

    def body(claim: Claim) -> None:
        claim.step("reserve", lambda: 1, undo=lambda _: None)
        assert deliver(inbox).verdict is Verdict.IN_FLIGHT
        with suppress(KeyboardInterrupt), inbox.claim("other"):
            raise KeyboardInterrupt
        fail()

    tokens = [deliver(inbox, body).token for _ in range(2)]
    deliver(inbox)
    attempt = ["claimed", "step_done", "in_flight", "other claimed", "other released", "failed"]
    last = ["claimed", "in_flight", "other claimed", "other released", "undone", "dead", "dead"]
    told = [f"{event.key} {event.kind}".removeprefix("a ") for event in events]
    assert told == attempt + last
    assert {event.consumer for event in events} == {CONSUMER}
    assert [event.token for event in events if event.kind is EventKind.CLAIMED and event.key == "a"] == tokens
    assert [event.step for event in events if event.step] == ["reserve", "reserve"]
    assert [event.attempt for event in events if event.kind is EventKind.DEAD] == [2, 2]
    assert {event.error for event in events if event.kind is EventKind.DEAD} == {"Failed: no"}
    assert all(event.seconds >= 0 for event in events)
