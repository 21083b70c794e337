"""Operators' decisions about many messages of status-table mode, on every store."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import inbox
from inbox import BulkResult, Claim, SqlStore, Status, StatusInbox, Verdict
from inbox._status_mode.stores import HeldRecord, Store
from inbox.errors import InvalidKey, InvalidOption, LeaseLost, StoreUnreachable, WrongStatus
from tests.support.bulk_worker import COMMITS, MESSAGES, TOGETHER, discard_messages
from tests.support.database import Database
from tests.support.on_servers import STORES, both_stores, on, spread
from tests.support.processes import workers
from tests.support.status_mode.repairs import deliver, fails, has_ended, inbox_of
from tests.support.status_mode.stores import CONSUMER, stored

Bulk = Callable[..., BulkResult]


def ended(store: Store, status: Status, *keys: str) -> None:
    """Bring messages to a status."""
    for key in keys:
        has_ended(store, status, key)


def keys_in(store: Store, status: Status) -> list[str]:
    """The keys of the messages in a status."""
    return sorted(each.key for each in inbox.list_messages(store, status=status))


def test_retry_exactly_what_was_seen(store: Store) -> None:
    """With `seen`, only the messages of the listing are retried: not those beyond its limit, nor those that
    came later. Their attempts are counted from zero, and the history says who and why."""
    ended(store, Status.DEAD, "a", "b", "c")
    listed = inbox.list_messages(store, status="dead", limit=2)
    ended(store, Status.DEAD, "d")
    answer = inbox.retry_all(store, "dead", seen=listed.seen, by="ann", why="fixed")
    assert (answer, answer.done, answer.changed) == (2, 2, 0)
    assert (keys_in(store, Status.FAILED), keys_in(store, Status.DEAD)) == (["a", "b"], ["c", "d"])
    record = stored(store, "a")
    assert (record.attempts_started, record.error) == (0, "to be retried by ann: fixed")


@spread("status", [Status.DEAD, Status.HALTED, Status.FAILED], where=STORES, fixture="place")
def test_discard_what_is_there(store: Store, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `seen`, all messages in a status are discarded, however many transactions it takes. Each
    transaction stores how many it has discarded."""
    monkeypatch.setattr("inbox._operating.bulk._TOGETHER", 2)
    ended(store, status, *"abcde")
    other = Status.DEAD if status is Status.FAILED else Status.FAILED
    ended(store, other, "other")
    assert inbox.discard_all(store, status) == 5
    assert keys_in(store, Status.CONSUMED) == [*"abcde"]
    assert keys_in(store, other) == ["other"]
    assert deliver(store, fails, "c") is Verdict.DUPLICATE
    if isinstance(store, SqlStore):
        assert [each.count for each in inbox.decisions(store.engine)] == [1, 2, 2]


def test_release_all(store: Store) -> None:
    """Messages that are being consumed are released; a handler within a step that must not be repeated leaves
    its message halted. All their later writes are refused."""
    with ExitStack() as stack:
        first = stack.enter_context(ended_by_loss(store, "a"))
        second = stack.enter_context(ended_by_loss(store, "b"))
        answers: list[BulkResult] = []
        with pytest.raises(LeaseLost):
            first.step("charge", lambda: answers.append(inbox.release_all(store)), on_unknown="halt")
        assert answers == [2]
        with pytest.raises(LeaseLost):
            second.heartbeat()
    assert (keys_in(store, Status.HALTED), keys_in(store, Status.FAILED)) == (["a"], ["b"])
    assert stored(store, "b").attempts_started == 0


@contextmanager
def ended_by_loss(store: Store, key: str) -> Iterator[Claim]:
    """A handler that loses its message."""
    with pytest.raises(LeaseLost), inbox_of(store).claim(key) as claim:
        yield claim


@spread("status", [Status.DEAD, Status.FAILED], where=STORES, fixture="place")
def test_what_has_changed_since_is_left(store: Store, status: Status) -> None:
    """A message that ran since, and came back into the same status, is not the one that was seen, nor is one
    that was discarded. Both are counted, and left as they are; a dry run counts the same."""
    ended(store, status, "a", "b", "c")
    listed = inbox.list_messages(store, status=status)
    inbox.retry(store, CONSUMER, "a")
    has_ended(store, status, "a")
    inbox.discard(store, CONSUMER, "b")
    for dry_run in (True, False):
        answer = inbox.discard_all(store, status, seen=listed.seen, dry_run=dry_run)
        assert (answer, answer.changed) == (1, 2)
    assert keys_in(store, status) == ["a"]


