"""The consumer for RocketMQ: what takes effect, and what it tells RocketMQ."""

import threading
import time
from collections import Counter
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inbox import (
    AsyncInbox,
    Backoff,
    Claim,
    Decision,
    Delivery,
    Outcome,
    SqlStore,
    Status,
    StatusInbox,
    Verdict,
    message_id,
    message_key,
)
from inbox.errors import GiveUp
from inbox.rocketmq import AsyncRocketMQConsumer
from outbox import Accepted
from outbox.rocketmq import RocketMQPublisher
from tests.support import accounts
from tests.support.answers import published
from tests.support.brokers.consumers import SOON, Counted, bookkeeping
from tests.support.brokers.rocketmq_consumers import consuming, send, url_of
from tests.support.brokers.rocketmq_topics import Topics, envelope
from tests.support.database import Database
from tests.support.listeners import Fault
from tests.support.outages import impatient, locked_tables
from tests.support.processes import wait_until
from tests.support.together import in_a_loop

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]

NAMES = [f"account-{number}" for number in range(6)]
NEW = Outcome(Verdict.NEW)
KINDS = ("NORMAL", "FIFO")
LAPSED = 14
"""Seconds: longer than the ten for which messages are invisible, and what RocketMQ needs to deliver again."""


def places(rocketmq: Topics, kind: str = "NORMAL", **options: Any) -> tuple[str, str]:
    """A topic of this kind, and a group, which is in order if the topic is."""
    return rocketmq.new(kind), rocketmq.group(in_order=kind == "FIFO", **options)


@pytest.mark.long(but_on="FIFO")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_takes_effect_once(rocketmq: Topics, postgres: Database, kind: str) -> None:
    """Each message is sent three times and takes effect once, in topics of both types; no message is left to
    deliver."""
    engine = postgres.engine()
    topic, group = places(rocketmq, kind)
    accounts.make(engine, NAMES)
    batch = [envelope(topic, NAMES[number % 6], key=str(number % 10)) for number in range(60)]
    send(rocketmq.address, batch * 3, is_fifo=kind == "FIFO")
    handler = Counted(bookkeeping(engine))
    with consuming(rocketmq.address, topic, group, handler, concurrency=4):
        wait_until(lambda: handler.count == 180)
    assert accounts.totals(engine) == dict.fromkeys(NAMES, 10)
    with consuming(rocketmq.address, topic, group, handler):
        send(rocketmq.address, [envelope(topic, NAMES[0], key="0")], is_fifo=kind == "FIFO")
        wait_until(lambda: handler.count > 180)
    assert handler.count == 181


def test_what_is_sent_takes_effect_once_in_tasks(rocketmq: Topics, postgres: Database) -> None:
    """With an asynchronous handler, messages that are sent three times take effect once."""
    engine = postgres.engine()
    topic, group = places(rocketmq)
    accounts.make(engine, NAMES)
    send(rocketmq.address, [envelope(topic, name) for name in NAMES] * 3)

    def consumer(engine: AsyncEngine) -> AsyncRocketMQConsumer:
        @AsyncInbox("bookkeeping").handler(engine, key=message_id)
        async def book(connection: AsyncConnection, message: Delivery) -> None:
            await accounts.add_async(connection, message.payload.decode())

        return AsyncRocketMQConsumer(url_of(rocketmq.address), topic, book, group=group, concurrency=4)

    with in_a_loop(postgres.async_url, consumer, AsyncRocketMQConsumer.run):
        wait_until(lambda: set(accounts.totals(engine).values()) == {1})
    assert rocketmq.dead(group) == []


