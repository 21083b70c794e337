"""A listener on the exactly-once path: what it tells the broker, and what took effect."""

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inbox import Action, AsyncInbox, Backoff, Inbox
from inbox.errors import InvalidKey
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
from tests.support.together import together

ACK, RETRY, DEAD_LETTER = Action.ACK, Action.RETRY, Action.DEAD_LETTER


def test_every_kind_of_message_of_the_exactly_once_path(migrated: Database) -> None:
    """One batch contains a new message, its duplicate, another payload under its key, a failure and an
    invalid key. Each gets its own decision, and only acknowledged messages took effect."""
    engine, inbox = migrated.engine(), Inbox("payments", wait=0)
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


def test_handlers_that_fail_now_and_then(migrated: Database) -> None:
    """Eight messages run at the same time, in order, and are redelivered from the first failure on: each
    message takes effect once."""
    engine, inbox = migrated.engine(pool_size=8, connect_args=_patient(migrated)), Inbox("payments", wait=10)
    accounts.make(engine, NAMES)
    chance, messages = Chance(), payments(60)

    @inbox.handler(engine, key=id_of)
    def book(connection: Connection, message: Payment) -> None:
        accounts.add(connection, message["name"])
        chance()

    listener = inbox.listener(order="in_order", concurrency=8, key=name_of)
    until_acknowledged(listener, messages, book)
    assert accounts.totals(engine) == Counter(map(name_of, messages))


def _patient(database: Database) -> dict[str, Any]:
    """On SQLite, a writer waits for the seven others."""
    return {"timeout": 30} if database.name == "sqlite" else {}


def test_two_brokers_bring_the_same_messages(migrated: Database) -> None:
    """Four threads pass the same batch to one listener at the same time. Duplicates wait for the first
    message with their key, and every message takes effect once."""
    engine, inbox = migrated.engine(pool_size=8), Inbox("payments", wait=10)
    accounts.make(engine, NAMES)
    messages, listener = payments(30), inbox.listener(concurrency=4, key=id_of)

    @inbox.handler(engine, key=id_of)
    def book(connection: Connection, message: Payment) -> None:
        accounts.add(connection, message["name"])

    together([lambda: until_acknowledged(listener, messages, book)] * 4, timeout=120)
    assert accounts.totals(engine) == dict.fromkeys(NAMES, 5)


def test_the_exactly_once_path_asynchronously(migrated: Database) -> None:
    """With AsyncListener and tasks, a batch and its redelivery take effect once."""
    accounts.make(migrated.engine(), NAMES)

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

    asynchronously(migrated, scenario)
    assert accounts.totals(migrated.engine()) == dict.fromkeys(NAMES, 2)


@pytest.mark.parametrize("kind", [Inbox, AsyncInbox])
def test_inboxes_hand_their_options_on(kind: Any) -> None:
    """`listener` accepts the listener's options."""
    assert kind("payments").listener(concurrency=3, grace=7).concurrency == 3
