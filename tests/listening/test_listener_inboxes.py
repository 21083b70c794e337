"""Listeners of both kinds of inbox: what they tell the broker, and what took effect."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from inbox import (
    Action,
    AsyncClaim,
    AsyncInbox,
    AsyncStatusInbox,
    Backoff,
    Claim,
    Inbox,
    SqlStore,
    Status,
    StatusInbox,
    Verdict,
)
from inbox._status_mode.stores import Store
from inbox.errors import GiveUp, InvalidKey, LeaseLost
from tests.support import accounts
from tests.support.database import Database
from tests.support.listeners import (
    NAMES,
    Chance,
    Fault,
    Payment,
    actions,
    asynchronously,
    id_of,
    name_of,
    payments,
    until_acknowledged,
)
from tests.support.on_servers import both_stores, on
from tests.support.status_mode.stores import ENDS, change, held, request, status_inbox, stored, untimed
from tests.support.together import together

ACK, RETRY, DEAD_LETTER = Action.ACK, Action.RETRY, Action.DEAD_LETTER


def test_every_kind_of_message_of_the_exactly_once_path(postgres: Database) -> None:
    """One batch contains a new message, its duplicate, another payload under its key, a failure and an
    invalid key. Each gets its own decision, and only acknowledged messages took effect."""
    engine, inbox = postgres.engine(), Inbox("payments", wait=0)
    accounts.make(engine, NAMES)

    @inbox.handler(engine, key=id_of, payload=lambda message: message)
    def book(connection: Connection, message: Payment) -> int:
        accounts.add(connection, message["name"])
        if message["name"] == NAMES[2]:
            raise Fault("after a write")
        return 7

    batch = [
        Payment(id="a", name=NAMES[0]),
        Payment(id="a", name=NAMES[0]),
        Payment(id="a", name=NAMES[1]),
        Payment(id="b", name=NAMES[2]),
        Payment(id="", name=NAMES[3]),
        Payment(id="c", name=NAMES[4]),
    ]
    decisions = inbox.listener(key=id_of).decide(batch, book)
    assert actions(decisions) == [ACK, ACK, DEAD_LETTER, RETRY, DEAD_LETTER, ACK]
    assert [each.reason for each in decisions[:4]] == ["new", "duplicate", "mismatch", "Fault: after a write"]
    outcomes = [each.outcome for each in decisions if each.outcome is not None]
    assert [each.result for each in outcomes[:2]] == [7, 7]
    assert isinstance(outcomes[4].error, InvalidKey)
    assert accounts.totals(engine) == dict.fromkeys(NAMES, 0) | {NAMES[0]: 1, NAMES[4]: 1}


def test_a_message_in_flight_elsewhere_is_delayed(postgres: Database) -> None:
    """While another transaction is taking the message, it is not acknowledged but delivered again later."""
    engine, inbox = postgres.engine(), Inbox("payments", wait=0)
    book = inbox.handler(engine, key=id_of)(lambda connection, message: None)
    listener = inbox.listener(backoff=Backoff(first=8))
    with engine.begin() as connection:
        inbox.accept(connection, "payment-0")
        (decision,) = listener.decide(payments(1), book)
    assert (decision.action, decision.reason) == (RETRY, "in_flight")
    assert 4 <= decision.delay <= 8
    assert actions(listener.decide(payments(1), book)) == [ACK]


def test_handlers_that_fail_now_and_then(postgres: Database) -> None:
    """Eight messages run at the same time, in order, and are redelivered from the first failure on: each
    message takes effect once."""
    engine, inbox = postgres.engine(pool_size=8), Inbox("payments", wait=10)
    accounts.make(engine, NAMES)
    chance, messages = Chance(), payments(60)

    @inbox.handler(engine, key=id_of)
    def book(connection: Connection, message: Payment) -> None:
        accounts.add(connection, message["name"])
        chance()

    listener = inbox.listener(order="in_order", concurrency=8, key=name_of)
    until_acknowledged(listener, messages, book)
    assert accounts.totals(engine) == Counter(map(name_of, messages))


def test_two_brokers_bring_the_same_messages(postgres: Database) -> None:
    """Four threads pass the same batch to one listener at the same time. Duplicates wait for the first
    message with their key, and every message takes effect once."""
    engine, inbox = postgres.engine(pool_size=8), Inbox("payments", wait=10)
    accounts.make(engine, NAMES)
    messages, listener = payments(30), inbox.listener(concurrency=4, key=id_of)

    @inbox.handler(engine, key=id_of)
    def book(connection: Connection, message: Payment) -> None:
        accounts.add(connection, message["name"])

    together([lambda: until_acknowledged(listener, messages, book)] * 4, timeout=120)
    assert accounts.totals(engine) == dict.fromkeys(NAMES, 5)


def test_the_exactly_once_path_asynchronously(postgres: Database) -> None:
    """With AsyncListener and tasks, a batch and its redelivery take effect once."""
    accounts.make(postgres.engine(), NAMES)

    async def scenario(engine: AsyncEngine) -> None:
        inbox = AsyncInbox("payments", wait=10)

        @inbox.handler(engine, key=id_of)
        async def book(connection: AsyncConnection, message: Payment) -> None:
            await accounts.add_async(connection, message["name"])

        listener = inbox.listener(concurrency=4, key=id_of)
        batch = payments(12)
        for reason in ("new", "duplicate"):
            decisions = await listener.decide([*batch, *batch], book)
            assert decisions.acknowledged == 24
            assert [each.reason for each in decisions] == [reason] * 12 + ["duplicate"] * 12

    asynchronously(postgres, scenario)
    assert accounts.totals(postgres.engine()) == dict.fromkeys(NAMES, 2)


@pytest.mark.parametrize("kind", [Inbox, AsyncInbox])
def test_inboxes_hand_their_options_on(kind: Any) -> None:
    """`listener` accepts the listener's options."""
    assert kind("payments").listener(concurrency=3, grace=7).concurrency == 3