def test_a_message_that_fails_comes_again(rocketmq: Topics, postgres: Database) -> None:
    """A handler that fails twice and then succeeds sees the number of the attempt and the unchanged message,
    and its writes take effect once. Others pass it meanwhile, even those with its key."""
    engine, seen, others = postgres.engine(), list[Delivery](), list[str]()
    topic, group = rocketmq.new(queues=1), rocketmq.group()
    accounts.make(engine)

    def fail_twice(message: Delivery) -> None:
        if message.id == later.id:
            others.append(f"after {len(seen)}")
            return
        seen.append(message)
        if len(seen) < 3:
            raise Fault("not yet")

    headers = {"colour": "blue", "ce_type": "made", "blank": " ", "lines": "1\n2", "größe": "Ж😀", "__x": "y"}
    sent, later = envelope(topic, "cash", key="k\n", **headers), envelope(topic, "cash", key="k\n")
    send(rocketmq.address, [sent, later])
    with consuming(rocketmq.address, topic, group, bookkeeping(engine, fail_twice)):
        wait_until(lambda: accounts.total(engine) == 2)
    assert [message.attempt for message in seen] == [1, 2, 3]
    assert others == ["after 1"]
    for message in seen:
        assert (message.id, message.topic, message.key) == (sent.id, topic, "k\n")
        assert (message.payload, message.content_type) == (b"cash", "text/plain")
        assert message.headers == headers
        assert message.created_at == sent.created_at


@pytest.mark.long(but_on="FIFO")
@pytest.mark.parametrize("kind", KINDS)
def test_names_with_a_namespace(rocketmq: Topics, kind: str) -> None:
    """A topic and a group may be called team%name: messages are acknowledged, retried and moved to the dead
    letters as in other topics, and the handler sees the topic's whole name."""
    name = f"team%test-{uuid4().hex}"
    topic, group = rocketmq.new(kind, queues=1, name=name), rocketmq.group(in_order=kind == "FIFO", name=name)
    dead = rocketmq.new(name=f"team%test-{uuid4().hex}")
    runs = Counter[tuple[str, str]]()

    def handle(message: Delivery) -> Outcome:
        run = message.topic, message.payload.decode()
        runs[run] += 1
        fails = runs[run] < {"good": 1, "late": 2}.get(run[1], 9)
        return Outcome(Verdict.NEW, error=Fault("not yet") if fails else None)

    with closing(RocketMQPublisher(url_of(rocketmq.address), topics=[topic])) as publisher:
        batch = [envelope(topic, each, key=each) for each in ("good", "late", "bad")]
        assert published(publisher, batch) == [Accepted()] * 3
    options = {"dead_letter": dead} if kind == "FIFO" else {}
    with consuming(rocketmq.address, topic, group, handle, max_attempts=3, **options):
        wait_until(lambda: rocketmq.stored(dead) if options else rocketmq.dead(group))
        time.sleep(LAPSED)
    assert runs == {(topic, "good"): 1, (topic, "late"): 2, (topic, "bad"): 3}


def test_order_of_a_key(rocketmq: Topics) -> None:
    """In a FIFO topic the messages of a key run in order, even if one of them fails twice. Messages with
    other keys do not wait."""
    topic, group = places(rocketmq, "FIFO")
    runs, done, failures = list[str](), list[tuple[str, int]](), Counter[str]()

    def handle(message: Delivery) -> Outcome:
        name = message.payload.decode()
        runs.append(name)
        failures[name] += 1
        if name == "a 1" and failures[name] < 3:
            return Outcome(Verdict.NEW, error=Fault("not yet"))
        done.append((name[0], int(name[2:])))
        return NEW

    batch = [envelope(topic, f"{key} {number}", key=key) for number in range(8) for key in "ab"]
    send(rocketmq.address, batch, is_fifo=True)
    with consuming(rocketmq.address, topic, group, handle, concurrency=4, backoff=Backoff(first=2)):
        wait_until(lambda: len(done) >= 16)
    for key in "ab":
        assert [number for each, number in done if each == key] == list(range(8))
    assert runs.count("a 1") == 3
    assert done.index(("b", 7)) < done.index(("a", 1))


