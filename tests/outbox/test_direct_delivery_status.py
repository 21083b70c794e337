"""An outbox and an inbox in one database, without a broker, for handlers in status-table mode."""

from collections import Counter

import pytest
from sqlalchemy import Connection, Engine

from inbox import Backoff, Claim, Inbox, SqlStore, StatusInbox, message_key
from inbox.errors import GiveUp
from outbox import DirectDelivery, Envelope, Outbox
from tests.support import accounts
from tests.support.database import Database
from tests.support.listeners import Fault
from tests.support.on_servers import on
from tests.support.outbox_publishers import dead, let_backoffs_end, name_of, publish, relay


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with two accounts."""
    return accounts.make(migrated.engine(), ("order", "ship"))


def test_a_handler_with_steps(engine: Engine) -> None:
    """A handler's finished steps are not repeated, the next message is published in one of them, and a
    message whose handler gives up becomes a dead letter."""
    calls: Counter[str] = Counter()
    inbox = StatusInbox("order", store=SqlStore(engine), lease=60, backoff=Backoff(0))

    @inbox.handler(key=message_key)
    def handle(claim: Claim, message: Envelope) -> None:
        if name_of(message) == "b1":
            raise GiveUp("never")
        claim.step("call", lambda: calls.update([name_of(message)]))
        claim.transact("write", lambda connection: _reserve(connection, message))
        if calls["failed"] < 2:
            calls["failed"] += 1
            raise Fault("no")

    @Inbox("ship").handler(engine, key=message_key)
    def ship(connection: Connection, _: Envelope) -> None:
        accounts.add(connection, "ship")

    publish(engine, "a1", "b1", "c1", topic="order")
    delivery = DirectDelivery({"order": handle, "reserve": ship})
    for _ in range(5):
        relay(engine, delivery)
        let_backoffs_end(engine)
    assert calls == {"a1": 1, "c1": 1, "failed": 2}
    assert accounts.totals(engine) == {"order": 2, "ship": 2}
    assert list(dead(engine)) == ["b1"]
    assert "dead" in dead(engine)["b1"].error


@on("sqlite")
def test_the_inbox_counts_for_itself(engine: Engine) -> None:
    """However few attempts the delivery allows, the message is refused only when its inbox gives it up, after
    its steps have been undone."""
    calls: list[str] = []
    inbox = StatusInbox("order", store=SqlStore(engine), lease=60, backoff=Backoff(0), max_attempts=4)

    @inbox.handler(key=message_key)
    def handle(claim: Claim, _: Envelope) -> None:
        claim.step("call", lambda: calls.append("call"), undo=lambda _: calls.append("undo"))
        raise Fault("no")

    publish(engine, "a1")
    for _ in range(5):
        relay(engine, DirectDelivery({"orders": handle}, max_attempts=2))
        let_backoffs_end(engine)
    assert calls == ["call", "undo"]
    assert (dead(engine)["a1"].attempts, dead(engine)["a1"].error) == (4, "dead: Fault: no")


@on("sqlite")
def test_a_message_without_a_key(engine: Engine) -> None:
    """The inbox cannot claim a message without a key, so the delivery counts its attempts: it is refused in
    the end, and stops no other message."""
    inbox = StatusInbox("order", store=SqlStore(engine), lease=60)
    taken: list[str] = []

    @inbox.handler(key=lambda message: message.headers["order"])
    def handle(_: Claim, message: Envelope) -> None:
        taken.append(name_of(message))

    publish(engine, "a1")
    publish(engine, "b1", headers={"order": "7"})
    delivery = DirectDelivery({"orders": handle}, max_attempts=2)
    for _ in range(3):
        relay(engine, delivery)
        let_backoffs_end(engine)
    assert taken == ["b1"]
    assert dead(engine)["a1"].error == "dead: GiveUp: it has failed 2 times: KeyError: 'order'"


def _reserve(connection: Connection, message: Envelope) -> None:
    accounts.add(connection, "order")
    Outbox().publish(connection, "reserve", message.payload, key=message.key)
