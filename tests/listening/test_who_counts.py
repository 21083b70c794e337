"""Who counts the failures of a message, and decides about it: an inbox of status-table mode that has recorded
them, or else the listener."""

import asyncio
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from inbox import (
    Action,
    AsyncInbox,
    AsyncStatusInbox,
    Claim,
    Inbox,
    Outcome,
    SqlStore,
    Status,
    StatusInbox,
    Verdict,
)
from inbox._status_mode.stores import Store
from inbox.errors import GiveUp, InvalidOption, MessageDead, MessageInFlight, TransactionEnded
from tests.support.database import Database
from tests.support.listeners import (
    Fault,
    Handler,
    assert_delivered_again,
    asynchronously,
    fail,
    fail_with,
    in_threads,
)
from tests.support.on_servers import on
from tests.support.status_mode.stores import status_inbox, stored

ACK, RETRY, DEAD_LETTER = Action.ACK, Action.RETRY, Action.DEAD_LETTER


@contextmanager
def translated() -> Iterator[None]:
    """Around a claim: its error becomes another one."""
    try:
        yield
    except Fault as error:
        raise ValueError("another error") from error


@contextmanager
def hidden() -> Iterator[None]:
    """The same, and the program does not show the claim's error."""
    try:
        yield
    except Fault:
        raise ValueError("another error") from None


@contextmanager
def grouped() -> Iterator[None]:
    """The same, with a group that has the claim's error as its cause."""
    try:
        yield
    except Fault as error:
        raise ExceptionGroup("all", [ValueError("another error")]) from error


@contextmanager
def regrouped() -> Iterator[None]:
    """The same, with a group of the claim's error as the cause of another one."""
    try:
        yield
    except* Fault as error:
        raise ValueError("another error") from error


CHANGES = (translated, hidden, grouped, regrouped)


@on("sqlite", fixture="place")
def test_code_around_a_handler_runs(store: Store) -> None:
    """A decorator around a handler runs with each message, and the error that goes through it still says what
    the inbox has recorded: the inbox alone counts the failures."""
    inbox = status_inbox(store, max_attempts=3)
    audit: list[str] = []

    def audited(handler: Any) -> Any:
        @functools.wraps(handler)
        def run(message: str) -> Any:
            audit.append(message)
            return handler(message)

        return run

    @audited
    @inbox.handler(key=str)
    def decorated(claim: Claim, message: str) -> None:
        if message == "bad":
            raise Fault("no")

    def around(change: Any) -> Handler:
        def run(message: str) -> Outcome:
            with change(), inbox.claim(message) as claim:
                raise Fault("no")
            return Outcome(claim.verdict)

        return run

    handlers = {each.__name__: around(each) for each in (nullcontext, *CHANGES)} | {"bad": decorated}
    listener = inbox.listener(max_attempts=2, failures=lambda _: 9)
    assert listener.decide(["good"], decorated)[0].action is ACK
    assert audit == ["good"]
    for message, handler in handlers.items():
        decided = [listener.decide([message], handler)[0] for _ in range(4)]
        assert [each.action for each in decided] == [RETRY, RETRY, DEAD_LETTER, DEAD_LETTER]
        assert {each.outcome and each.outcome.is_failure for each in decided} == {False}
        assert stored(store, message).status is Status.DEAD


def test_an_error_that_several_messages_get(sqlite: Database) -> None:
    """What an inbox has recorded belongs to the message, not to the error: the same object, as from a future
    for which several handlers have waited, may be raised for others."""
    engine, known = sqlite.engine(), Fault("always the same")
    inbox, store = Inbox("payments"), SqlStore(engine)
    twice, once = (StatusInbox(f"orders {each}", store=store, max_attempts=each) for each in (2, 1))
    barrier = threading.Barrier(2)

    def claimed(message: str) -> Outcome:
        try:
            with (twice if message == "lives" else once).claim(message):
                raise known
        finally:
            barrier.wait(10)

    @inbox.handler(engine, key=str)
    def booked(connection: Connection, message: str) -> None:
        raise known

    with pytest.raises(Fault), once.claim("elsewhere"):
        raise known
    listener = inbox.listener(concurrency=2)
    assert [each.action for each in listener.decide(["lives", "dies"], claimed)] == [RETRY, DEAD_LETTER]
    (decision,) = listener.decide(["a"], booked)
    assert decision.outcome is not None
    assert decision.outcome.is_failure


ORDERS = Inbox("orders")


