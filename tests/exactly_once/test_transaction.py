"""`transaction` and `handler`: begin, take, run, commit."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.orm import Session, sessionmaker

from inbox import Inbox, Outcome, Verdict
from inbox.errors import (
    InboxError,
    InvalidOption,
    InvalidResult,
    TransactionAborted,
    TransactionEnded,
    TransientError,
)
from inbox.schema import tables
from tests.support import accounts
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import SYNC, on

pytestmark = pytest.mark.mysql

MESSAGE = tables().message
RESULTS = [
    {"invoice": 7},
    [],
    0,
    False,
    "",
    "zażółć 🙂 \u0000",
    12345678901234567890,
    1.1,
    {"z": 1, "a": {"deep": [None]}},
]


def rows(engine: Engine) -> int:
    """The number of messages taken."""
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(MESSAGE)).scalar_one()


@on(*SYNC)
def test_a_result_is_replayed_to_duplicates(migrated: Database) -> None:
    """Every duplicate gets the first run's result, exactly as it was set."""
    inbox, engine = Inbox("billing"), migrated.engine()
    for number, result in enumerate(RESULTS):
        with inbox.transaction(engine, number) as work:
            assert work.is_new
            work.result = result
        for _ in range(2):
            with case(repr(result)), inbox.transaction(engine, number) as work:
                assert (work.verdict, work.is_new) == (Verdict.DUPLICATE, False)
                assert work.result == result
                assert type(work.result) is type(result)


def test_without_a_result_duplicates_get_none(sqlite: Database) -> None:
    """A result is optional: without one, duplicates get None."""
    inbox, engine = Inbox("billing"), sqlite.engine()
    for verdict in (Verdict.NEW, Verdict.DUPLICATE):
        with inbox.transaction(engine, "a") as work:
            assert (work.verdict, work.result) == (verdict, None)


def nested(depth: int) -> list[Any]:
    """A list in a list in a list, and so on."""
    return functools.reduce(lambda inner, _: [inner], range(depth), [])


def test_an_invalid_result_is_refused(sqlite: Database) -> None:
    """A result that JSON cannot represent, or that is too large, is an error, and nothing at all is
    written."""
    inbox, engine = Inbox("billing"), sqlite.engine()
    for result in (object(), {1, 2}, float("nan"), "x" * 1_000_001, nested(5_000), nested(101)):
        with (
            case(result),
            pytest.raises(InvalidResult, match="result"),
            inbox.transaction(engine, "a") as work,
        ):
            work.result = result
    assert rows(engine) == 0


def test_only_a_new_message_gets_a_result(sqlite: Database) -> None:
    """A duplicate cannot change the stored result."""
    inbox, engine = Inbox("billing"), sqlite.engine()
    with inbox.transaction(engine, "a") as work:
        work.result = 1
    with inbox.transaction(engine, "a") as work, pytest.raises(InvalidOption, match="result"):
        work.result = 2
    with inbox.transaction(engine, "a") as work:
        assert work.result == 1


@pytest.mark.parametrize("source", [lambda engine: engine, sessionmaker])
@pytest.mark.parametrize("asks", [False, True])
def test_a_block_that_does_not_ask(
    postgres: Database, source: Callable[[Engine], Any], *, asks: bool
) -> None:
    """A block that writes for a duplicate without looking at the verdict is rolled back; one that does
    nothing, or has looked, is not."""
    inbox, engine = Inbox("billing"), accounts.make(postgres.engine())
    with inbox.transaction(source(engine), "a") as work:
        accounts.add(work.connection)
    with pytest.raises(TransactionEnded, match="result"):
        work.result = 7
    with inbox.transaction(source(engine), "a"):
        pass
    refused = nullcontext() if asks else pytest.raises(TransactionAborted, match="verdict is duplicate")
    with refused, inbox.transaction(source(engine), "a") as work:
        accounts.add(work.connection)
        assert not asks or not work.is_new
    assert accounts.total(engine) == 1 + asks


def test_an_exception_rolls_back_and_comes_through_unchanged(sqlite: Database) -> None:
    """The caller sees its own exception, and the message can be taken again."""
    inbox, engine = Inbox("billing"), sqlite.engine()
    failure = KeyError("mine")
    with pytest.raises(KeyError) as caught, inbox.transaction(engine, "a"):
        raise failure
    assert caught.value is failure
    with inbox.transaction(engine, "a") as work:
        assert work.is_new