@both_stores
def test_every_kind_of_message_of_status_table_mode(store: Store) -> None:
    """One batch contains messages that are new, duplicate, running elsewhere, halted, failing, given up, or
    have another payload. Each gets its own decision, and its record agrees."""
    inbox = status_inbox(store, backoff=Backoff(first=8), lease=600)
    running = store.claim(request("running"))
    halted = store.claim(request("halted"))
    assert store.write(held(halted), change(status=Status.HALTED, **ENDS[Status.HALTED]))

    @inbox.handler(key=lambda message: message[0], payload=lambda message: message[1])
    def handle(claim: Claim, message: tuple[str, str]) -> None:
        if claim.key == "failing":
            raise Fault("no")
        if claim.key == "hopeless":
            raise GiveUp("never")
        if claim.key == "strange":
            claim.step("one", object)  # type: ignore[type-var]

    batch = [("good", "1"), ("good", "1"), ("good", "2")]
    batch += [(key, "") for key in ("running", "halted", "failing", "hopeless", "strange", "", "last")]
    decisions = inbox.listener(key=lambda message: message[0]).decide(batch, handle)
    first = [ACK, ACK, DEAD_LETTER, RETRY, DEAD_LETTER, RETRY]
    assert actions(decisions) == [*first, DEAD_LETTER, RETRY, DEAD_LETTER, ACK]
    assert [each.reason.partition("=")[0] for each in decisions] == [
        "new",
        "duplicate",
        "mismatch",
        "in_flight",
        "halted",
        "Fault: no",
        "dead: GiveUp: never",
        "InvalidResult: step",
        "InvalidKey: key",
        "new",
    ]
    for failed in (decisions[3], decisions[5], decisions[7]):
        assert failed.outcome is not None
        assert failed.delay == failed.outcome.retry_after
        assert 4 <= failed.delay <= 8
    assert [stored(store, key).status for key in ("failing", "hopeless", "strange", "last")] == [
        Status.FAILED,
        Status.DEAD,
        Status.FAILED,
        Status.CONSUMED,
    ]
    assert untimed(stored(store, "running")) == untimed(running.record)


