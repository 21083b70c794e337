"""Errors raised from those of inboxes: listeners follow them, and give up no message too early."""

import asyncio
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from inbox import (
    Action,
    AsyncStatusInbox,
    Inbox,
    Listener,
    Outcome,
    SqlStore,
    StatusInbox,
    Verdict,
)
from inbox.errors import (
    GiveUp,
    InvalidOption,
    InvalidResult,
    MessageDead,
    MessageInFlight,
    MessageTooOld,
    TransactionEnded,
    TransientError,
)
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


def test_an_error_of_a_claim_can_be_pickled(sqlite: Database) -> None:
    """As a task queue pickles it, for the process that waits for the result."""
    inbox = StatusInbox("orders", store=SqlStore(sqlite.engine()))

    def handle(message: str) -> Outcome:
        try:
            with inbox.claim(message):
                fail_with(ValueError("no"))
        except ValueError as error:
            raise pickle.loads(pickle.dumps(error)) from error  # noqa: S301 - our own

    (decision,) = inbox.listener().decide(["a"], handle)
    assert_delivered_again(decision, is_failure=False)


def test_many_errors(sqlite: Database) -> None:
    """What claims have recorded holds for any number of errors, in one group or of one claim each."""
    inbox = StatusInbox("orders", store=SqlStore(sqlite.engine()))

    def at_once(message: str) -> Outcome:
        with inbox.claim(message):
            raise ExceptionGroup("lines", [Fault(str(line)) for line in range(150)])

    def each(message: str) -> Outcome:
        errors: list[Exception] = []
        for line in range(150):
            try:
                with inbox.claim((message, line)):
                    fail_with(Fault(str(line)))
            except Fault as error:
                errors.append(error)
        raise ExceptionGroup("lines", errors)

    for message, handler in {"a": at_once, "b": each}.items():
        assert_delivered_again(inbox.listener().decide([message], handler)[0], is_failure=False)


def nested_retries(message: str) -> Outcome:
    """Every error leads to all earlier ones, on two ways."""

    def attempt(left: int) -> None:
        errors: list[Exception] = []
        for part in ("mail", "stock"):
            try:
                fail_with(Fault(part))
            except Fault as error:
                errors.append(error)
        try:
            fail_with(ExceptionGroup("both", errors))
        except ExceptionGroup:
            if not left:
                raise
            attempt(left - 1)

    attempt(40)
    return Outcome(Verdict.NEW)


def nested_groups(message: str) -> Outcome:
    """As of tasks that wait for tasks: deeper than functions may call themselves."""
    error: Exception = Fault("no")
    for _ in range(3000):
        error = ExceptionGroup("tasks", [error])
    raise error


@pytest.mark.parametrize("handler", [nested_retries, nested_groups])
def test_errors_that_lead_to_many_others(handler: Handler) -> None:
    """A listener soon decides about them."""
    began = time.monotonic()
    assert_delivered_again(in_threads(["a"], handler)[0], is_failure=True)
    assert time.monotonic() - began < 10


ASKED = Inbox("asked", wait=0)


def in_flight(engine: Engine, inbox: StatusInbox) -> None:
    with inbox.claim("held"):
        pass


def taken_elsewhere(engine: Engine, inbox: StatusInbox) -> None:
    with ASKED.transaction(engine, "held"):
        pass


def unreachable(engine: Engine, inbox: StatusInbox) -> None:
    with StatusInbox("away", store=SqlStore(create_engine("sqlite:////nowhere/to.db"))).claim("another"):
        pass


def without_a_database(engine: Engine, inbox: StatusInbox) -> None:
    with ASKED.transaction(create_engine("sqlite:////nowhere/to.db"), "another"):
        pass


def passing(engine: Engine, inbox: StatusInbox) -> None:
    with ASKED.transaction(engine, "another"):
        raise TransientError("a deadlock")


def lost(engine: Engine, inbox: StatusInbox) -> None:
    with inbox.claim("another") as claim:
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM inbox_status WHERE key = 'another'"))
        claim.heartbeat()


LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@contextmanager
def converted() -> Iterator[None]:
    """As a decorator that gives every error the application's own type."""
    try:
        yield
    except Exception as error:
        raise ValueError("another error") from error


@contextmanager
def replaced() -> Iterator[None]:
    """The same, in a hurry."""
    try:
        yield
    except Exception:  # noqa: BLE001 - as a decorator
        raise ValueError("another error")  # noqa: B904


