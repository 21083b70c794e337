"""Returning normally means "acknowledge": a message that was not taken raises an error."""

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from inbox import Action, AsyncInbox, Inbox, Outcome, SqlStore, StatusInbox, Store, Verdict, is_transient
from inbox.errors import (
    InvalidOption,
    MessageDead,
    MessageHalted,
    MessageInFlight,
    MessageTooOld,
    NotTaken,
    PayloadMismatch,
)
from inbox.schema import tables
from tests.support.database import Database
from tests.support.listeners import Decide, each_listener
from tests.support.on_servers import on
from tests.support.status_mode.asynchronous import in_loop, inbox_at
from tests.support.status_mode.stores import Failed, Place, fail, status_inbox

LONG_AGO = datetime.now(UTC) - timedelta(days=30)
REFUSALS: list[tuple[str, dict[str, Any], type[NotTaken]]] = [
    ("held", {}, MessageInFlight),
    ("taken", {"payload": "other"}, PayloadMismatch),
    ("old", {"message_time": LONG_AGO}, MessageTooOld),
]
"""Key, what else is said about the message, and why it is not taken."""


def never(*_: Any) -> None:
    pytest.fail("the body ran")


def handler_of(inbox: Any, source: Any, body: Any = never, **given: Any) -> Any:
    """A handler whose messages are keys, with the same options for every message."""
    said: dict[str, Any] = {name: (lambda _, value=value: value) for name, value in given.items()}
    return inbox.handler(source, key=lambda key: key, **said)(body)


def check(refused: NotTaken, kind: type[NotTaken], key: str) -> None:
    """The error names the consumer and the key, survives pickling, and is transient only if the message is in
    flight."""
    assert type(refused) is kind
    assert "'billing'" in str(refused)
    assert repr(key) in str(refused)
    assert is_transient(refused) is (kind is MessageInFlight)
    copy = pickle.loads(pickle.dumps(refused))  # noqa: S301 - as process pools do
    assert (copy.verdict, copy.retry_after, str(copy)) == (
        refused.verdict,
        refused.retry_after,
        str(refused),
    )


def test_a_message_that_is_not_taken_is_an_error(postgres: Database) -> None:
    """`transaction` and decorated handlers raise before the body runs, leave nothing behind, return their
    connection, and name consumer and key; a duplicate still returns normally."""
    engine = postgres.engine(pool_size=1, max_overflow=0, pool_timeout=10)
    inbox, other = Inbox("billing", wait=0), postgres.engine()
    with inbox.transaction(engine, "taken", payload="first") as work:
        work.result = 7
    with other.begin() as connection:
        inbox.accept(connection, "held")
        for key, given, kind in REFUSALS:
            with pytest.raises(NotTaken) as caught, inbox.transaction(engine, key, **given):
                never()
            check(caught.value, kind, key)
            with pytest.raises(kind):
                handler_of(inbox, engine, **given)(key)
    assert handler_of(inbox, engine, payload="first")("taken") == Outcome(Verdict.DUPLICATE, 7)
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(tables().message)) == 2


@in_loop
async def test_the_same_asynchronously(postgres: Database) -> None:
    """`AsyncInbox` raises the same errors."""
    engine = create_async_engine(postgres.async_url)
    inbox = AsyncInbox("billing", wait=0)
    async with inbox.transaction(engine, "taken", payload="first"):
        pass

    async def body(connection: AsyncConnection, key: str) -> None:
        never()

    async with engine.connect() as connection:
        await connection.begin()
        await inbox.accept(connection, "held")
        for key, given, kind in REFUSALS:
            with pytest.raises(NotTaken) as caught:
                async with inbox.transaction(engine, key, **given):
                    never()
            check(caught.value, kind, key)
            with pytest.raises(kind):
                await handler_of(inbox, engine, body, **given)(key)
    await engine.dispose()