@both_stores
def test_filters(store: Store) -> None:
    """Consumer, key and a text in the error choose messages, in listings and in decisions: in upper or lower
    case as it is given, and no character has a meaning. With `seen`, a message has to be in both."""
    say = {"a": "Queue 100% full", "b": "queue 100% full", "c": "queue 100x full"}

    def body(claim: Claim) -> None:
        raise RuntimeError(say[claim.key])

    for key in say:
        with pytest.raises(RuntimeError):
            deliver(store, body, key)
    with pytest.raises(RuntimeError), StatusInbox("other", store=store).claim("a"):
        raise RuntimeError("100%")
    assert [each.key for each in inbox.list_messages(store, error="queue 100%")] == ["b"]
    assert [each.consumer for each in inbox.list_messages(store, key="a", error=": 100%")] == ["other"]
    everything = inbox.list_messages(store).seen
    assert inbox.retry_all(store, "dead", seen=everything) == 0
    answer = inbox.retry_all(store, "failed", consumer=CONSUMER, error="100%", seen=everything, dry_run=True)
    assert (answer, answer.changed) == (2, 0)
    assert inbox.discard_all(store, "failed", consumer="other") == 1
    assert inbox.discard_all(store, "failed", error="Queue") == 1
    assert inbox.discard_all(store, "failed", key="c", error="100%") == 0
    assert inbox.discard_all(store, "failed", error="100%") == 1
    assert keys_in(store, Status.FAILED) == ["c"]


@on("postgresql", "mariadb", "mysql", fixture="place")
def test_the_error_is_found_in_every_database(store: Store) -> None:
    """The database chooses by the error's text, with its case, and with characters of four bytes."""
    for key, error in {"a": "Zug 🚂 voll", "b": "zug 🚂 voll"}.items():
        with pytest.raises(RuntimeError), inbox_of(store).claim(key):
            raise RuntimeError(error)
    assert [each.key for each in inbox.list_messages(store, error="zug 🚂")] == ["b"]


@both_stores
def test_a_dry_run(store: Store) -> None:
    """A dry run counts what would be taken, and changes nothing."""
    ended(store, Status.DEAD, "a", "b")
    with inbox_of(store).claim("c") as claim:
        before = inbox.list_messages(store)
        assert inbox.retry_all(store, "dead", dry_run=True) == 2
        assert inbox.discard_all(store, "dead", key="a", dry_run=True) == 1
        assert inbox.release_all(store, dry_run=True) == 1
        assert inbox.list_messages(store) == before
        claim.heartbeat()


@spread("decide", [inbox.retry_all, inbox.discard_all], elsewhere=2, where=STORES, fixture="place")
def test_of_operators_and_a_worker_one_wins(place: Any, decide: Bulk) -> None:
    """Two operators and a worker take one message at the same time. Whoever writes first wins: each of the
    others either sees a message that has changed, or takes the message after the winner has ended with it.
    What is stored adds up."""
    done = 0
    for round_ in range(5):
        key, barrier = f"k{round_}", threading.Barrier(3)
        with place.open() as store:
            has_ended(store, Status.FAILED, key)
            seen = inbox.list_messages(store, status="failed", key=key).seen

        def operator(_: int, seen: str = seen, barrier: threading.Barrier = barrier) -> BulkResult:
            with place.open() as store:
                barrier.wait()
                return decide(store, "failed", seen=seen)

        def worker(key: str = key, barrier: threading.Barrier = barrier) -> Verdict:
            with place.open() as store:
                barrier.wait()
                with inbox_of(store).claim(key) as claim:
                    return claim.verdict

        with ThreadPoolExecutor(3) as pool:
            work = pool.submit(worker)
            answers = list(pool.map(operator, range(2)))
        assert sorted((each.done, each.changed) for each in answers) in ([(0, 1), (0, 1)], [(0, 1), (1, 0)])
        has_decided, done = any(answers), done + sum(answers)
        with place.open() as store:
            record = stored(store, key)
        if decide is inbox.discard_all:
            # Exactly one of the three: the worker's NEW, or a decision before it.
            assert (work.result() is Verdict.NEW) != has_decided
        else:
            assert work.result() is Verdict.NEW
        assert record.status is Status.CONSUMED
    with place.open() as store:
        if isinstance(store, SqlStore):
            assert sum(each.count for each in inbox.decisions(store.engine)) == done