@contextmanager
def collected() -> Iterator[None]:
    """The same, with a group as the cause."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as a decorator
        raise ValueError("another error") from ExceptionGroup("all", [error])


@pytest.mark.parametrize("meet", [in_flight, taken_elsewhere, unreachable, without_a_database, passing, lost])
def test_an_error_that_is_no_failure(postgres: Database, meet: Any) -> None:
    """Whatever code is around an inbox: its refusals and own errors, lost leases and errors that others have
    caused are not counted, and they do not give up the message."""
    engine = postgres.engine()
    inbox = StatusInbox("orders", store=SqlStore(engine))

    def handle(around: Any) -> Outcome:
        with around():
            meet(engine, inbox)
        return Outcome(Verdict.NEW)

    listener = inbox.listener(max_attempts=1, failures=lambda _: 9)
    with inbox.claim("held"), engine.begin() as other:
        ASKED.accept(other, "held")
        for decision in listener.decide([nullcontext, converted, replaced, collected], handle):
            assert_delivered_again(decision, is_failure=False)


def test_a_body_that_raises_its_own_error(sqlite: Database) -> None:
    """From an error of an inbox, inside a transaction of another one: it is the body's, and counts."""
    engine = sqlite.engine()
    inbox = Inbox("orders")

    @inbox.handler(engine, key=str)
    def book(connection: Connection, message: str) -> None:
        with converted():
            unreachable(engine, StatusInbox("away", store=SqlStore(engine)))

    assert_delivered_again(inbox.listener().decide(["a"], book)[0], is_failure=True)


@pytest.mark.parametrize(
    ("error", "is_failure"), [(Fault("no"), True), (TransientError("a deadlock"), False)]
)
def test_a_fallback(sqlite: Database, error: Exception, is_failure: bool) -> None:
    """An error that was raised while the end of a message was handled does not give the message up, whether
    the claim has just died or is refused. It is judged by itself."""
    inbox = StatusInbox("orders", store=SqlStore(sqlite.engine()), max_attempts=1)

    def handle(message: str) -> Outcome:
        try:
            with inbox.claim(message):
                fail()
        except (Fault, MessageDead):
            raise error  # noqa: B904 - another code's
        return Outcome(Verdict.NEW)

    for _ in range(2):
        assert_delivered_again(inbox.listener().decide(["a"], handle)[0], is_failure=is_failure)


@pytest.mark.parametrize("kind", [GiveUp, TransactionEnded, InvalidOption, InvalidResult])
def test_an_error_that_was_raised_from_an_answer(sqlite: Database, kind: Any) -> None:
    """A decorator raises another error from one that decides about the message: it is decided the same."""

    @Inbox("billing").handler(sqlite.engine(), key=str)
    def book(connection: Connection, message: str) -> None:
        raise kind("no")

    def decorated(message: str) -> Outcome:
        try:
            return book(message)
        except kind as error:
            raise LookupError("an order was not booked") from ExceptionGroup("errors", [error])

    for each in (book, decorated):
        assert Listener().decide(["a"], each)[0].action is Action.DEAD_LETTER


def test_a_handler_that_is_tried_again_after_its_body_has_committed(sqlite: Database) -> None:
    """It is a duplicate then, and the rest of the body never runs: a person has to look, also if a claim
    beside or around it has failed and may succeed later, or has lost its lease."""
    inbox, engine = Inbox("billing"), sqlite.engine()
    mail = StatusInbox("mail", store=SqlStore(engine), max_attempts=3)

    @inbox.handler(engine, key=str)
    def book(connection: Connection, message: str) -> None:
        connection.commit()

    def again(message: str) -> Outcome:
        with suppress(TransactionEnded):
            book(message)
        return book(message)

    def hidden(message: str) -> Outcome:
        try:
            return book(message)
        except TransactionEnded:
            raise LookupError from None

    def beside(message: str) -> Outcome:
        with suppress(TransactionEnded):
            book(message)
        with mail.claim(message):
            fail()
        return Outcome(Verdict.NEW)

    def around(message: str) -> Outcome:
        with mail.claim(message):
            return book(message)

    def without_a_lease(message: str) -> Outcome:
        with suppress(TransactionEnded):
            book(message)
        lost(engine, mail)
        return Outcome(Verdict.NEW)

    handlers = {"a": again, "b": hidden, "c": beside, "d": around, "e": without_a_lease}
    for message, handler in handlers.items():
        (decision,) = Listener().decide([message], handler)
        assert decision.action is Action.DEAD_LETTER
        assert "ended its transaction" in decision.reason


def test_lines_of_which_one_has_rolled_back(sqlite: Database) -> None:
    """Each is a message of its own; the handler notes errors and goes on. A redelivery finds the other lines
    taken, and is no dead letter."""
    engine = sqlite.engine()

    @Inbox("billing").handler(sessionmaker(engine), key=str)
    def line(session: Session, key: str) -> None:
        if key.endswith("2"):
            session.rollback()

    def lines(message: str) -> Outcome:
        for number in (1, 2):
            with suppress(TransactionEnded):
                line(f"{message}{number}")
        return line(f"{message}3")

    for verdict in (Verdict.NEW, Verdict.DUPLICATE):
        (decision,) = Listener().decide(["a"], lines)
        assert (decision.action, decision.reason) == (Action.ACK, str(verdict))


def test_a_message_that_is_too_old_behind_a_decorator(sqlite: Database) -> None:
    """The refusal decides, whatever it is raised as."""
    inbox = Inbox("billing", retention=60)

    def handle(message: str) -> Outcome:
        try:
            with inbox.transaction(sqlite.engine(), message, message_time=LONG_AGO):
                pass
        except MessageTooOld as error:
            raise LookupError from error
        return Outcome(Verdict.NEW)

    assert Listener().decide(["a"], handle)[0].action is Action.DEAD_LETTER
    assert Listener(too_old="ack").decide(["a"], handle)[0].action is Action.ACK


