"""An outbox and an inbox in one database, without a broker: each message takes effect once."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

import outbox
from inbox import Backoff, Claim, Delivery, Inbox, SqlStore, StatusInbox, Verdict, message_key
from inbox import Outcome as InboxOutcome
from inbox.errors import StoreUnreachable
from outbox import AsyncDirectDelivery, DirectDelivery, Envelope, Outbox, Relay
from outbox.errors import InvalidOption
from tests.support import accounts
from tests.support.cases import case
from tests.support.database import Database
from tests.support.listeners import Fault
from tests.support.on_servers import on
from tests.support.outbox_publishers import (
    dead,
    let_backoffs_end,
    name_of,
    publish,
    relay,
    waiting,
)

CHAIN = ("order", "reserve", "pay", "ship")
ORDERS = [f"{key}1" for key in "abcdefgh"]
NEW = InboxOutcome(Verdict.NEW)


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with an account for each step of the chain."""
    return accounts.make(migrated.engine(), CHAIN)


def chain(engine: Engine, disturb: Callable[[Envelope], object] = name_of) -> dict[str, Any]:
    """A handler for each step, which adds to the step's account and publishes the next message."""
    return {step: _step(engine, step, disturb) for step in CHAIN}


def _step(engine: Engine, step: str, disturb: Callable[[Envelope], object]) -> Any:
    @Inbox(step).handler(engine, key=message_key)
    def handle(connection: Connection, message: Envelope) -> None:
        accounts.add(connection, step)
        if step != CHAIN[-1]:
            following = CHAIN[CHAIN.index(step) + 1]
            Outbox().publish(connection, following, message.payload, key=message.key)
        disturb(message)

    return handle


def test_a_chain_of_handlers(engine: Engine) -> None:
    """Each handler publishes the next message in its own transaction: every order passes through every step
    once, within one call of `run_once`."""
    publish(engine, *ORDERS, topic="order")
    delivery = DirectDelivery(chain(engine))
    assert relay(engine, delivery) == len(ORDERS) * len(CHAIN)
    assert accounts.totals(engine) == dict.fromkeys(CHAIN, len(ORDERS))
    assert not waiting(engine)
    assert not dead(engine)


@on("sqlite")
def test_handlers_made_for_a_broker(engine: Engine) -> None:
    """A handler that is annotated with a broker's `Delivery` is accepted unchanged, also by type checkers."""

    @Inbox("order").handler(engine, key=message_key)
    def handle(connection: Connection, message: Delivery) -> None:
        accounts.add(connection, "order")
        assert (message.topic, message.key) == ("order", "a")

    publish(engine, "a1", topic="order")
    assert relay(engine, DirectDelivery({"order": handle})) == 1
    assert accounts.totals(engine)["order"] == 1


@on("sqlite")
def test_a_decorator_around_a_handler(engine: Engine) -> None:
    """It runs with each message, as the handler does, although functools.wraps gives it the attributes of the
    handler."""
    seen: list[str] = []
    orders = StatusInbox("orders", store=SqlStore(engine))

    @orders.handler(key=message_key)
    def handle(claim: Claim, message: Envelope) -> None:
        seen.append("handled")

    @wraps(handle)
    def audited(message: Envelope) -> InboxOutcome:
        seen.append("audited")
        return handle(message)

    publish(engine, "a1", topic="order")
    assert relay(engine, DirectDelivery({"order": audited})) == 1
    assert seen == ["audited", "handled"]


@on("sqlite")
def test_a_handler_that_fails_now_and_then(engine: Engine) -> None:
    """When a handler fails, its writes and messages are rolled back; the message is delivered again, and the
    result is exact."""
    failures: Counter[tuple[str, str]] = Counter()

    def disturb(message: Envelope) -> None:
        failures[message.topic, message.id] += 1
        if failures[message.topic, message.id] <= 2:
            raise Fault(message.topic)

    publish(engine, *ORDERS, topic="order")
    delivery = DirectDelivery(chain(engine, disturb))
    for _ in range(50):
        relay(engine, delivery)
        let_backoffs_end(engine)
        if not waiting(engine):
            break
    assert accounts.totals(engine) == dict.fromkeys(CHAIN, len(ORDERS))
    assert set(failures.values()) == {3}
    assert not dead(engine)


@on("sqlite")
def test_a_handler_that_always_fails(engine: Engine) -> None:
    """After `max_attempts` failures the message is a dead letter with the reason, and has had no effect."""
    publish(engine, "a1", topic="order")

    def fail(_: Envelope) -> None:
        raise Fault("no such article")

    delivery = DirectDelivery(chain(engine, fail), max_attempts=3)
    for _ in range(5):
        assert relay(engine, delivery) == 0
        let_backoffs_end(engine)
    row = dead(engine)["a1"]
    assert (row.attempts, row.outcome) == (3, "refused")
    assert row.error == "dead: GiveUp: it has failed 3 times: Fault: no such article"
    assert accounts.totals(engine) == dict.fromkeys(CHAIN, 0)
    assert not waiting(engine)


