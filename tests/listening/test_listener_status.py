"""A listener in status-table mode: what it tells the broker, and what the records say."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from inbox import Action, AsyncClaim, AsyncStatusInbox, Backoff, Claim, SqlStore, Status, StatusInbox, Verdict
from inbox._status_mode.stores import Store
from inbox.errors import GiveUp, LeaseLost
from tests.support.database import Database
from tests.support.listeners import (
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
from tests.support.status_mode.stores import ENDS, change, held, request, status_inbox, stored, untimed

ACK, RETRY, DEAD_LETTER = Action.ACK, Action.RETRY, Action.DEAD_LETTER


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
            claim.step("one", object)

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


def test_the_backoff_is_the_inbox_own(migrated: Database) -> None:
    """The listener of a status-table inbox uses the inbox's backoff, unless it is given another one."""
    own, other = Backoff(first=3), Backoff(first=4)
    inboxes: list[StatusInbox | AsyncStatusInbox] = [
        StatusInbox("orders", store=SqlStore(migrated.engine()), backoff=own),
        AsyncStatusInbox("orders", store=SqlStore(create_async_engine(migrated.async_url)), backoff=own),
    ]
    for inbox in inboxes:
        assert inbox.listener().backoff is own
        assert inbox.listener(backoff=other, concurrency=3).backoff is other


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


def test_a_cancelled_message_is_released(migrated: Database) -> None:
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

    asynchronously(migrated, scenario)
    assert runs == [1, 1]