def test_a_key_that_gives_up(sqlite: Database) -> None:
    """Its message is a dead letter, with and without code around the handler."""

    def key(message: str) -> str:
        raise GiveUp("it has no key")

    inbox = StatusInbox("orders", store=SqlStore(sqlite.engine()))
    handle: Callable[[str], Outcome] = inbox.handler(key=key)(lambda claim, message: None)
    for each in (handle, lambda message: handle(message)):
        assert Listener().decide(["a"], each)[0].action is Action.DEAD_LETTER


def test_a_fallback_in_tasks(sqlite: Database) -> None:
    """A task group hides what was raised before it, and its errors are judged by themselves."""
    engine = sqlite.async_engine()
    inbox = AsyncStatusInbox("orders", store=SqlStore(engine), max_attempts=1)

    async def text() -> None:
        raise ConnectionError("the gateway is away")

    async def handle(message: str) -> Outcome:
        try:
            async with inbox.claim(message):
                fail()
        except Fault:
            async with asyncio.TaskGroup() as group:
                group.create_task(text())
        return Outcome(Verdict.NEW)

    async def main() -> None:
        assert_delivered_again((await inbox.listener().decide(["a"], handle))[0], is_failure=True)
        await engine.dispose()

    asyncio.run(main())


def stock_in_part(engine: Engine, stock: StatusInbox, message: str) -> None:
    with Inbox("audit").transaction(engine, message):
        pass
    with stock.claim(message):
        fail()


def stock_without_a_key(engine: Engine, stock: StatusInbox, message: str) -> None:
    with stock.claim(None):
        fail()


def stock_in_a_transaction(engine: Engine, stock: StatusInbox, message: str) -> None:
    with Inbox("stock in a transaction").transaction(engine, message):
        fail()


def stock_in_flight(engine: Engine, stock: StatusInbox, message: str) -> None:
    with stock.claim("held"):
        pass


@pytest.mark.parametrize(
    ("run", "is_failure"),
    [
        (stock_in_part, True),
        (stock_without_a_key, True),
        (stock_in_a_transaction, True),
        (stock_in_flight, False),
    ],
)
def test_a_dead_claim_beside_another(sqlite: Database, run: Any, is_failure: bool) -> None:
    """While another claim of the message may still succeed, also one that does not answer for the message,
    the message is delivered again. If no record counts that, the listener does."""
    engine = sqlite.engine()
    store = SqlStore(engine)
    mail, stock = (
        StatusInbox("mail", store=store, max_attempts=1),
        StatusInbox("stock", store=store, missing_key="run"),
    )

    def handle(message: str) -> Outcome:
        try:
            with mail.claim(message):
                fail()
        except Fault as error:
            with suppress(Fault, MessageInFlight):
                run(engine, stock, message)
            raise error from None

    with stock.claim("held"):
        (decision,) = mail.listener().decide(["a"], handle)
    assert_delivered_again(decision, is_failure=is_failure)


def test_a_dead_claim_beside_an_open_one(postgres: Database) -> None:
    """The same if the other one is still running when the handler's error arrives."""

    async def scenario(engine: AsyncEngine) -> None:
        store = SqlStore(engine)
        mail, stock = (
            AsyncStatusInbox("mail", store=store, max_attempts=1),
            AsyncStatusInbox("stock", store=store),
        )
        left: list[asyncio.Task[None]] = []
        has_died = asyncio.Event()

        async def run(inbox: AsyncStatusInbox, message: str, wait: Any) -> None:
            async with inbox.claim(message):
                await wait
                fail()

        async def handle(message: str) -> Outcome:
            left.append(asyncio.create_task(run(stock, message, has_died.wait())))
            await asyncio.gather(run(mail, message, asyncio.sleep(0)), *left)
            return Outcome(Verdict.NEW)

        (decision,) = await mail.listener().decide(["a"], handle)
        assert_delivered_again(decision, is_failure=False)
        has_died.set()
        with suppress(Fault):
            await left[0]

    asynchronously(postgres, scenario)


def test_two_dead_claims_at_the_same_time(postgres: Database) -> None:
    """The later one has not been answered by its store when the first one is refused, in every delivery: one
    connection serves both. The message is given up all the same."""

    async def scenario(_: AsyncEngine) -> None:
        engine = create_async_engine(postgres.async_url, pool_size=1, max_overflow=0)
        inboxes = [
            AsyncStatusInbox(name, store=SqlStore(engine), max_attempts=1) for name in ("mail", "push")
        ]

        async def run(inbox: AsyncStatusInbox, message: str) -> None:
            async with inbox.claim(message):
                fail()

        async def handle(message: str) -> Outcome:
            await asyncio.gather(*(run(inbox, message) for inbox in inboxes))
            return Outcome(Verdict.NEW)

        listener = inboxes[0].listener()
        for _delivery in range(5):
            (decision,) = await listener.decide(["a"], handle)
        assert decision.action is Action.DEAD_LETTER
        await engine.dispose()

    asynchronously(postgres, scenario)