@on("sqlite")
def test_failures_of_another_message_of_the_same_id(engine: Engine) -> None:
    """A message that takes the place of a dropped one, under its id, has all its attempts."""
    runs: list[Envelope] = []

    def fail(message: Envelope) -> None:
        runs.append(message)
        raise Fault("no such article")

    delivery = DirectDelivery(chain(engine, fail), max_attempts=3)
    for attempts in (2, 3):
        with engine.begin() as connection:
            Outbox().publish(connection, "order", b"", id="order-42")
        for _ in range(attempts):
            relay(engine, delivery)
            let_backoffs_end(engine)
        if attempts == 2:
            outbox.drop(engine, "order-42")
    assert len(runs) == 5


@on("sqlite")
def test_an_error_that_is_not_the_message_s_fault(engine: Engine) -> None:
    """A transient error is retried however often it occurs, and does not count as a failure of the
    message."""
    publish(engine, "a1", topic="order")
    errors = [*(StoreUnreachable("away") for _ in range(4)), Fault("once")]

    def handle(_: Envelope) -> InboxOutcome:
        if errors:
            raise errors.pop(0)
        return NEW

    delivery = DirectDelivery({"order": handle}, max_attempts=2)
    for attempt in range(1, 6):
        assert relay(engine, delivery) == 0
        assert waiting(engine)["a1"].attempts == attempt
        let_backoffs_end(engine)
    assert relay(engine, delivery) == 1


@on("sqlite")
def test_a_topic_that_fails_stops_no_other(engine: Engine) -> None:
    """Hundreds of messages whose handler raises stand before a message of another topic: that one is
    delivered in the same call of `run_once`, and each of the others has been tried once."""
    tried: list[str] = []

    def fail(message: Envelope) -> InboxOutcome:
        tried.append(name_of(message))
        raise Fault("a bug")

    names = [f"-{number}" for number in range(300)]
    publish(engine, *names, topic="broken")
    publish(engine, "a1", topic="order")
    delivery = DirectDelivery({"broken": fail, "order": chain(engine)["ship"]})
    assert relay(engine, delivery, backoff=Backoff(3_600, longest=3_600)) == 1
    assert sorted(tried) == sorted(names)
    assert accounts.total(engine, "ship") == 1


@on("sqlite")
def test_another_payload_is_a_dead_letter(engine: Engine) -> None:
    """A message with the same key and another payload is refused, and its dead letter says so."""

    @Inbox("order").handler(engine, key=message_key, payload=lambda message: message.payload)
    def handle(connection: Connection, message: Envelope) -> None:
        accounts.add(connection, "order")

    publish(engine, "a1", "a2")
    assert relay(engine, DirectDelivery({"orders": handle})) == 1
    assert "mismatch" in dead(engine)["a2"].error
    assert accounts.total(engine, "order") == 1


@on("sqlite")
def test_a_topic_that_nobody_handles(engine: Engine) -> None:
    """Messages of a topic without a handler become dead letters; other messages in the same batch are
    handled."""
    publish(engine, "a1", topic="nobody's")
    publish(engine, "b1", topic="ship")
    publish(engine, "c1", topic="nobody's")
    assert relay(engine, DirectDelivery(chain(engine))) == 1
    assert {row.error for row in dead(engine).values()} == {'no handler for topic "nobody\'s"'}
    assert sorted(dead(engine)) == ["a1", "c1"]
    assert accounts.total(engine, "ship") == 1


@on("sqlite")
def test_handlers_run_at_the_same_time(engine: Engine) -> None:
    """`concurrency` handlers run at the same time, for different keys."""
    barrier, threads = threading.Barrier(4), set[int]()

    def handle(message: Envelope) -> InboxOutcome:
        barrier.wait(60)
        threads.add(threading.get_ident())
        return NEW

    publish(engine, *ORDERS)
    assert relay(engine, DirectDelivery({"orders": handle}, concurrency=4)) == len(ORDERS)
    assert len(threads) >= 4


def test_a_chain_with_several_threads(engine: Engine) -> None:
    """Several threads change the same rows while several relays take turns: every order is processed exactly
    once."""
    publish(engine, *ORDERS, *(f"-{number}" for number in range(20)), topic="order")
    delivery = DirectDelivery(chain(engine), concurrency=4)
    for _ in range(50):
        relay(engine, delivery)
        let_backoffs_end(engine)
        if not waiting(engine):
            break
    assert accounts.totals(engine) == dict.fromkeys(CHAIN, len(ORDERS) + 20)
    assert not dead(engine)


