"""Steps of a message in status-table mode, and their undos, on every store."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from inbox import Claim, EventKind, Status, Verdict
from inbox._status_mode.hold import OnUnknown
from inbox._status_mode.stores import UNDO_ATTEMPTS, Change, HeldRecord, Store
from inbox.errors import InvalidOption, InvalidResult, LeaseLost, StepNotDone, StoreUnreachable
from tests.support.on_servers import both_stores, on
from tests.support.status_mode.stores import CONSUMER, Failed, deliver, fail, status_inbox, stored

Calls = list[str]


def called(calls: Calls, name: str, result: Any = None) -> Callable[[], Any]:
    """A step's body that records its call."""

    def body() -> Any:
        calls.append(name)
        return result

    return body


def undoing(calls: Calls, name: str, failures: int = 0) -> Callable[[Any], None]:
    """An undo that fails `failures` times before it succeeds."""
    left = [failures]

    def undo(result: Any) -> None:
        calls.append(f"undo {name} {result}")
        if left[0] > 0:
            left[0] -= 1
            raise Failed(f"cannot undo {name}")

    return undo


def test_a_finished_step_is_not_called_again(store: Store) -> None:
    """After a failure, finished steps return their stored results without a call; the step that failed runs
    again with the same idempotency key."""
    inbox, calls, keys = status_inbox(store), Calls(), []

    def body(claim: Claim) -> Any:
        stock = claim.step("lock-stock", called(calls, "lock", {"lock": 7}))
        assert stock == {"lock": 7}
        keys.append(claim.step_key("charge"))
        return claim.step("charge", lambda: called(calls, "charge", 9)() if claim.attempt > 1 else fail())

    assert deliver(inbox, body).verdict is Verdict.NEW
    assert deliver(inbox, body).result == 9
    assert calls == ["lock", "charge"]
    assert keys[0] == keys[1]


@on("sqlite", fixture="place")
def test_every_attempt_gets_what_json_makes_of_a_result(store: Store) -> None:
    """Every attempt, including the first, gets a step's result as JSON returns it: tuples are lists, keys are
    text."""
    inbox, seen = status_inbox(store), []

    def body(claim: Claim) -> None:
        seen.append(claim.step("s", lambda: {"pair": (1, 2), 3: None, "é": 1.5}))
        fail()

    for _ in range(2):
        deliver(inbox, body)
    assert seen == [{"pair": [1, 2], "3": None, "é": 1.5}] * 2


@on("sqlite", fixture="place")
def test_step_keys_differ_by_step_message_and_consumer(store: Store) -> None:
    """A step's idempotency key has 32 characters and belongs to one step of one message of one consumer."""
    inbox, keys = status_inbox(store), set()
    for key in ("a", "b", "a1:b"):
        with inbox.claim(key) as claim:
            keys |= {claim.step_key(name) for name in ("charge", "b", "1:b", "ship")}
    assert len(keys) == 12
    assert {len(key) for key in keys} == {32}


@both_stores
def test_a_step_that_may_not_be_repeated_halts_the_message(store: Store) -> None:
    """If a step with `on_unknown="halt"` raises, its outcome is unknown: the message is HALTED, and nothing
    of it is run or undone until an operator decides."""
    events: list[tuple[EventKind, str | None]] = []
    inbox = status_inbox(
        store, max_attempts=1, on_event=lambda event: events.append((event.kind, event.step))
    )
    calls = Calls()

    def body(claim: Claim) -> None:
        claim.step("lock", called(calls, "lock"), undo=undoing(calls, "lock"))
        claim.step("charge", fail, on_unknown="halt")

    assert [deliver(inbox, body).verdict for _ in range(3)] == [Verdict.HALTED] * 3
    assert calls == ["lock"]
    record = stored(store)
    assert (record.status, record.pending_step) == (Status.HALTED, "charge")
    assert record.error == "the outcome of step 'charge' is unknown: Failed: no"
    assert (EventKind.STEP_UNKNOWN, "charge") in events
    assert (EventKind.HALTED, "charge") in events


@on("sqlite", fixture="place")
def test_an_interrupted_step_that_may_not_be_repeated_halts_too(store: Store) -> None:
    """Ctrl-C inside a step with `on_unknown="halt"` halts the message instead of giving it back."""
    inbox = status_inbox(store)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), inbox.claim("a") as claim:
        claim.step("charge", interrupted, on_unknown="halt")
    assert stored(store).status is Status.HALTED
    assert deliver(inbox).verdict is Verdict.HALTED


