"""`remember=`: duplicates of remembered messages are answered without the store, and no other messages
are."""

import os
import pickle
import time
from contextlib import suppress

import pytest
from sqlalchemy import create_engine, event

from inbox import EventKind, SqlStore, Verdict, discard
from inbox._memory import Known, Memory
from inbox._status_mode.stores import ClaimAnswer, Request, Store
from inbox.errors import LeaseLost
from tests.support.on_servers import on
from tests.support.status_mode.asynchronous import in_loop, inbox_at
from tests.support.status_mode.stores import CONSUMER, Place, deliver, fail, status_inbox, stored


class Asked:
    """The number of claims that a store was asked for."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self._claim = store.claim
        monkeypatch.setattr(store, "claim", self._noted)

    def _noted(self, request: Request) -> ClaimAnswer:
        self.times += 1
        return self._claim(request)


@pytest.fixture
def asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The number of claims that the store was asked for."""
    return Asked(store, monkeypatch)


@on("sqlite", fixture="place")
def test_a_duplicate_is_answered_without_the_store(store: Store, asked: Asked) -> None:
    """A remembered message is answered without the store, with a copy of the first run's result or as a
    mismatch; monitoring gets the event."""
    events: list[EventKind] = []
    inbox = status_inbox(
        store, remember=10, on_refusal="return", on_event=lambda event: events.append(event.kind)
    )
    assert deliver(inbox, lambda _: {"n": [1]}, payload="x").verdict is Verdict.NEW
    before = stored(store)
    results = [deliver(inbox, payload="x").result for _ in range(2)]
    assert results == [{"n": [1]}] * 2
    assert results[0] is not results[1]
    assert deliver(inbox, payload="y").verdict is Verdict.MISMATCH
    assert deliver(inbox).verdict is Verdict.DUPLICATE
    assert asked.times == 1
    assert stored(store) == before
    assert events[2:] == [EventKind.DUPLICATE] * 2 + [EventKind.MISMATCH, EventKind.DUPLICATE]


@on("sqlite", "redis", fixture="place")
def test_nothing_is_remembered_after_a_break(store: Store, asked: Asked) -> None:
    """After a connection has broken, or if Redis has forgotten its scripts, the store may have lost records:
    it is asked again."""
    inbox = status_inbox(store, remember=10, on_refusal="return")
    with inbox.claim("first"):  # a new Redis does not know the scripts either
        pass
    for _ in range(3):
        deliver(inbox)
    assert asked.times == 2
    if isinstance(store, SqlStore):
        store.engine.connect().invalidate()
    else:
        getattr(store, "_client").script_flush()  # noqa: B009 - as a failover does
    with inbox.claim("another"):
        pass
    assert deliver(inbox).verdict is Verdict.DUPLICATE
    assert asked.times == 4


@on("sqlite", fixture="place")
def test_what_another_process_has_done_is_remembered(store: Store, asked: Asked) -> None:
    """A message that another process consumed is remembered here after its first duplicate."""
    deliver(status_inbox(store), lambda _: 7, payload="x")
    inbox = status_inbox(store, remember=10, on_refusal="return")
    assert [deliver(inbox, payload="x").result for _ in range(3)] == [7] * 3
    assert deliver(inbox, payload="y").verdict is Verdict.MISMATCH
    assert asked.times == 2


@on("sqlite", fixture="place")
def test_only_what_is_done_is_remembered(store: Store, asked: Asked) -> None:
    """Messages that failed, are in flight, or were lost by this process are not remembered and run again; one
    that an operator discarded is a duplicate."""
    inbox = status_inbox(store, remember=10, on_refusal="return", lease=0.5)
    deliver(inbox, fail)
    assert deliver(inbox, fail).attempt == 2
    discard(store, CONSUMER, "a")
    assert [deliver(inbox).verdict for _ in range(2)] == [Verdict.DUPLICATE] * 2
    assert asked.times == 3
    with inbox.claim("b") as claim:
        with inbox.claim("b") as second:
            assert second.verdict is Verdict.IN_FLIGHT
        assert claim.is_new
    with suppress(LeaseLost):
        with inbox.claim("c"):
            time.sleep(0.6)
            with suppress(ZeroDivisionError), status_inbox(store).claim("c"):
                raise ZeroDivisionError
        pytest.fail("it was completed")
    with inbox.claim("c") as again:
        assert again.is_new


@on("sqlite", fixture="place")
@in_loop
async def test_asynchronous_inboxes_remember(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """`AsyncStatusInbox` remembers too."""
    async with inbox_at(place, remember=10) as inbox:
        async with inbox.claim("a", {"n": 1}) as claim:
            claim.result = "done"
        asked = Asked(inbox.store, monkeypatch)
        for _ in range(2):
            async with inbox.claim("a", {"n": 1}) as claim:
                assert (claim.verdict, claim.result) == (Verdict.DUPLICATE, "done")
        assert asked.times == 0


@on("sqlite", fixture="place")
def test_no_longer_than_the_store_keeps_it(store: Store, asked: Asked) -> None:
    """An inbox that asks for no retention remembers a message for as long as the stored one says."""
    deliver(status_inbox(store, retention=0.5))
    inbox = status_inbox(store, remember=10)
    for key in ("mine", "a"):
        for _ in range(2):
            with inbox.claim(key):
                pass
    assert asked.times == 3
    time.sleep(1.1)  # times are stored in whole seconds
    for key in ("mine", "a"):
        with inbox.claim(key) as claim:
            assert claim.verdict is Verdict.DUPLICATE
    assert asked.times == 5


@on("mariadb", fixture="place")
def test_it_costs_no_statement(place: Place) -> None:
    """A claim sends the same statements with it and without."""
    engine, statements = create_engine(place.url), list[str]()
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    inboxes = [status_inbox(SqlStore(engine), remember=remember) for remember in (0, 10)]
    counts = []
    for inbox in inboxes:
        for key in ("first", "a", "a"):
            statements.clear()
            with inbox.claim(f"{key} {inbox is inboxes[0]}"):
                pass
            counts.append(len(statements))
    engine.dispose()
    assert counts[1] == counts[4]
    assert counts[2] > counts[5] == 0


@on("sqlite", fixture="place")
def test_nothing_is_remembered_unless_asked_for(store: Store, asked: Asked) -> None:
    """By default every delivery asks the store."""
    inbox = status_inbox(store)
    for _ in range(3):
        deliver(inbox)
    assert asked.times == 3


KNOWN = Known(None, None)


def test_the_memory_has_a_limit() -> None:
    """When the memory is full, the least recently used key is forgotten first."""
    memory = Memory(2)
    memory.remember("a", KNOWN, 60)
    memory.remember("b", KNOWN, 60)
    assert memory.recall("a")
    memory.remember("c", KNOWN, 60)
    assert [key for key in "abc" if memory.recall(key)] == ["a", "c"]
    assert len(memory) == 2


def test_the_memory_forgets_with_time() -> None:
    """After the retention a key is forgotten, and only the store can answer."""
    memory = Memory(2)
    memory.remember("a", KNOWN, 0.05)
    memory.remember("b", KNOWN, -1)
    time.sleep(0.06)
    assert (memory.recall("a"), memory.recall("b")) == (None, None)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_the_memory_is_this_process_alone() -> None:
    """The memory is not inherited by a fork and not part of a pickle."""
    memory = Memory(2)
    memory.remember("a", KNOWN, 60)
    assert pickle.loads(pickle.dumps(memory)).recall("a") is None  # noqa: S301 - its own
    child = os.fork()
    if not child:
        os._exit(0 if memory.recall("a") is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert memory.recall("a") is KNOWN