def test_poison(rocketmq: Topics, postgres: Database) -> None:
    """A message whose handler always raises becomes a dead letter of the group after `max_attempts` attempts,
    and its neighbours take effect."""
    engine, runs = postgres.engine(), Counter[str]()
    topic, group = places(rocketmq)
    accounts.make(engine, NAMES)

    def fail(message: Delivery) -> None:
        runs[message.id] += 1
        if message.id == poison.id:
            raise Fault("never")

    batch = [envelope(topic, name) for name in NAMES]
    poison = envelope(topic, NAMES[0])
    send(rocketmq.address, [*batch[:3], poison, *batch[3:]])
    with consuming(rocketmq.address, topic, group, bookkeeping(engine, fail), max_attempts=3):
        wait_until(lambda: rocketmq.dead(group))
    (letter,) = rocketmq.dead(group)
    assert (letter.body, letter.properties["outbox-id"]) == (NAMES[0].encode(), poison.id)
    assert runs == {**{each.id: 1 for each in batch}, poison.id: 3}
    assert accounts.totals(engine) == dict.fromkeys(NAMES, 1)


def test_dead_letters_with_a_reason(rocketmq: Topics) -> None:
    """Dead letters go to the named topic, with the reason, or to the given function. If storing one fails,
    the message is neither lost nor handled again."""
    topic, group = places(rocketmq)
    graveyard, runs = rocketmq.new(), Counter[str]()
    kept: list[Delivery] = []

    def give_up(message: Delivery) -> Outcome:
        runs[message.id] += 1
        return Outcome(Verdict.DEAD, error=GiveUp("no\nsuch account"))

    def keep(message: Delivery, _: Decision) -> None:
        kept.append(message)
        if len(kept) < 3:
            raise OSError("disk full")

    first, second = envelope(topic, "1", key="k", colour="blue"), envelope(topic, "2")
    send(rocketmq.address, [first])
    with consuming(rocketmq.address, topic, group, give_up, dead_letter=graveyard):
        wait_until(lambda: rocketmq.stored(graveyard))
    (letter,) = rocketmq.stored(graveyard)
    assert letter.body == b"1"
    assert "no such account" in letter.properties["inbox-reason"]
    assert letter.properties["inbox-topic"] == topic
    assert (letter.properties["outbox-id"], letter.properties["colour"]) == (first.id, "blue")
    send(rocketmq.address, [second])
    with consuming(rocketmq.address, topic, group, give_up, dead_letter=keep):
        wait_until(lambda: len(kept) == 3)
    assert {(message.payload, message.attempt) for message in kept} == {(b"2", 1)}
    assert runs == {first.id: 1, second.id: 1}
    assert rocketmq.dead(group) == []


def test_status_table_mode(rocketmq: Topics, postgres: Database) -> None:
    """In status-table mode a handler fails twice: the record shows three attempts and status consumed, and
    duplicates are dropped. A message that is given up is dead in the store and a dead letter."""
    topic, group = places(rocketmq)
    store = SqlStore(postgres.engine())
    inbox = StatusInbox("orders", store=store, lease=60, backoff=SOON)
    runs: Counter[str] = Counter()

    @inbox.handler(key=message_key)
    def handle(claim: Claim, message: Delivery) -> None:
        name = message.payload.decode()
        runs[name] += 1
        if name == "poison":
            raise GiveUp("never")
        if runs[name] < 3:
            raise Fault("not yet")

    slow, poison = envelope(topic, "slow"), envelope(topic, "poison")
    send(rocketmq.address, [slow, poison] * 2)
    with consuming(rocketmq.address, topic, group, handle, concurrency=2):
        wait_until(lambda: runs["slow"] == 3 and len(rocketmq.dead(group)) == 2)
    assert runs == {"slow": 3, "poison": 1}
    records = {name: store.find("orders", each.id) for name, each in (("slow", slow), ("poison", poison))}
    assert records["slow"] is not None
    assert records["poison"] is not None
    assert (records["slow"].status, records["slow"].attempts_started) == (Status.CONSUMED, 3)
    assert records["poison"].status is Status.DEAD