@on("sqlite", fixture="place")
@pytest.mark.parametrize("on_unknown", ["retry", "halt"])
@pytest.mark.parametrize("state", ["begun", "done"])
@pytest.mark.parametrize("arrived", [True, False], ids=["arrived", "lost on the way"])
def test_a_record_of_a_step_that_got_no_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch, *, arrived: bool, state: str, on_unknown: OnUnknown
) -> None:
    """If the store fails while the beginning or end of a step is recorded, and is back before the handler has
    failed, the record ends up with what the worker knows: the step is called once, in the next attempt if it
    was not called before, and the message is not halted."""
    inbox, calls, write = status_inbox(store), Calls(), store.write

    def write_without_answer(
        to: HeldRecord, what: Change, among: Iterable[Status] = (Status.CONSUMING,)
    ) -> bool:
        is_it = what.status is None and f'"state":"{state}"' in (what.steps or "")
        if arrived or not is_it:
            assert write(to, what, among)
        if is_it:
            raise StoreUnreachable("no answer")
        return True

    def body(claim: Claim) -> None:
        claim.step("charge", called(calls, "charge"), on_unknown=on_unknown)

    with monkeypatch.context() as patch, suppress(StoreUnreachable):
        patch.setattr(store, "write", write_without_answer)
        deliver(inbox, body)
    assert stored(store).pending_step is None
    deliver(inbox, body)
    assert (stored(store).status, calls) == (Status.CONSUMED, ["charge"])


@both_stores
def test_a_step_can_say_that_nothing_happened(store: Store) -> None:
    """A step with `on_unknown="halt"` that raises StepNotDone can run again; a finished step does not run
    again."""
    inbox, calls = status_inbox(store), Calls()

    def refused() -> None:
        calls.append("refused")
        raise StepNotDone("connection refused")

    with pytest.raises(StepNotDone), inbox.claim("a") as claim:
        claim.step("charge", refused, on_unknown="halt")
    assert (stored(store).status, stored(store).pending_step) == (Status.FAILED, None)

    def body(claim: Claim) -> None:
        claim.step("charge", called(calls, "charge"), on_unknown="halt")
        fail()

    for _ in range(2):
        assert deliver(inbox, body).verdict is Verdict.NEW
    assert calls == ["refused", "charge"]


@both_stores
def test_steps_are_undone_in_reverse_order_when_the_handler_gives_up(store: Store) -> None:
    """At the last failure the finished steps are undone in reverse order, each with its result; each undo is
    recorded, and the message is dead. Nothing is undone before that."""
    inbox, calls = status_inbox(store, max_attempts=2), Calls()

    def body(claim: Claim) -> None:
        claim.step("lock", called(calls, "lock", 1), undo=undoing(calls, "lock"))
        claim.step("look", called(calls, "look"))
        claim.step("charge", called(calls, "charge", 2), undo=undoing(calls, "charge"), on_unknown="halt")
        claim.step("ship", fail, undo=undoing(calls, "ship"))

    assert deliver(inbox, body).verdict is Verdict.NEW
    assert calls == ["lock", "look", "charge"]
    assert stored(store).undos == 2
    assert deliver(inbox, body).verdict is Verdict.DEAD
    assert calls == ["lock", "look", "charge", "undo charge 2", "undo lock 1"]
    record = stored(store)
    states = {name: step["state"] for name, step in json.loads(record.steps or "").items()}
    assert states == {"lock": "undone", "look": "done", "charge": "undone"}
    assert (record.status, record.undos, record.error) == (Status.DEAD, 0, "Failed: no")


@on("sqlite", fixture="place")
@pytest.mark.parametrize("swallows", [False, True], ids=["", "swallowing errors"])
def test_an_undo_that_fails_is_tried_again(store: Store, *, swallows: bool) -> None:
    """The next delivery only undoes: finished steps return their results, unfinished ones are not called even
    if the handler swallows every error, and finished undos are not repeated; then the message is dead."""
    inbox, calls = status_inbox(store, max_attempts=1), Calls()
    undo_b = undoing(calls, "b", failures=1)

    def body(claim: Claim) -> None:
        for name, undo in (("a", undoing(calls, "a")), ("b", undo_b), ("c", undoing(calls, "c"))):
            claim.step(name, called(calls, name, name), undo=undo)
        try:
            claim.step("d", called(calls, "d") if claim.attempt > 1 else fail)
        except Exception:
            if not swallows or claim.attempt == 1:
                raise

    assert deliver(inbox, body).verdict is Verdict.NEW
    assert calls == ["a", "b", "c", "undo c c", "undo b b"]
    assert "undo of step 'b' failed: Failed: cannot undo b" in (stored(store).error or "")
    assert deliver(inbox, body).verdict is Verdict.DEAD
    assert calls[5:] == ["undo b b", "undo a a"]
    assert deliver(inbox, body).verdict is Verdict.DEAD
    assert len(calls) == 7