@pytest.mark.parametrize(
    "take",
    [
        ORDERS.accept,
        lambda connection, message: ORDERS.take(connection, message).verdict,
        lambda connection, message: ORDERS.accept_many(connection, [message])[0],
        None,
    ],
    ids=["accept", "take", "accept_many", "handler"],
)
@pytest.mark.parametrize("attempts", [1, 16])
def test_a_claim_inside_a_transaction(postgres: Database, take: Any, attempts: int) -> None:
    """A claim for a part of the message, inside a transaction that takes the message, does not count the
    failures of the message, nor give it up: the listener does."""
    engine = postgres.engine()
    parts = StatusInbox("parts", store=SqlStore(engine), max_attempts=attempts)

    def book(connection: Connection, message: str) -> None:
        with parts.claim(f"{message}-part"):
            fail()

    def handle(message: str) -> Outcome:
        with engine.begin() as connection:
            verdict: Verdict = take(connection, message)
            book(connection, message)
        return Outcome(verdict)

    handler = ORDERS.handler(engine, key=str)(book) if take is None else handle
    (decision,) = parts.listener().decide(["a"], handler)
    assert decision.outcome is not None
    assert (decision.action, decision.outcome.is_failure) == (RETRY, True)


def test_a_claim_inside_a_transaction_asynchronously(postgres: Database) -> None:
    """The same in asynchronous code, also if the message is taken in a task of its own."""

    async def scenario(engine: AsyncEngine) -> None:
        inbox, parts = AsyncInbox("orders"), AsyncStatusInbox("parts", store=SqlStore(engine), max_attempts=1)

        async def handle(message: str) -> Outcome:
            async with engine.begin() as connection:
                await asyncio.create_task(inbox.accept(connection, message))
                async with parts.claim(f"{message}-part"):
                    fail()

        (decision,) = await inbox.listener().decide(["a"], handle)
        assert decision.outcome is not None
        assert (decision.action, decision.outcome.is_failure) == (RETRY, True)

    asynchronously(postgres, scenario)


def test_a_claim_inside_a_claim(sqlite: Database) -> None:
    """If the inner one has given up a part of the message, and the outer one has not given up the message, it
    is delivered again."""
    store = SqlStore(sqlite.engine())
    parts, whole = StatusInbox("parts", store=store, max_attempts=1), StatusInbox("orders", store=store)

    def handle(message: str) -> Outcome:
        with whole.claim(message), parts.claim(f"{message}-part"):
            fail()

    for _ in range(2):  # the second time, the part is refused
        (decision,) = whole.listener().decide(["a"], handle)
        assert decision.outcome is not None
        assert (decision.action, decision.outcome.is_failure) == (RETRY, False)
    assert stored(store, "a").attempts_finished == 2


@pytest.mark.parametrize("kind", [GiveUp, TransactionEnded, InvalidOption])
def test_the_code_around_a_claim_decides(sqlite: Database, kind: Any) -> None:
    """An error that is an answer itself, raised from an error of a claim, is the answer."""
    inbox = StatusInbox("orders", store=SqlStore(sqlite.engine()))

    def handle(message: str) -> Outcome:
        try:
            with inbox.claim(message):
                fail()
        except Fault as error:
            raise kind("it makes no sense") from error

    (decision,) = inbox.listener().decide(["a"], handle)
    assert decision.action is DEAD_LETTER
    assert decision.reason.endswith("it makes no sense")


def test_a_transaction_after_a_claim(sqlite: Database) -> None:
    """What a claim has recorded holds, whatever the handler does in a transaction before it raises the error
    again."""
    engine = sqlite.engine()
    inbox, audit = StatusInbox("orders", store=SqlStore(engine), max_attempts=1), Inbox("audit")

    def handle(message: str) -> Outcome:
        try:
            with inbox.claim(message):
                fail()
        except Fault:
            with suppress(KeyError), audit.transaction(engine, message):
                raise KeyError from None
            with engine.begin() as connection:
                audit.accept(connection, message)
            raise

    assert inbox.listener().decide(["a"], handle)[0].action is DEAD_LETTER


def test_a_claim_without_a_record(sqlite: Database) -> None:
    """A message that runs unprotected has no record that counts its failures: the listener counts them."""
    inbox = StatusInbox("orders", store=SqlStore(sqlite.engine()), missing_key="run")

    def claimed(message: str) -> Outcome:
        with inbox.claim(None):
            fail()

    def around_another(message: str) -> Outcome:
        with inbox.claim(None), inbox.claim(f"{message}-part"):
            fail()

    def invalid(message: str) -> Outcome:
        with inbox.claim(None):
            raise InvalidOption("a failed attempt, as inside any claim")

    by_inbox: Callable[[str], Outcome] = inbox.handler(key=lambda _: None)(lambda claim, message: fail())
    for handler in (claimed, around_another, invalid, by_inbox):
        assert_delivered_again(inbox.listener().decide(["a"], handler)[0], is_failure=True)