@both_stores
def test_one_message_at_the_same_time(place: Any) -> None:
    """The same for decisions about one message: one operator wins, and the other one is told."""
    for round_ in range(5):
        key, barrier = f"k{round_}", threading.Barrier(2)
        with place.open() as store:
            has_ended(store, Status.DEAD, key)

        def operator(_: int, key: str = key, barrier: threading.Barrier = barrier) -> bool:
            with place.open() as store:
                barrier.wait()
                try:
                    inbox.discard(store, CONSUMER, key)
                except WrongStatus:
                    return False
                return True

        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(operator, range(2)))
        assert sorted(answers) == [False, True]


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_call_that_is_killed(migrated: Database, point: str) -> None:
    """A call that is killed with kill -9 in the middle has done what is stored, and nothing else."""
    store = SqlStore(migrated.engine())
    ended(store, Status.FAILED, *(f"k{number}" for number in range(MESSAGES)))
    with workers((discard_messages, migrated.url, point)) as (killed,):
        assert killed.exit_code() == -signal.SIGKILL
    done = TOGETHER * (COMMITS if point == "after" else COMMITS - 1)
    assert [each.count for each in inbox.decisions(store.engine)] == [TOGETHER] * (done // TOGETHER)
    assert len(keys_in(store, Status.CONSUMED)) == done


@both_stores
def test_a_release_that_fails_half_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store fails while messages are taken away from their handlers, those that were taken away are
    released nevertheless: none waits for its lease to end."""
    write = store.write

    def fails_at_the_second(held: HeldRecord, *given: Any, **options: Any) -> bool:
        if held.key == "b":
            raise StoreUnreachable("away")
        return write(held, *given, **options)

    with ended_by_loss(store, "a") as first, inbox_of(store).claim("b") as second:
        with monkeypatch.context() as patch:
            patch.setattr(store, "write", fails_at_the_second)
            with pytest.raises(StoreUnreachable):
                inbox.release_all(store)
        second.heartbeat()
        with pytest.raises(LeaseLost):
            first.heartbeat()
    assert (keys_in(store, Status.FAILED), keys_in(store, Status.CONSUMED)) == (["a"], ["b"])


@both_stores
def test_wrong_options(store: Store) -> None:
    """An invalid option is refused; the error names it, and nothing is changed."""
    ended(store, Status.DEAD, "a")
    seen = inbox.list_messages(store).seen
    for decide, said in (
        (lambda: inbox.retry_all(store, "halted"), "status='halted': expected one of dead, failed"),
        (lambda: inbox.discard_all(store, "consumed"), "status='consumed': expected one of dead, halted"),
        (lambda: inbox.retry_all(store, "lost"), "status='lost'"),
        (lambda: inbox.retry_all(store, "dead", seen=seen[4:]), "it is not the `seen` of a listing"),
        (lambda: inbox.retry_all(store, "dead", seen=b""), "seen=b''"),  # type: ignore[arg-type]
        (lambda: inbox.retry_all(store, "dead", consumer=""), "consumer=''"),
        (lambda: inbox.retry_all(store, "dead", error=1_001 * "a"), "1001 characters"),
        (lambda: inbox.retry_all(store, "dead", dry_run=0), "dry_run=0"),  # type: ignore[arg-type]
        (lambda: inbox.release_all(store, by=""), "by=''"),
        (lambda: inbox.list_messages(store, error=""), "error=''"),
        (lambda: inbox.retry_all(None, "dead"), "store=None"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidOption, match=said):
            decide()
    with pytest.raises(InvalidKey):
        inbox.retry_all(store, "dead", key="")
    assert keys_in(store, Status.DEAD) == ["a"]
