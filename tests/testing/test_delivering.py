"""What was published, deliveries, crashes in this process, and time that passes without waiting."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select

from inbox import Claim, Delivery, Inbox, RedisStore, SqlStore, StatusInbox, Verdict, message_key, purge
from inbox.errors import InvalidOption, LeaseLost
from inbox.schema import tables
from inbox_outbox.testing import (
    AsyncRecordingPublisher,
    Crashed,
    NotCrashed,
    RecordingPublisher,
    age,
    crash_at_commit,
    crash_at_statement,
    deliver_twice,
    delivery,
    envelope,
    published,
    rolled_back,
)
from outbox import Accepted, AsyncRelay, Outbox, Refused, Relay, Unavailable
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.status_mode.asynchronous import in_loop
from tests.support.status_mode.stores import Place

from .test_isolating import INVOICE, INVOICES

MESSAGE = delivery({"cents": 5}, key="order-1")
TABLES = tables()
everywhere = on("sqlite", "postgresql", "mariadb", "mysql")
two = on("sqlite", "postgresql")


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with our tables, and one of the reader's."""
    engine = migrated.engine()
    INVOICES.create_all(engine)
    return engine


def billing(source: Any) -> Callable[[Delivery], Verdict]:
    """A handler that writes an invoice and publishes."""
    inbox, outbox = Inbox("billing"), Outbox()

    @inbox.handler(source, key=message_key)
    def handle(connection: Any, message: Delivery) -> None:
        connection.execute(insert(INVOICE).values(cents=json.loads(message.payload)["cents"]))
        outbox.publish(connection, "invoices", message.payload, key=message.key, headers={"by": "billing"})

    return lambda message: handle(message).verdict


def count(handle: Any) -> int:
    """How many invoices there are."""
    found: int = handle.execute(select(func.count()).select_from(INVOICE)).scalar_one()
    return found


@two
def test_what_was_published_can_be_delivered(engine: Engine) -> None:
    """`published` has payloads, headers and keys, by topic and key, delayed messages last; each is a delivery
    for the handler of the other side."""
    with engine.begin() as connection:
        Outbox().publish(connection, "orders", {"cents": 7}, "late", delay=60)
        Outbox().publish(connection, "orders", {"cents": 5}, "order-1", {"tenant": "é"})
        Outbox().publish(connection, "orders", None, "gone")
        Outbox().publish(connection, "mails", "hello")
    with engine.connect() as connection:
        orders = published(connection, topic="orders")
        assert [each.key for each in orders] == ["order-1", "gone", "late"]
        assert (orders[0].json(), orders[0].headers) == ({"cents": 5}, {"tenant": "é"})
        assert orders[1].payload is None
        assert [each.available_at is None for each in orders] == [True, True, False]
        assert [each.text for each in published(connection, topic="mails")] == ["hello"]
        assert published(connection, key="late") == orders[2:]
    assert billing(engine)(orders[0].delivery()) is Verdict.NEW


def test_defaults_of_messages() -> None:
    """A delivery and an envelope need no argument; their payloads are written as the outbox writes them."""
    for made in (delivery(), envelope()):
        assert (made.payload, made.key, made.attempt, made.headers) == (b"", None, 1, {})
    assert delivery().id != delivery().id
    for made in (delivery({"a": 1}, topic="t"), envelope({"a": 1}, topic="t")):
        assert (made.payload, made.content_type, made.topic) == (b'{"a":1}', "application/json", "t")
    assert (delivery(None).payload, envelope(None).content_type) == (None, "")


@two
def test_a_publisher_records_and_answers(engine: Engine) -> None:
    """A relay's messages are recorded, each time they are sent, and answered as the test says."""
    publisher = RecordingPublisher([Unavailable("full", 0.0), Refused("never")])
    for name in ("a", "b"):
        with engine.begin() as connection:
            Outbox().publish(connection, "orders", name, key="k")
        for _ in range(2):
            Relay(engine, publisher).run_once()
            with engine.begin() as connection:
                age(connection, by=3_600)
    assert [each.payload for each in publisher.sent] == [b"a", b"a", b"b"]
    assert [each.payload for each in publisher.accepted] == [b"b"]
    by_topic = RecordingPublisher(lambda message: Accepted() if message.topic == "a" else Refused("no"))
    assert by_topic.send([envelope(topic="a"), envelope(topic="b")]) == [Accepted(), Refused("no")]
    for wrong in ("Accepted", ["yes"], 5):
        with pytest.raises(InvalidOption, match="answers"):
            RecordingPublisher(wrong)  # type: ignore[arg-type]


@on("postgresql")
@in_loop
async def test_an_asynchronous_publisher(migrated: Database) -> None:
    """The same for an asynchronous relay; a crash at the COMMIT leaves nothing to send there, either."""
    engine, publisher = migrated.async_engine(), AsyncRecordingPublisher()
    with crash_at_commit(engine.sync_engine):
        async with engine.begin() as connection:
            await Outbox().publish(connection, "orders", b"0")
    async with engine.begin() as connection:
        await Outbox().publish(connection, "orders", b"1")
    await AsyncRelay(engine, publisher).run_once()
    assert [each.payload for each in publisher.accepted] == [b"1"]
    await engine.dispose()