def test_claims_in_threads(sqlite: Database) -> None:
    """A claim in another thread answers for the message if the thread has the message's context. Otherwise
    both count: the message is delivered again, and then refused."""
    inbox = StatusInbox("orders", store=SqlStore(sqlite.engine()), max_attempts=1)

    def claimed(message: str) -> Outcome:
        with inbox.claim(message):
            fail()

    with ThreadPoolExecutor() as pool:
        ways: list[tuple[Any, Action]] = [
            (lambda message: pool.submit(copy_context().run, claimed, message).result(), DEAD_LETTER),
            (lambda message: asyncio.run(asyncio.to_thread(claimed, message)), DEAD_LETTER),
            (lambda message: pool.submit(claimed, message).result(), RETRY),
        ]
        for number, (handler, action) in enumerate(ways):
            decided = [inbox.listener().decide([str(number)], handler)[0] for _ in range(2)]
            assert [each.action for each in decided] == [action, DEAD_LETTER]
            assert decided[0].outcome is not None
            assert decided[0].outcome.is_failure is (action is RETRY)


def test_errors_that_a_handler_goes_on_after(sqlite: Database) -> None:
    """A handler may claim as many parts of a message as it likes. No error is kept that it has handled, with
    what its frames refer to."""
    inbox = StatusInbox("parts", store=SqlStore(sqlite.engine()))
    kept: list[weakref.ref[Fault]] = []

    def handle(message: str) -> Outcome:
        for part in range(4):
            try:
                with inbox.claim(f"{message}-{part}"):
                    fail()
            except Fault as error:
                kept.append(weakref.ref(error))
        gc.collect()
        assert [each() for each in kept] == [None] * 4
        return Outcome(Verdict.NEW)

    assert inbox.listener().decide(["a"], handle)[0].action is ACK


@pytest.mark.parametrize("order", [("stock", "mail"), ("mail", "stock")])
@pytest.mark.parametrize("is_shared", [True, False])
def test_two_claims_of_one_message(sqlite: Database, order: tuple[str, str], is_shared: bool) -> None:
    """If one inbox has given the message up and the other one has not, it is delivered again, whichever ends
    last, and also if both failed by the same error."""
    store, known = SqlStore(sqlite.engine()), Fault("the same")
    attempts = {"stock": 2, "mail": 1}
    inboxes = {name: StatusInbox(name, store=store, max_attempts=attempts[name]) for name in order}

    def handle(message: str) -> Outcome:
        errors: list[Exception] = []
        for inbox in inboxes.values():
            try:
                with inbox.claim(message):
                    fail_with(known if is_shared else Fault("another"))
            except (Fault, MessageDead) as error:
                errors.append(error)
        raise ExceptionGroup("both", errors)

    listener = inboxes["stock"].listener()
    decided = [listener.decide(["a"], handle)[0].action for _ in range(2)]
    assert decided == [RETRY, DEAD_LETTER]


def test_a_claim_beside_one_in_flight(sqlite: Database) -> None:
    """If the other claim's message is being handled elsewhere, this one is delivered again."""
    store = SqlStore(sqlite.engine())
    stock, mail = StatusInbox("stock", store=store), StatusInbox("mail", store=store, max_attempts=1)

    def handle(message: str) -> Outcome:
        errors: list[Exception] = []
        for inbox in (stock, mail):
            try:
                with inbox.claim(message):
                    fail_with(Fault("no"))
            except (Fault, MessageInFlight) as error:
                errors.append(error)
        raise ExceptionGroup("both", errors)

    with stock.claim("a"):
        (decision,) = stock.listener().decide(["a"], handle)
    assert decision.action is RETRY


def test_a_refusal_beside_a_failure(sqlite: Database) -> None:
    """If a claim has failed whose error the handler has handled, a refusal of another one does not give the
    message up before that claim does."""
    store = SqlStore(sqlite.engine())
    stock, mail = (StatusInbox(name, store=store, max_attempts=n) for name, n in (("stock", 3), ("mail", 1)))

    def handle(message: str) -> Outcome:
        with suppress(Fault), stock.claim(message):
            fail()
        with mail.claim(message):
            fail()

    decided = [stock.listener().decide(["a"], handle)[0].action for _ in range(3)]
    assert decided == [RETRY, RETRY, DEAD_LETTER]


@pytest.mark.parametrize("causes", [1, 2])
def test_an_error_that_is_its_own_cause(causes: int) -> None:
    """A listener ends: Python allows such errors."""
    errors = [Fault(str(number)) for number in range(causes)]

    def handle(message: str) -> Outcome:
        errors[-1].__cause__ = errors[0]
        raise errors[0] from errors[-1]

    (decision,) = in_threads(["a"], handle)
    assert decision.action is RETRY
