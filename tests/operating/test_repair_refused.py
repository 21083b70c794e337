"""Decisions that operators cannot make about messages of status-table mode, on every store."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from inbox import Record, Status, Verdict, discard, list_messages, release, resolve_step, retry, show_message
from inbox._status_mode.stores import Store
from inbox.errors import InvalidKey, InvalidOption, MessageNotFound, WrongStatus
from tests.support.cases import case
from tests.support.on_servers import STORES, on, spread
from tests.support.status_mode.repairs import KEY, has_ended, history, inbox_of
from tests.support.status_mode.stores import CONSUMER, change, end, held, request, stored

DECISIONS: dict[str, tuple[Callable[[Store], None], set[Status]]] = {
    "retry": (lambda store: retry(store, CONSUMER, KEY), {Status.DEAD, Status.FAILED}),
    "discard": (lambda store: discard(store, CONSUMER, KEY), {Status.DEAD, Status.FAILED, Status.HALTED}),
    "release": (lambda store: release(store, CONSUMER, KEY), {Status.CONSUMING}),
    "resolve_step": (lambda store: resolve_step(store, CONSUMER, KEY, "charge", "done"), {Status.HALTED}),
}


@spread("status", [Status.DEAD, Status.FAILED, Status.HALTED], where=STORES, fixture="place")
def test_the_wrong_status(store: Store, status: Status) -> None:
    """A decision that does not fit the message's status is rejected and changes nothing; the error names the
    status and the expected one."""
    before = has_ended(store, status)
    for name, (decide, fitting) in DECISIONS.items():
        if status not in fitting:
            said = f"'{KEY}': status is {status}.*; this needs {min(fitting)}"
            with case(name), pytest.raises(WrongStatus, match=said):
                decide(store)
            assert stored(store, KEY) == before


def test_consuming_and_consumed_are_left_alone(store: Store) -> None:
    """A message that is consuming or consumed cannot be retried, discarded or resolved."""
    with inbox_of(store).claim(KEY):
        for name in ("retry", "discard", "resolve_step"):
            with case(name), pytest.raises(WrongStatus, match="status is consuming"):
                DECISIONS[name][0](store)
    for name, (decide, _) in DECISIONS.items():
        with case(name), pytest.raises(WrongStatus, match="status is consumed"):
            decide(store)
    assert stored(store, KEY).status is Status.CONSUMED


@on("sqlite", "redis", fixture="place")
def test_no_such_message(store: Store) -> None:
    """An unknown message raises `MessageNotFound`, which is also a LookupError."""
    said = f"consumer '{CONSUMER}' has no message '{KEY}'"
    for name, (decide, _) in DECISIONS.items():
        with case(name), pytest.raises(LookupError, match=said) as raised:
            decide(store)
        assert isinstance(raised.value, MessageNotFound)


@on("sqlite", fixture="place")
def test_another_step_is_not_resolved(store: Store) -> None:
    """Only the step that halted the message can be resolved."""
    before = has_ended(store, Status.HALTED)
    with pytest.raises(WrongStatus, match="it is halted for step 'charge', not 'ship'"):
        resolve_step(store, CONSUMER, KEY, "ship", "done")
    assert stored(store, KEY) == before


@spread(
    "name, status", [("discard", Status.DEAD), ("resolve_step", Status.HALTED)], where=STORES, fixture="place"
)
def test_of_many_at_the_same_time_one_wins(store: Store, name: str, status: Status) -> None:
    """If eight operators decide about the same record at the same time, one succeeds; the others get
    `WrongStatus`."""
    has_ended(store, status)
    start = Barrier(8)

    def decide(_: int) -> bool:
        start.wait(30)
        try:
            DECISIONS[name][0](store)
        except WrongStatus:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(decide, range(8))) == 1
    assert len(history(store)) == 2


def test_a_worker_claims_first(store: Store) -> None:
    """If a worker claims the message between the operator's look and decision, the decision is rejected."""
    has_ended(store, Status.FAILED)
    with pytest.raises(WrongStatus, match="it has just been changed"):
        retry(overtaken(store, lambda: store.claim(request(KEY))), CONSUMER, KEY)
    assert (stored(store, KEY).status, stored(store, KEY).attempts_started) == (Status.CONSUMING, 2)


