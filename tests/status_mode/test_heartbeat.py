"""Heartbeats keep a message while its handler runs; the cost of each operation, on every store."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

import pytest
import redis
from sqlalchemy import event

from inbox import Claim, SqlStore, Status, StatusInbox, Verdict
from inbox._status_mode.heartbeats import Heartbeats
from inbox._status_mode.stores import Store
from tests.support.on_servers import both_stores, on
from tests.support.processes import wait_until
from tests.support.status_mode.stores import Place, deliver, fail, request, status_inbox, stored

SHORT = 2.0
"""Seconds of a lease that is renewed within a test."""


class SoftLimit(Exception):
    """What a signal handler raises in the middle of our code."""


def raising(*_: object) -> NoReturn:
    raise SoftLimit


Asked = Callable[[], int]
"""How often the store has been asked for anything so far."""


@pytest.fixture
def asked(place: Place, store: Store) -> Iterator[Asked]:
    """The store's own count of requests, without the settings sent to a new connection."""
    if isinstance(store, SqlStore):
        statements = []
        event.listen(store.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
        yield lambda: sum(not statement.startswith("SET ") for statement in statements)
    else:
        with redis.Redis.from_url(place.url) as client:
            yield lambda: client.info("commandstats")["cmdstat_evalsha"]["calls"]


def cost(asked: Asked, act: Callable[[], object]) -> int:
    """The number of store requests that this call makes."""
    before = asked()
    act()
    return asked() - before


@pytest.mark.quick("postgresql", "redis")
def test_a_handler_may_run_for_longer_than_its_lease(store: Store) -> None:
    """While a handler runs three times as long as its lease, no other worker gets the message, however often
    it is claimed; then it completes."""
    inbox = status_inbox(store, lease=SHORT, heartbeat=True)
    until = []

    def body(claim: Claim) -> None:
        began = store.now()
        while (store.now() - began).total_seconds() < 3 * SHORT:
            assert store.claim(request()).verdict is Verdict.IN_FLIGHT
            assert not claim.lost
            until.append(stored(store).lease_until)
            time.sleep(0.05)

    assert deliver(inbox, body).verdict is Verdict.NEW
    assert len(set(until)) > 3
    record = stored(store)
    assert (record.status, record.attempts_started) == (Status.CONSUMED, 1)


def interrupted(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next call of a method end with a signal's exception, after it has done its work."""
    method = getattr(owner, name)

    def call(*args: Any) -> NoReturn:
        monkeypatch.setattr(owner, name, method)
        method(*args)
        raise SoftLimit

    monkeypatch.setattr(owner, name, call)


@on("postgresql", fixture="place")
@pytest.mark.parametrize("ends", [True, False], ids=["recorded", "not recorded"])
def test_a_signal_leaves_no_heartbeat(store: Store, monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> None:
    """A signal's exception that arrives when a claim begins to be renewed ends the claim. If that can neither
    be recorded nor stop the renewals, they end with the handler's frame, and the lease ends."""
    inbox = status_inbox(store, lease=1, heartbeat=True)
    interrupted(Heartbeats, "add", monkeypatch)
    if not ends:
        for name in ("write", "end"):
            monkeypatch.setattr(store, name, raising)
        monkeypatch.setattr(Heartbeats, "remove", raising)
    with suppress(SoftLimit), inbox.claim("a"):
        pytest.fail("the block has begun")
    monkeypatch.undo()
    if ends:
        assert stored(store).status is Status.FAILED
    wait_until(lambda: store.claim(request()).verdict is Verdict.NEW, timeout=20)


@on("postgresql", fixture="place")
def test_a_heartbeat_that_was_not_stopped_ends_with_the_record(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a signal keeps a finished handler from ending its renewals, the next renewal ends them, although the
    program still has the claim."""
    inbox = status_inbox(store, lease=SHORT, heartbeat=True)
    monkeypatch.setattr(Heartbeats, "remove", raising)
    with suppress(SoftLimit), inbox.claim("a") as claim:
        pass
    assert claim.is_new
    wait_until(lambda: not len(inbox._heartbeats._schedule))


def test_without_heartbeats_a_long_handler_loses_its_message(store: Store) -> None:
    """With `heartbeat=False` only the handler's own steps and `heartbeat` calls renew the lease."""
    inbox = status_inbox(store, lease=SHORT)
    with inbox.claim("a") as claim:
        until = [stored(store).lease_until]
        for renew in (claim.heartbeat, lambda: claim.step("s", lambda: 1)):
            time.sleep(0.01)  # a store may count in milliseconds
            renew()
            until.append(stored(store).lease_until)
        assert until == sorted(set(until), key=str)
        wait_until(lambda: claim.lost)
        assert stored(store).lease_until == until[-1]
        claim.heartbeat()
        assert not claim.lost


def test_a_short_message_costs_no_heartbeat(store: Store, asked: Asked) -> None:
    """A message that takes less than a third of its lease costs the same with heartbeats as without."""
    quiet, beating = status_inbox(store), status_inbox(store, heartbeat=True)

    def take(inbox: StatusInbox, key: str) -> None:
        with inbox.claim(key) as claim:
            assert claim.is_new

    take(quiet, "first")  # opens connections and loads scripts
    take(beating, "second")
    assert cost(asked, lambda: take(beating, "b")) == cost(asked, lambda: take(quiet, "a"))


def test_a_duplicate_costs_one_question(store: Store, asked: Asked) -> None:
    """A duplicate of a consumed message costs one read and changes nothing."""
    inbox = status_inbox(store)
    deliver(inbox)
    before = stored(store)
    assert cost(asked, lambda: deliver(inbox)) == 1
    assert stored(store) == before


def test_a_step_costs_one_write(store: Store, asked: Asked) -> None:
    """A step costs one write, two with `on_unknown="halt"`, and none if an earlier attempt has finished
    it."""
    inbox = status_inbox(store)

    def body(claim: Claim) -> None:
        finished = claim.attempt > 1
        claim.step("first", lambda: 1)  # loads scripts
        assert cost(asked, lambda: claim.step("s", lambda: 1)) == (0 if finished else 1)
        assert cost(asked, lambda: claim.step("t", lambda: 1, on_unknown="halt")) == (0 if finished else 2)
        if not finished:
            fail()

    for _ in range(2):
        assert deliver(inbox, body).verdict is Verdict.NEW


@both_stores
def test_a_heartbeat_does_not_shorten_the_life_of_a_record(store: Store) -> None:
    """A store that expires records itself counts the retention from the end of the lease, not from a
    heartbeat."""
    with status_inbox(store, retention=0.2).claim("a") as claim:
        claim.heartbeat()
        time.sleep(0.4)
        assert stored(store).token == claim.token