@pytest.mark.long(but_on="NORMAL")
@pytest.mark.parametrize("kind", KINDS)
def test_a_database_that_is_down(rocketmq: Topics, postgres: Database, kind: str) -> None:
    """While the inbox's own statements fail, more often than the group allows deliveries, RocketMQ neither
    makes messages dead letters nor delivers them again. The consumer keeps them, and they take effect
    afterwards."""
    topic, group = places(rocketmq, kind, retries=2)
    book = bookkeeping(postgres.engine_at(impatient(postgres)), attempts=1)
    runs, deliveries, engine = Counter[str](), set[int](), postgres.engine()
    accounts.make(engine, NAMES)

    def handle(message: Delivery) -> Outcome:
        runs[message.id] += 1
        deliveries.add(message.raw.system_properties.delivery_attempt)
        return book(message)

    batch = [envelope(topic, name, key=name) for name in NAMES]
    send(rocketmq.address, batch, is_fifo=kind == "FIFO")
    options: dict[str, Any] = {"max_attempts": 2, "concurrency": 6}
    with locked_tables(postgres), consuming(rocketmq.address, topic, group, handle, **options):
        wait_until(lambda: len(runs) == 6 and min(runs.values()) > 3, timeout=120)
    assert deliveries == {1}
    with consuming(rocketmq.address, topic, group, handle, **options):
        wait_until(lambda: set(accounts.totals(engine).values()) == {1})
    assert rocketmq.dead(group) == []


@pytest.mark.long(but_on="NORMAL")
@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_longer_than_the_invisible_time(rocketmq: Topics, kind: str) -> None:
    """While a handler runs, and while messages wait for their turn, no other consumer of the group receives
    them, even if that takes longer than their invisible time. Afterwards they are acknowledged for good, and
    the ones that were given up are dead letters."""
    topic, group = places(rocketmq, kind)
    runs, go = Counter[str](), threading.Event()

    def handle(message: Delivery) -> Outcome:
        runs[message.id] += 1
        go.wait(60)
        return NEW if message.payload.startswith(b"good") else Outcome(Verdict.DEAD)

    batch = [envelope(topic, f"{'good' if number % 2 else 'bad'} {number}") for number in range(6)]
    send(rocketmq.address, batch, is_fifo=kind == "FIFO")
    with consuming(rocketmq.address, topic, group, handle, concurrency=2):
        wait_until(lambda: len(runs) == 2)
        with consuming(rocketmq.address, topic, group, handle, concurrency=6):
            threading.Event().wait(LAPSED)
            assert runs.total() == 2
            go.set()
            wait_until(lambda: len(runs) == 6)
            threading.Event().wait(LAPSED)
    assert runs == {each.id: 1 for each in batch}
    assert {each.body for each in rocketmq.dead(group)} == {b"bad 0", b"bad 2", b"bad 4"}


def test_what_a_stopped_consumer_has_not_taken(rocketmq: Topics, postgres: Database) -> None:
    """A stopped consumer finishes its running message and gives the others back. Another consumer receives
    them immediately, long before their invisible time ends, and everything takes effect once."""
    engine, begun, go = postgres.engine(), threading.Event(), threading.Event()
    topic, group = places(rocketmq)
    accounts.make(engine, NAMES)

    def pause(_: Delivery) -> None:
        begun.set()
        go.wait(60)

    send(rocketmq.address, [envelope(topic, name) for name in NAMES])
    with consuming(rocketmq.address, topic, group, bookkeeping(engine, pause), invisible=3_600) as consumer:
        begun.wait(60)
        consumer.stop()
        go.set()
    assert sum(accounts.totals(engine).values()) == 1
    with consuming(rocketmq.address, topic, group, bookkeeping(engine)):
        wait_until(lambda: sum(accounts.totals(engine).values()) == 6)
    assert accounts.totals(engine) == dict.fromkeys(NAMES, 1)