def test_a_handler_ends_first(store: Store) -> None:
    """If the handler completes the message between the operator's look and decision, it stays completed."""
    claimed = store.claim(request(KEY))
    with pytest.raises(WrongStatus, match="it has just been changed"):
        release(overtaken(store, lambda: end(store, claimed, Status.CONSUMED)), CONSUMER, KEY)
    assert stored(store, KEY).status is Status.CONSUMED


def test_a_step_begins_first(store: Store) -> None:
    """If the handler begins a step with `on_unknown="halt"` between the operator's look and the release, the
    message is halted and the step is not run again."""
    claimed = store.claim(request(KEY))
    begun = change(steps='{"charge":{"state":"begun"}}', pending_step="charge")
    release(overtaken(store, lambda: store.write(held(claimed), begun)), CONSUMER, KEY)
    assert (stored(store, KEY).status, stored(store, KEY).pending_step) == (Status.HALTED, "charge")
    with inbox_of(store).claim(KEY) as claim:
        assert claim.verdict is Verdict.HALTED
    resolve_step(store, CONSUMER, KEY, "charge", "not_done")
    with inbox_of(store).claim(KEY) as claim:
        assert claim.verdict is Verdict.NEW


def test_a_step_ends_first(store: Store) -> None:
    """If the handler ends a step with `on_unknown="halt"` between the operator's look and the release, the
    message is failed, not halted, and the step is not called again."""
    claimed = store.claim(request(KEY))
    begun = change(steps='{"charge":{"state":"begun"}}', pending_step="charge")
    ended = change(steps='{"charge":{"state":"done","result":7}}', pending_step="")
    store.write(held(claimed), begun)
    release(overtaken(store, lambda: store.write(held(claimed), ended)), CONSUMER, KEY)
    assert (stored(store, KEY).status, stored(store, KEY).pending_step) == (Status.FAILED, None)
    with inbox_of(store).claim(KEY) as claim:
        assert claim.step("charge", lambda: pytest.fail("called again"), on_unknown="halt") == 7


def overtaken(store: Store, meanwhile: Callable[[], object]) -> Store:
    """The same store, with a call that runs right after the first look."""
    to_come = [meanwhile]

    class Overtaken(type(store)):  # type: ignore[misc]
        def find(self, consumer: str, key: str) -> Record | None:
            found = store.find(consumer, key)
            if to_come:
                to_come.pop()()
            return found

    slow: Store = object.__new__(Overtaken)
    slow.__dict__.update(store.__dict__)
    return slow


BAD: list[tuple[Callable[[Store], object], type[Exception], str]] = [
    (lambda store: list_messages(store, limit=0), InvalidOption, "limit=0"),
    (lambda store: list_messages(store, status="lost"), InvalidOption, "status='lost': expected one of"),
    (lambda store: list_messages(store, consumer=""), InvalidOption, "consumer=''"),
    (lambda store: show_message(store, CONSUMER, ""), InvalidKey, "expected 1 to 512 bytes"),
    (lambda store: retry(store, "", KEY), InvalidOption, "consumer=''"),
    (lambda store: resolve_step(store, CONSUMER, KEY, "charge", "maybe"), InvalidOption, "outcome='maybe'"),  # type: ignore[arg-type]
    (
        lambda store: resolve_step(store, CONSUMER, KEY, "charge", "not_done", result=1),
        InvalidOption,
        "result=1: expected None with outcome='not_done'",
    ),
    (lambda store: resolve_step(store, CONSUMER, KEY, "", "done"), InvalidOption, "step=''"),
    (lambda store: discard(store, CONSUMER, KEY, by="a\0b"), InvalidOption, "contains a NUL"),
    (lambda _: list_messages("inbox"), InvalidOption, "expected a synchronous SqlStore or RedisStore"),  # type: ignore[arg-type]
]


@on("sqlite", fixture="place")
def test_bad_input(store: Store) -> None:
    """Invalid input is rejected before anything is changed, with an error that names it."""
    before = has_ended(store, Status.HALTED)
    for call, error, said in BAD:
        with case(said), pytest.raises(error, match=said.replace("(", "\\(")):
            call(store)
        assert stored(store, KEY) == before