@on("sqlite", fixture="place")
def test_an_undo_that_would_have_to_be_awaited_undoes_nothing(store: Store) -> None:
    """A synchronous inbox does not take an asynchronous undo for one that has undone its step: the message's
    error says so."""
    inbox = status_inbox(store, max_attempts=1)

    class Unfinished:
        """What an asynchronous function returns, but nobody is warned if it is not awaited."""

        def __await__(self) -> Iterator[None]:
            raise AssertionError("it runs")

    def body(claim: Claim) -> None:
        claim.step("lock", lambda: 1, undo=lambda result: Unfinished())
        claim.step("ship", fail)

    assert deliver(inbox, body).verdict is Verdict.NEW
    assert "undo of step 'lock' failed: InvalidOption: undo: it is asyn" in (stored(store).error or "")
    assert stored(store).undos == 1


@on("sqlite", fixture="place")
def test_an_undo_with_a_yield_undoes_nothing(store: Store) -> None:
    """A call of a generator function has not run its body, so its step is not undone."""
    inbox = status_inbox(store, max_attempts=1)

    def undo(result: Any) -> Iterator[None]:
        yield

    def body(claim: Claim) -> None:
        claim.step("lock", lambda: 1, undo=undo)
        claim.step("ship", fail)

    assert deliver(inbox, body).verdict is Verdict.NEW
    assert "undo of step 'lock' failed: InvalidOption: undo: it is a generator" in (stored(store).error or "")
    assert stored(store).undos == 1


@on("sqlite", fixture="place")
def test_an_undo_that_never_succeeds_ends_dead(store: Store) -> None:
    """After a limited number of further attempts the message is dead, and its error names the step that was
    not undone."""
    inbox, calls = status_inbox(store, max_attempts=1), Calls()

    def body(claim: Claim) -> None:
        claim.step("lock", called(calls, "lock", 1), undo=undoing(calls, "lock", failures=1_000))
        claim.step("ship", fail)

    verdicts = [deliver(inbox, body).verdict for _ in range(3 + UNDO_ATTEMPTS)]
    assert verdicts == [Verdict.NEW] * UNDO_ATTEMPTS + [Verdict.DEAD] * 3
    assert calls == ["lock"] + ["undo lock 1"] * (1 + UNDO_ATTEMPTS)
    record = stored(store)
    assert (record.status, record.undos) == (Status.DEAD, 1)
    assert "undo of step 'lock' failed" in (record.error or "")


@on("sqlite", fixture="place")
def test_a_name_is_for_one_step(store: Store) -> None:
    """A second step with the same name in one attempt is rejected without being called; the error names
    it."""

    def body(claim: Claim) -> None:
        claim.step("lock", lambda: 1)
        claim.step("lock", lambda: pytest.fail("called"))

    with pytest.raises(InvalidOption, match=r"^step='lock'"):
        deliver(status_inbox(store), body)


@on("sqlite", fixture="place")
def test_an_invalid_step_result_is_an_error(store: Store) -> None:
    """An invalid result is an error that names the step; the step is not recorded, so another attempt runs it
    again."""
    inbox = status_inbox(store, max_attempts=4)

    def body(result: Any, claim: Claim) -> None:
        claim.step("small", lambda: 1)
        claim.step("big", lambda: result)

    for result in (object(), float("inf"), "x" * 1_000_000):
        with pytest.raises(InvalidResult, match=r"^step='big'"):
            deliver(inbox, partial(body, result))
    record = stored(store)
    assert record.status is Status.FAILED
    assert list(json.loads(record.steps or "")) == ["small"]


@on("sqlite", fixture="place")
def test_the_results_of_all_steps_have_a_limit(store: Store) -> None:
    """The total size of all steps' results is limited: the step that exceeds it is rejected."""

    def body(claim: Claim) -> None:
        for name in ("first", "second", "third"):
            claim.step(name, lambda: "x" * 400_000)

    with pytest.raises(InvalidResult, match=r"^step='third'.*1,000,000"):
        deliver(status_inbox(store), body)
    assert list(json.loads(stored(store).steps or "")) == ["first", "second"]