def test_a_message_in_flight_is_waited_for_once(postgres: Database) -> None:
    """Although `MessageInFlight` is transient, `handler` does not retry it: it has already waited."""
    engine, inbox, begun = postgres.engine(), Inbox("billing", wait=0), []
    with postgres.engine().begin() as connection:
        inbox.accept(connection, "held")
        event.listen(engine, "begin", lambda connection: begun.append(connection))
        with pytest.raises(MessageInFlight):
            handler_of(inbox, engine)("held")
    assert len(begun) == 1


def test_verdicts_on_request(postgres: Database) -> None:
    """With `on_refusal="return"` the block runs and the handler returns; both give the verdict, and
    not the result of the first message."""
    engine, inbox = postgres.engine(), Inbox("billing", wait=0, on_refusal="return")
    with inbox.transaction(engine, "taken", payload="first") as work:
        work.result = 7
    with postgres.engine().begin() as connection:
        inbox.accept(connection, "held")
        for key, given, kind in REFUSALS:
            with inbox.transaction(engine, key, **given) as work:
                assert (work.verdict, work.is_new, work.result) == (kind.verdict, False, None)
            assert handler_of(inbox, engine, **given)(key).verdict is kind.verdict


@pytest.mark.parametrize("inbox", [Inbox, AsyncInbox])
def test_the_option_is_checked(inbox: type[Inbox | AsyncInbox]) -> None:
    """An unknown `on_refusal` is rejected; the error names the option and the value."""
    with pytest.raises(InvalidOption, match="on_refusal='ignore'"):
        inbox("billing", on_refusal="ignore")  # type: ignore[arg-type]


def refused(inbox: StatusInbox, key: str, **given: Any) -> NotTaken:
    """The error that `claim` and the decorated function raise; `outcome`, which listeners call, returns the
    same verdict without an error."""
    with pytest.raises(NotTaken) as caught, inbox.claim(key, **given):
        never()
    handle = handler_of_claims(inbox, never, **given)
    with pytest.raises(type(caught.value)):
        handle(key)
    outcome = handle.outcome(key)
    assert (outcome.verdict, outcome.error) == (caught.value.verdict, None)
    assert key in str(caught.value)
    return caught.value


def handler_of_claims(inbox: StatusInbox, body: Any, **given: Any) -> Any:
    said: dict[str, Any] = {name: (lambda _, value=value: value) for name, value in given.items()}
    return inbox.handler(key=lambda key: key, **said)(body)


@on("sqlite", "redis", fixture="place")
def test_every_verdict_of_status_mode(store: Store) -> None:
    """`claim` and the decorated function accept a new message and a duplicate, and raise for every other
    verdict; a message in flight says when to deliver it again."""
    inbox = status_inbox(store, max_attempts=1, on_refusal="raise")
    with inbox.claim("held") as claim:
        in_flight = refused(inbox, "held")
        claim.result = 7
    assert isinstance(in_flight, MessageInFlight)
    assert in_flight.retry_after is not None
    assert in_flight.retry_after > 0
    with inbox.claim("held") as claim:
        assert (claim.verdict, claim.result) == (Verdict.DUPLICATE, 7)
    with inbox.claim("taken", "first"):
        pass
    assert isinstance(refused(inbox, "taken", payload="other"), PayloadMismatch)
    assert isinstance(refused(inbox, "old", message_time=LONG_AGO), MessageTooOld)
    with pytest.raises(Failed), inbox.claim("dead"):
        fail()
    assert isinstance(refused(inbox, "dead"), MessageDead)
    with pytest.raises(Failed), inbox.claim("halted") as claim:
        claim.step("charge", fail, on_unknown="halt")
    assert isinstance(refused(inbox, "halted"), MessageHalted)


