"""Dead letters of RabbitMQ's consumer: where they go, and what they contain."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiormq.abc import DeliveredMessage

from inbox import Claim, Decision, Delivery, Outcome, SqlStore, StatusInbox, Verdict, message_id
from inbox.errors import GiveUp, TransientError
from tests.support import accounts
from tests.support.brokers.consumers import SOON, bookkeeping
from tests.support.brokers.rabbit_consumers import consuming
from tests.support.brokers.rabbit_queues import Queues
from tests.support.database import Database
from tests.support.listeners import Fault
from tests.support.processes import wait_until

pytest_plugins = ["tests.support.brokers.rabbit_fixtures"]


def headers_of(message: DeliveredMessage) -> dict[str, Any]:
    """The message's headers, without those of quorum queues."""
    headers = dict(message.header.properties.headers or {})
    headers.pop("x-delivery-count", None)
    return headers


def test_a_poison_message_is_put_away(queues: Queues, postgres: Database) -> None:
    """A message that is given up, and one whose key was used with another payload, go to the dead-letter
    queue: unchanged, with the reason and their origin. The others take effect."""
    engine, queue = postgres.engine(), queues.new()
    accounts.make(engine)

    def give_up(message: Delivery) -> None:
        if message.headers.get("poison"):
            raise GiveUp("no way")

    queues.put(queue, "cash", id="1")
    queues.put(queue, "other", id="1")
    queues.put(queue, "cash", id="2", headers={"poison": "yes"})
    queues.put(queue, "cash", id="3")
    with consuming(queues.url, queue, bookkeeping(engine, give_up)):
        wait_until(lambda: accounts.total(engine) == 2 and queues.count(f"{queue}.dead") == 2)
    poison, mismatch = sorted(queues.take(f"{queue}.dead"), key=lambda message: message.body)
    assert headers_of(mismatch) == {"inbox-reason": "mismatch", "inbox-topic": queue, "inbox-attempt": 1}
    assert mismatch.body == b"other"
    assert poison.header.properties.message_id == "2"
    assert headers_of(poison)["inbox-reason"] == "dead: GiveUp: no way"
    assert headers_of(poison)["poison"] == "yes"
    assert accounts.total(engine) == 2
    assert queues.everything(queue) == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("never"), "Fault: never"),
        (asyncio.CancelledError(), "AwaitedCancelled: the handler waited for something that was cancelled"),
    ],
    ids=["an Exception", "something was cancelled"],
)
def test_a_handler_that_always_fails(
    queues: Queues, postgres: Database, fault: BaseException, reason: str
) -> None:
    """A message becomes a dead letter after `max_attempts` failures. It carries no count of them: if it is
    moved back to its queue, it has all its attempts again. Transient errors do not count, and neither do
    failures that an inbox counts itself."""
    engine, queue, runs = postgres.engine(), queues.new(), Counter[str]()
    accounts.make(engine)

    def fail(message: Delivery) -> None:
        runs[message.id] += 1
        if message.id == "passes" and runs[message.id] < 4:
            raise TransientError("the database is away")
        if message.id != "passes":
            raise fault

    queues.put(queue, "cash", id="fails")
    queues.put(queue, "cash", id="passes")
    with consuming(queues.url, queue, bookkeeping(engine, fail), max_attempts=2):
        wait_until(lambda: runs["passes"] == 4 and queues.count(f"{queue}.dead") == 1)
        assert runs["fails"] == 2
    (dead,) = queues.take(f"{queue}.dead")
    assert headers_of(dead) == {
        "inbox-reason": f"dead: GiveUp: it has failed 2 times: {reason}",
        "inbox-topic": queue,
        "inbox-attempt": 2,
    }
    assert accounts.total(engine) == 1

    inbox = StatusInbox("orders", store=SqlStore(engine), lease=60, backoff=SOON, max_attempts=3)

    @inbox.handler(key=message_id)
    def fail_and_count(_: Claim, message: Delivery) -> None:
        fail(message)

    queues.put(queue, "cash", id="counted")
    with consuming(queues.url, queue, fail_and_count, max_attempts=1):
        wait_until(lambda: queues.count(f"{queue}.dead") == 1)
    assert runs["counted"] == 3


def test_a_message_without_a_key_in_status_table_mode(queues: Queues, postgres: Database) -> None:
    """The inbox cannot claim a message without a key, so the consumer counts its attempts: the message ends
    as a dead letter."""
    queue = queues.new()
    inbox = StatusInbox("orders", store=SqlStore(postgres.engine()), lease=60)

    @inbox.handler(key=lambda message: message.headers["order"])
    def handle(_: Claim, message: Delivery) -> None: ...

    queues.put(queue, "cash")
    with consuming(queues.url, queue, handle, max_attempts=2):
        wait_until(lambda: queues.count(f"{queue}.dead") == 1)
    (dead,) = queues.take(f"{queue}.dead")
    assert headers_of(dead)["inbox-reason"] == "dead: GiveUp: it has failed 2 times: KeyError: 'order'"
    assert headers_of(dead)["inbox-attempt"] == 2


def test_a_dead_letter_queue_that_is_there_already(queues: Queues) -> None:
    """A dead-letter queue that an operator has created is used unchanged."""
    queue = queues.new()
    queues.do(lambda channel: channel.queue_declare(f"{queue}.dead", durable=True))
    queues.put(queue, "bad")
    with consuming(queues.url, queue, lambda _: Outcome(Verdict.MISMATCH)):
        wait_until(lambda: queues.count(f"{queue}.dead") == 1)
    assert queues.everything(queue) == ["bad"]


def test_a_dead_letter_exchange_of_the_queue(queues: Queues) -> None:
    """If the queue has a dead-letter exchange, the consumer can have RabbitMQ use it."""
    dead = queues.new()
    queue = queues.new(x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    queues.put(queue, "bad")
    with consuming(queues.url, queue, lambda _: Outcome(Verdict.MISMATCH), reject_dead_letters=True):
        wait_until(lambda: queues.count(dead) == 1)
    assert queues.count(queue) == 0
    (message,) = queues.take(dead)
    assert headers_of(message)["x-first-death-reason"] == "rejected"


def test_a_function_for_dead_letters(queues: Queues) -> None:
    """`dead_letter` is called with the message and the decision. A message that it cannot store is delivered
    again."""
    queue, away = queues.new(), list[tuple[bytes, str]]()
    troubles = iter([Fault("not now")])

    def put_away(message: Delivery, decision: Decision) -> None:
        for trouble in troubles:
            raise trouble
        away.append((message.payload, decision.reason))

    queues.put(queue, "bad")
    with consuming(queues.url, queue, lambda _: Outcome(Verdict.MISMATCH), dead_letter=put_away):
        wait_until(lambda: bool(away))
    assert away == [(b"bad", "mismatch")]
    assert queues.everything(queue) == []