def test_in_a_session(sqlite: Database) -> None:
    """With a sessionmaker the work has a Session, whose flush is part of the same transaction."""
    inbox, engine = Inbox("billing"), sqlite.engine()
    with inbox.transaction(sessionmaker(engine), "a") as work:
        assert isinstance(work.session, Session)
        assert work.session.connection() is work.connection
    with inbox.transaction(engine, "b") as work, pytest.raises(AttributeError, match="begun on an engine"):
        _ = work.session
    assert rows(engine) == 2


def test_connections_go_back_to_the_pool(sqlite: Database) -> None:
    """Whatever happens in the block, its connection goes back to the pool without an open transaction."""
    inbox, engine = Inbox("billing"), sqlite.engine(pool_size=1, max_overflow=0, pool_timeout=5)
    for number in range(3):
        with pytest.raises(ValueError, match="mine"), inbox.transaction(engine, f"failing-{number}"):
            raise ValueError("mine")
        with inbox.transaction(engine, f"fine-{number}"), pytest.raises(InvalidOption):
            inbox.accept(engine, "an engine")  # type: ignore[arg-type]
    assert rows(engine) == 3


@on("sqlite")
@pytest.mark.parametrize("source", [lambda engine: engine, sessionmaker], ids=["engine", "sessionmaker"])
def test_a_handler_runs_once(migrated: Database, source: Callable[[Engine], Any]) -> None:
    """The body runs for the first delivery only; duplicates get what it returned."""
    engine, runs = migrated.engine(), list[int]()

    @Inbox("billing").handler(source(engine), key=lambda message: message["id"], payload=lambda m: m)
    def bill(handle: Any, message: dict[str, int]) -> int:
        assert isinstance(handle, Connection | Session)
        runs.append(message["id"])
        return message["id"] * 10

    with pytest.raises(InboxError, match="key=True"):
        bill({"id": True})
    texts = [{"id": "1"}, {"id": "1"}, {"id": "2"}]
    outcomes = [_bill_texts(source(engine), runs)(message) for message in texts]
    assert outcomes == [
        Outcome(Verdict.NEW, 1),
        Outcome(Verdict.DUPLICATE, 1),
        Outcome(Verdict.NEW, 2),
    ]
    assert runs == [1, 2]
    assert bill.__name__ == "bill"


def _bill_texts(source: Any, runs: list[int]) -> Callable[[dict[str, str]], Outcome]:
    @Inbox("texts").handler(source, key=lambda message: message["id"])
    def bill(handle: Any, message: dict[str, str]) -> int:
        runs.append(int(message["id"]))
        return int(message["id"])

    return bill


def test_a_handler_retries_transient_errors_only(sqlite: Database) -> None:
    """A transient error is retried in a new transaction, a limited number of times; other errors are not
    retried."""
    engine, tries = sqlite.engine(), list[str]()

    @Inbox("billing").handler(engine, key=lambda message: message, attempts=3)
    def bill(connection: Connection, message: str) -> None:
        tries.append(message)
        if message == "never" or tries.count(message) < 3:
            raise ValueError(message) if message == "broken" else TransientError(message)

    assert bill("third time lucky").verdict is Verdict.NEW
    with pytest.raises(TransientError, match="never"):
        bill("never")
    with pytest.raises(ValueError, match="broken"):
        bill("broken")
    assert [tries.count(message) for message in ("third time lucky", "never", "broken")] == [3, 3, 1]
    assert rows(engine) == 1


def test_the_first_run_sees_the_result_as_a_duplicate_will(postgres: Database) -> None:
    """A result reads back immediately as JSON returns it, also for the caller of a handler. A value that JSON
    cannot represent is rejected at the assignment, and the transaction goes on."""
    inbox, engine = Inbox("billing"), postgres.engine()
    with inbox.transaction(engine, "a") as work:
        work.result = {1: ("x", 2)}
        assert work.result == {"1": ["x", 2]}
        too_deep = functools.reduce(lambda inner, _: [inner], range(100_000), list[Any]())
        for refused in (object(), 10**5_000, float("inf"), too_deep):
            with pytest.raises(InvalidResult):
                work.result = {"when": refused}
    with inbox.transaction(engine, "a") as work:
        assert work.result == {"1": ["x", 2]}
    bill = inbox.handler(engine, key=str)(lambda connection, message: {1: ("x", 2)})
    assert bill("b").result == bill("b").result == {"1": ["x", 2]}