def test_a_run_that_only_undoes_is_not_acknowledged(postgres: Database) -> None:
    """A message whose finished steps are undone is dead: the block, the decorated function and the listener
    all say so, although the body raised nothing that the caller could see."""
    inbox = StatusInbox("orders", store=SqlStore(postgres.engine()), max_attempts=1, heartbeat=False)

    def body(claim: Any, key: str) -> None:
        claim.step("lock", lambda: None, undo=undos.pop())
        claim.step("charge", fail)

    handle = handler_of_claims(inbox, body)
    for key in ("block", "function", "listener"):
        undos: list[Any] = [lambda _: None, fail]
        with pytest.raises(Failed):
            handle(key)
        match key:
            case "block":
                with pytest.raises(MessageDead), inbox.claim(key) as claim:
                    body(claim, key)
            case "function":
                with pytest.raises(MessageDead):
                    handle(key)
            case _:
                (decision,) = inbox.listener().decide([key], handle)
                assert decision.action is Action.DEAD_LETTER
        assert undos == []


@on("sqlite", "redis", fixture="place")
@in_loop
async def test_status_mode_asynchronously(place: Place) -> None:
    """`AsyncStatusInbox` raises the same errors."""
    async with inbox_at(place, on_refusal="raise", max_attempts=1) as inbox:

        @inbox.handler(key=lambda key: key)
        async def handle(claim: Any, key: str) -> None:
            never()

        async with inbox.claim("held"):
            with pytest.raises(MessageInFlight) as caught:
                await handle("held")
            assert caught.value.retry_after
            with pytest.raises(MessageInFlight):
                async with inbox.claim("held"):
                    never()
        with pytest.raises(Failed):
            async with inbox.claim("dead"):
                fail()
        with pytest.raises(MessageDead):
            async with inbox.claim("dead"):
                never()
        assert (await handle.outcome("dead")).verdict is Verdict.DEAD


@each_listener
@pytest.mark.parametrize("on_refusal", ["raise", "return"])
@pytest.mark.parametrize("by_hand", [False, True], ids=["decorated", "by hand"])
def test_listeners_decide_by_the_verdict(
    postgres: Database, decide: Decide, on_refusal: Any, by_hand: bool
) -> None:
    """Listeners decide by the verdict, whether the inbox raises or returns it, and whether the handler was
    decorated by the inbox or is a function that lets the error through."""
    engine, inbox = postgres.engine(), Inbox("billing", wait=0, on_refusal=on_refusal)
    given = {key: said for key, said, _ in REFUSALS} | {"new": {}}

    def handle(key: str) -> Any:
        if not by_hand:
            return handler_of(inbox, engine, lambda *_: None, **given[key])(key)
        with inbox.transaction(engine, key, **given[key]) as work:
            return Outcome(work.verdict)

    with inbox.transaction(engine, "taken", payload="first"):
        pass
    with postgres.engine().begin() as connection:
        inbox.accept(connection, "held")
        decisions = decide(["held", "taken", "old", "new"], handle)
    assert [(each.action.value, each.reason) for each in decisions] == [
        ("retry", "in_flight"),
        ("dead_letter", "mismatch"),
        ("dead_letter", "too_old"),
        ("ack", "new"),
    ]
    assert all(each.outcome is not None and each.outcome.error is None for each in decisions)
    assert not any(each.outcome is not None and each.outcome.is_failure for each in decisions)


def test_a_handler_that_names_the_delay_is_heard(postgres: Database) -> None:
    """If the caller's own function raises `NotTaken`, its `retry_after` is used."""

    def handle(message: object) -> Outcome:
        raise MessageInFlight("elsewhere", retry_after=42)

    (decision,) = Inbox("billing").listener().decide(["a"], handle)
    assert (decision.action, decision.delay) == (Action.RETRY, 42)


def test_a_nested_inbox_rolls_back_the_outer_one(postgres: Database) -> None:
    """If the body calls another inbox's handler and that raises `NotTaken`, the outer transaction rolls back
    as for any error: neither message is taken."""
    engine, outer, inner = postgres.engine(), Inbox("outer"), Inbox("inner", wait=0)

    def body(connection: Connection, key: str) -> None:
        handler_of(inner, postgres.engine())(key)

    with postgres.engine().begin() as connection:
        inner.accept(connection, "held")
        (decision,) = outer.listener().decide(["held"], handler_of(outer, engine, body))
    assert decision.action is Action.RETRY
    with engine.begin() as connection:
        assert outer.accept(connection, "held") is Verdict.NEW