@pytest.mark.parametrize("kind", [DirectDelivery, AsyncDirectDelivery])
def test_invalid_options(kind: Any) -> None:
    """An invalid option raises an error that names it."""
    of_its_kind = handle_nothing if kind is DirectDelivery else handle_later
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (None, {}, "handlers=None"),
        ({}, {}, "handlers={}"),
        ([handle_nothing], {}, "handlers="),
        ({"orders": None}, {}, "handlers['orders']=None"),
        ({"": handle_nothing}, {}, "topic=''"),
        ({7: handle_nothing}, {}, "topic=7"),
        ({"orders": of_its_kind}, {"concurrency": 0}, "concurrency=0"),
        ({"orders": of_its_kind}, {"max_attempts": 0}, "max_attempts=0"),
    ]
    for handlers, options, named in wrong:
        with pytest.raises(InvalidOption) as caught:
            kind(handlers, **options)
        assert str(caught.value).startswith(named)


def handle_nothing(_: Envelope) -> InboxOutcome:
    return NEW


async def handle_later(_: Envelope) -> InboxOutcome:
    return NEW


class Handler:
    def __call__(self, message: Envelope) -> InboxOutcome:
        return handle_nothing(message)


class LaterHandler:
    async def __call__(self, message: Envelope) -> InboxOutcome:
        return await handle_later(message)


class Decorated(Handler):
    """Like a handler that an asynchronous inbox has decorated."""

    outcome = staticmethod(handle_later)


@on("sqlite")
def test_handlers_of_the_other_kind(engine: Engine) -> None:
    """A synchronous delivery refuses asynchronous handlers, and an asynchronous one those of a synchronous
    inbox, before any of them has an effect. A plain function may return an awaitable."""
    booked: Any = Inbox("orders").handler(engine, key=message_key)(lambda *_: None)
    with pytest.raises(InvalidOption, match="expected an asynchronous function; see DirectD"):
        AsyncDirectDelivery({"orders": booked})
    for each in (handle_nothing, Handler(), Handler().__call__, partial(handle_nothing)):
        DirectDelivery({"orders": each})
    later: list[Any] = [handle_later, LaterHandler(), partial(handle_later), partial(LaterHandler())]
    for each in (*later, Decorated()):
        AsyncDirectDelivery({"orders": each})
        AsyncDirectDelivery({"orders": lambda message: handle_later(message)})
        with case(each), pytest.raises(InvalidOption, match="expected a synchronous function; see AsyncDir"):
            DirectDelivery({"orders": each})


@pytest.mark.parametrize("given", [None, True, "ok"])
@on("sqlite")
def test_a_handler_that_asks_no_inbox(engine: Engine, given: Any) -> None:
    """A plain function has its effects once: its message is a dead letter at once, which says what it
    returned."""
    runs: list[str] = []

    def handle(message: Envelope) -> Any:
        runs.append(name_of(message))
        return given

    publish(engine, "a1")
    publish(engine, "b1", topic="ship")
    assert relay(engine, DirectDelivery({"orders": handle, "ship": handle_nothing})) == 1
    assert dead(engine)["a1"].error == (
        f"InvalidOption: handlers['orders']: it returned {given!r}, expected an inbox.Outcome"
    )
    assert runs == ["a1"]


@on("sqlite", "postgresql")
def test_a_relay_that_runs(engine: Engine) -> None:
    """Each handler's commit wakes the relay for the next message, so that the chain does not wait for
    polling."""
    publish(engine, *ORDERS, topic="order")
    done = threading.Event()

    def disturb(message: Envelope) -> None:
        if message.topic == CHAIN[-1] and message.key == ORDERS[-1][0]:
            done.set()

    running = Relay(engine, DirectDelivery(chain(engine, disturb)))
    thread = threading.Thread(target=running.run)
    thread.start()
    assert done.wait(60)
    running.stop()
    thread.join()
    relay(engine, DirectDelivery(chain(engine)))
    assert accounts.totals(engine) == dict.fromkeys(CHAIN, len(ORDERS))


@on("sqlite")
def test_a_relay_that_is_stopped(engine: Engine) -> None:
    """After a stop, running handlers finish and no other one begins; the other messages are delivered by the
    next relay immediately."""
    publish(engine, *ORDERS)
    seen: list[str] = []

    def handle(message: Envelope) -> InboxOutcome:
        running.stop()
        seen.append(name_of(message))
        return NEW

    delivery = DirectDelivery({"orders": handle})
    running = Relay(engine, delivery)
    running.run()
    assert seen == ORDERS[:1]
    assert relay(engine, delivery) == len(ORDERS) - 1
    assert seen == ORDERS