@two
def test_a_second_delivery(engine: Engine) -> None:
    """A message delivered twice takes effect once; the second has the next attempt. After its retention and a
    purge, without waiting, it is new again."""
    attempts: list[int] = []
    handle = billing(engine)

    def note(message: Delivery) -> Verdict:
        attempts.append(message.attempt)
        return handle(message)

    assert deliver_twice(note, MESSAGE) == (Verdict.NEW, Verdict.DUPLICATE)
    assert attempts == [1, 2]

    def much_later() -> None:
        with engine.begin() as connection:
            age(connection, by=timedelta(days=400))
        purge(engine, consumer="billing")

    assert deliver_twice(handle, MESSAGE, between=much_later) == (Verdict.DUPLICATE, Verdict.NEW)


@pytest.mark.parametrize("is_rolled_back", [False, True])
@two
def test_a_crash_leaves_nothing(engine: Engine, *, is_rolled_back: bool) -> None:
    """Before the COMMIT or at a statement, whether the test is rolled back or not: nothing is left, and the
    redelivered message takes effect once."""

    def crash_and_deliver(source: Any, where: Any) -> None:
        handle = billing(source)
        with crash_at_commit(source):
            handle(MESSAGE)
        assert count(where()) == 0
        with crash_at_statement(source, "insert into OUTBOX_message"):
            handle(MESSAGE)
        assert count(where()) == 0
        assert deliver_twice(handle, MESSAGE) == (Verdict.NEW, Verdict.DUPLICATE)
        assert count(where()) == 1

    if is_rolled_back:
        with rolled_back(engine) as test:
            crash_and_deliver(test.sessions, lambda: test.connection)
    else:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as looking:
            crash_and_deliver(engine, lambda: looking)


@two
def test_a_crash_that_did_not_happen(engine: Engine) -> None:
    """A block without such a statement, and code that catches the crash, are named."""
    with pytest.raises(NotCrashed, match=r"no COMMIT; there were: no statements"), crash_at_commit(engine):
        pass
    unseen = r"with 'nowhere'; there were: \['.*inbox_message"
    with pytest.raises(NotCrashed, match=unseen), crash_at_statement(engine, "nowhere"):
        billing(engine)(MESSAGE)
    caught = pytest.raises(NotCrashed, match="was caught")
    with caught, crash_at_commit(engine), suppress(Crashed), engine.begin() as connection:
        connection.execute(insert(INVOICE).values(cents=1))
    with pytest.raises(InvalidOption, match="source="), crash_at_commit("engine"):  # type: ignore[arg-type]
        pass


@everywhere
def test_leases_and_delays_end_without_waiting(engine: Engine) -> None:
    """The lease of a claim that a crash has left ends, and a delayed message becomes due."""
    with engine.begin() as connection:
        Outbox().publish(connection, "orders", b"1", delay=timedelta(days=2))

    def claim() -> Claim:
        inbox = StatusInbox("orders", store=SqlStore(engine), heartbeat=False, on_refusal="return")
        with inbox.claim("a") as claim, engine.begin() as connection:
            connection.execute(insert(INVOICE).values(cents=1))
            return claim

    with crash_at_statement(engine, "INSERT INTO invoice"):
        claim()
    assert claim().verdict is Verdict.IN_FLIGHT
    publisher = RecordingPublisher()
    Relay(engine, publisher).run_once()
    assert publisher.sent == []
    with engine.begin() as connection:
        age(connection, by=timedelta(days=2, seconds=0.5))
    assert claim().verdict is Verdict.NEW
    assert claim().verdict is Verdict.DUPLICATE
    Relay(engine, publisher).run_once()
    assert [each.payload for each in publisher.sent] == [b"1"]


@everywhere
def test_times_move_by_what_was_said(engine: Engine) -> None:
    """Every stored time moves by the same length, to the microsecond, or as exactly as SQLite keeps it."""
    with engine.begin() as connection:
        Inbox("billing").accept(connection, "1")
        before = connection.execute(select(TABLES.message.c.accepted_at)).scalar_one()
        age(connection, by=90_000.25)
        after = connection.execute(select(TABLES.message.c.accepted_at)).scalar_one()
        assert before - after == timedelta(seconds=90_000.25)
        for wrong in (0, -1, "1d"):
            with pytest.raises(InvalidOption, match="by="):
                age(connection, by=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="where="):
        age(engine, by=1)  # type: ignore[arg-type]


@on("redis", fixture="place")
def test_records_in_redis_age(place: Place) -> None:
    """In Redis a lease ends, too, and a record past its retention is gone."""
    with place.open() as store:
        assert isinstance(store, RedisStore)
        inbox = StatusInbox(
            "orders", store=store, heartbeat=False, on_refusal="return", lease=60, retention=3_600
        )

        def take(key: str) -> Verdict:
            with inbox.claim(key) as claim:
                return claim.verdict

        assert [take("done"), take("done")] == [Verdict.NEW, Verdict.DUPLICATE]

        def lose() -> None:
            with inbox.claim("held"):
                age(store, by=61)
                assert take("held") is Verdict.NEW

        with pytest.raises(LeaseLost):
            lose()
        assert take("done") is Verdict.DUPLICATE
        age(store, by=3_661)
        assert take("done") is Verdict.NEW