@on("sqlite", fixture="place")
def test_attempts_are_used_up(store: Store) -> None:
    """A message that always fails is tried `max_attempts` times, and then becomes a dead letter."""
    inbox = status_inbox(store, max_attempts=3)

    @inbox.handler(key=str)
    def handle(claim: Claim, _: str) -> None:
        raise Fault(f"attempt {claim.attempt}")

    listener = inbox.listener()
    decided = [listener.decide(["a"], handle)[0] for _ in range(4)]
    assert [each.action for each in decided] == [RETRY, RETRY, DEAD_LETTER, DEAD_LETTER]
    assert [each.reason for each in decided] == [
        "Fault: attempt 1",
        "Fault: attempt 2",
        "dead: Fault: attempt 3",
        "dead",
    ]


def test_the_backoff_is_the_inbox_own(postgres: Database) -> None:
    """The listener of a status-table inbox uses the inbox's backoff, unless it is given another one."""
    own, other = Backoff(first=3), Backoff(first=4)
    inboxes: list[StatusInbox | AsyncStatusInbox] = [
        StatusInbox("orders", store=SqlStore(postgres.engine()), backoff=own),
        AsyncStatusInbox("orders", store=SqlStore(create_async_engine(postgres.async_url)), backoff=own),
    ]
    for inbox in inboxes:
        assert inbox.listener().backoff is own
        assert inbox.listener(backoff=other, concurrency=3).backoff is other


@on("sqlite", fixture="place")
def test_a_lost_lease_is_not_acknowledged(store: Store) -> None:
    """Another worker takes the message over while the handler runs: the message is delivered again, and the
    other worker's record does not change."""
    inbox = status_inbox(store, lease=0.1)

    @inbox.handler(key=str)
    def handle(claim: Claim, key: str) -> None:
        while store.claim(request(key)).verdict is not Verdict.NEW:
            pass

    (decision,) = inbox.listener().decide(["a"], handle)
    assert decision.action is RETRY
    assert decision.outcome is not None
    assert isinstance(decision.outcome.error, LeaseLost)
    assert (stored(store).status, stored(store).owner) == (Status.CONSUMING, "worker")


@on("sqlite", fixture="place")
def test_steps_of_handlers_that_fail_now_and_then(store: Store) -> None:
    """Eight messages run at the same time, in order, and fail between their steps: each step of each message
    runs once."""
    inbox, chance, done = status_inbox(store, max_attempts=1_000, retention=600), Chance(), Counter[Any]()
    messages = payments(24)

    @inbox.handler(key=id_of)
    def handle(claim: Claim, message: Payment) -> None:
        for step in ("first", "second"):
            claim.step(step, partial(done.update, [(message["id"], step)]))
            chance()

    listener = inbox.listener(order="in_order", concurrency=8, key=name_of)
    until_acknowledged(listener, messages, handle)
    assert done == Counter((message["id"], step) for message in messages for step in ("first", "second"))


def test_a_cancelled_message_is_released(postgres: Database) -> None:
    """A message of status-table mode that takes longer than the grace is cancelled, and its claim is released
    when `decide` returns: the next delivery runs immediately, as the first attempt."""
    runs = []

    async def scenario(engine: AsyncEngine) -> None:
        inbox = AsyncStatusInbox("orders", store=SqlStore(engine), lease=600)
        listener = inbox.listener(grace=0)

        @inbox.handler(key=str)
        async def handle(claim: AsyncClaim, _: str) -> None:
            runs.append(claim.attempt)
            if len(runs) == 1:
                listener.stop()
                await asyncio.Event().wait()

        (decision,) = await listener.decide(["a"], handle)
        assert decision.action is RETRY
        assert "after the stop" in decision.reason
        assert actions(await inbox.listener().decide(["a"], handle)) == [ACK]

    asynchronously(postgres, scenario)
    assert runs == [1, 1]