def test_many_steps_of_any_name(store: Store) -> None:
    """Step names may be any text; a message's steps keep the order in which they began."""
    names = [f"{number} é🙂 \"'\\ %s" for number in range(40)] + ["x" * 255]
    inbox, calls = status_inbox(store), Calls()

    def body(claim: Claim) -> None:
        for name in names:
            claim.step(name, called(calls, name))
        fail()

    for _ in range(2):
        deliver(inbox, body)
    assert calls == names == list(json.loads(stored(store).steps or ""))
    assert stored(store).consumer == CONSUMER


@both_stores
def test_a_result_belongs_to_the_handler(store: Store) -> None:
    """A handler may change a step's result; the next attempt gets it as it was."""
    inbox, seen = status_inbox(store), list[Any]()

    def body(claim: Claim) -> None:
        items = claim.step("items", lambda: ["a", "b"])
        seen.append([*items])
        while items:
            items.pop()
        claim.step("next", lambda: None)
        fail()

    deliver(inbox, body)
    deliver(inbox, body)
    assert seen == [["a", "b"], ["a", "b"]]


@both_stores
def test_a_write_that_arrives_late(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a step's write that the network delivers later is refused: it would undo later steps."""
    inbox, write, copies = status_inbox(store), store.write, list[tuple[HeldRecord, Change]]()

    def copied(held: HeldRecord, change: Change) -> bool:
        copies.append((held, change))
        return write(held, change)

    def body(claim: Claim) -> None:
        claim.step("a", lambda: None)
        assert write(*copies[0])  # nothing has come in between: it may be a repetition
        claim.step("b", lambda: None, on_unknown="halt")
        assert not write(*copies[0])
        claim.step("c", lambda: None)

    monkeypatch.setattr(store, "write", copied)
    assert deliver(inbox, body).verdict is Verdict.NEW
    assert list(json.loads(stored(store).steps or "")) == ["a", "b", "c"]


@pytest.mark.parametrize("has_result", [True, False])
@both_stores
def test_an_unknown_outcome_that_the_handler_handles(store: Store, has_result: bool) -> None:
    """If the handler handles the error of a step that must not be repeated, no other step runs, and the
    message is halted although its block has ended without an error."""
    inbox, calls = status_inbox(store), Calls()

    def body(claim: Claim) -> Any:
        with suppress(Failed):
            claim.step("charge", fail, on_unknown="halt")
        with pytest.raises(
            InvalidOption, match="step='mail': nobody knows whether step 'charge' has happened"
        ):
            claim.step("mail", called(calls, "mail"))
        return 1 if has_result else None

    with pytest.raises(InvalidOption, match="step='charge': it raised an error that the block has handled"):
        deliver(inbox, body)
    assert (stored(store).status, stored(store).pending_step, calls) == (Status.HALTED, "charge", [])
    assert deliver(inbox, body).verdict is Verdict.HALTED


@both_stores
def test_a_step_that_outlasts_the_block(store: Store) -> None:
    """A message whose step still runs in another thread when its block ends has failed. The step's end is not
    recorded, and the next delivery runs it again."""
    inbox, begun, go_on = status_inbox(store), threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def slow() -> None:
        begun.set()
        assert go_on.wait(30)

    def step(claim: Claim) -> None:
        try:
            claim.step("slow", slow)
        except LeaseLost as error:
            errors.append(error)

    def body(claim: Claim) -> None:
        thread = threading.Thread(target=step, args=[claim])
        threads.append(thread)
        thread.start()
        assert begun.wait(30)

    threads: list[threading.Thread] = []
    with pytest.raises(InvalidOption, match="step='slow': it was still running when the block ended"):
        deliver(inbox, body)
    go_on.set()
    threads[0].join(30)
    assert len(errors) == 1
    assert (stored(store).status, stored(store).steps) == (Status.FAILED, None)
    assert deliver(inbox, lambda claim: claim.step("slow", lambda: 1)).result == 1


@both_stores
def test_an_undo_with_steps_of_its_own(store: Store) -> None:
    """An undo may call steps: they run, and are recorded."""
    inbox, calls = status_inbox(store, max_attempts=1), Calls()

    def body(claim: Claim) -> None:
        def undo(_: object) -> None:
            claim.step("refund", called(calls, "refund"))

        claim.step("pay", called(calls, "pay"), undo=undo)
        fail()

    assert deliver(inbox, body).verdict is Verdict.DEAD
    assert calls == ["pay", "refund"]
    assert stored(store).status is Status.DEAD
