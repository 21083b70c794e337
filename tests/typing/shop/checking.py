"""The shop's own tests."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import assert_type

from sqlalchemy import Engine, create_engine, text

from inbox import Outcome
from inbox_outbox import faults, testing
from inbox_outbox.testing import (
    AsyncRecordingPublisher,
    RecordingPublisher,
    RolledBack,
    age,
    crash_at_commit,
    crash_at_statement,
    database,
    deliver_twice,
    delivery,
    emptied,
    published,
)
from outbox import Accepted, AsyncRelay, Envelope, Outbox, Relay, Unavailable

from .publishing import async_engine, bill


def test_rolled_back(rolled_back: RolledBack) -> None:
    with rolled_back.sessions.begin() as session:
        Outbox().publish(session, "orders", {"order": 42})
    messages = published(rolled_back.connection, topic="orders")
    assert messages[0].json() == {"order": 42}
    assert_type(messages[0].text, str)
    bill(messages[0].delivery())
    first, second = deliver_twice(bill, delivery({"order": 42}), between=lambda: age(session, by=60))
    assert_type((first, second), tuple[Outcome, Outcome])
    deliver_twice(bill, "order-42")  # E: arg-type, reportArgumentType
    with crash_at_commit(rolled_back.sessions):
        bill(delivery())
    published(rolled_back.sessions)  # E: arg-type, reportArgumentType


def test_emptied(emptied_engine: Engine, exactly_once: Callable[..., faults.FaultReport]) -> None:
    publisher = RecordingPublisher([Unavailable("full"), Accepted()])
    Relay(emptied_engine, publisher).run_once()
    assert_type(publisher.sent, list[Envelope])
    AsyncRelay(async_engine, AsyncRecordingPublisher(lambda message: Accepted()))
    with crash_at_statement(emptied_engine, "INSERT INTO invoice"):
        pass
    assert exactly_once(pay, orders, url="sqlite:///shop.db", effects=bills).is_exactly_once


def test_without_fixtures() -> None:
    testing.unknown()  # E: attr-defined, reportAttributeAccessIssue
    with database("sqlite:///shop.db") as engine, emptied(engine) as same:
        assert_type(same, Engine)


def call_bank(order: str, *, cents: int) -> int:
    return len(order) + cents


def pay(order: str) -> None:
    faults.point("begins")
    assert_type(faults.effect("bank", call_bank, order, cents=500, key=order), int)
    assert_type(faults.effect("letter"), None)


def orders(run: int) -> list[str]:
    return [f"order-{run}-1"]


def bills() -> Counter[str]:
    with create_engine("sqlite:///shop.db").connect() as connection:
        return Counter(connection.scalars(text("SELECT order_id FROM invoice")))


def no_bills() -> Sequence[str]:
    return []


report = faults.exactly_once(pay, orders, url="sqlite:///shop.db", effects=bills, only=["killed"], seed=7)
assert_type(report.is_exactly_once, bool)
report.check()
faults.exactly_once(pay, orders, effects=bills)  # E: call-arg, reportCallIssue
faults.exactly_once(pay, orders, url="sqlite://", effects=no_bills)  # E: arg-type, reportArgumentType
faults.exactly_once(pay, "orders", url="sqlite://", effects=bills)  # E: arg-type, reportArgumentType
