"""`remember=`: duplicates of remembered messages are answered without the database, and no other messages
are."""

import asyncio
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, NullPool, event, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from inbox import AsyncInbox, EventKind, Inbox, Verdict
from inbox.errors import InvalidOption, PayloadMismatch, TransientError
from inbox.schema import metadata
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.status_mode.asynchronous import in_loop

on_sqlite = on("sqlite")
"""What is remembered is the same on every server."""


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """An engine for a database with an account at zero."""
    return accounts.make(migrated.engine())


@contextmanager
def silent(engine: Engine) -> Iterator[None]:
    """Check that nothing is sent to the database inside the block."""
    sent: list[str] = []

    def note(*given: Any) -> None:
        sent.append(given[2])

    event.listen(engine, "before_cursor_execute", note)
    yield
    event.remove(engine, "before_cursor_execute", note)
    assert sent == []


def rolled_back(engine: Engine, *acts: Callable[[Connection], Verdict]) -> list[Verdict]:
    """Make these calls in one transaction that is rolled back, and return their verdicts."""
    with engine.connect() as connection:
        verdicts = [act(connection) for act in acts]
        connection.rollback()
    return verdicts


@pytest.mark.parametrize("kind", ["engine", "session"])
@on("sqlite", "postgresql", "mariadb")
def test_a_duplicate_is_answered_without_the_database(engine: Engine, kind: str) -> None:
    """A remembered message is answered without the database, with the result of the first run or as a
    mismatch; monitoring gets the event."""
    kinds: list[EventKind] = []
    inbox = Inbox("billing", remember=10, on_event=lambda event: kinds.append(event.kind))

    def bill(handle: Connection | Session, message: dict[str, Any]) -> dict[str, Any]:
        accounts.add(handle)
        return {"invoice": [7]}

    source = engine if kind == "engine" else sessionmaker(engine)
    handle = inbox.handler(source, key=lambda m: m["id"], payload=lambda m: m)(bill)
    assert handle({"id": 1, "n": 1}).verdict is Verdict.NEW
    with silent(engine):
        results = [handle({"id": 1, "n": 1}).result for _ in range(2)]
        with pytest.raises(PayloadMismatch):
            handle({"id": 1, "n": 2})
        with inbox.transaction(source, 1) as work:
            assert (work.verdict, work.result) == (Verdict.DUPLICATE, {"invoice": [7]})
    assert results == [{"invoice": [7]}] * 2
    assert accounts.total(engine) == 1
    expected = [EventKind.TAKEN, EventKind.DUPLICATE, EventKind.DUPLICATE, EventKind.MISMATCH]
    assert kinds == [*expected, EventKind.DUPLICATE]


@on_sqlite
def test_what_another_process_has_done_is_remembered(engine: Engine) -> None:
    """A message that another process took is remembered here after its first duplicate."""
    with Inbox("billing").transaction(engine, "a") as work:
        work.result = 7
    inbox = Inbox("billing", remember=10)
    for _ in range(2):
        with inbox.transaction(engine, "a") as work:
            assert (work.verdict, work.result) == (Verdict.DUPLICATE, 7)
    with silent(engine), engine.begin() as connection:
        assert inbox.take(connection, "a").result == 7


@on_sqlite
def test_another_payload_does_not_get_what_is_remembered(engine: Engine) -> None:
    """A remembered key with another payload is a MISMATCH and does not get the result."""
    inbox = Inbox("billing", remember=10)
    with inbox.transaction(engine, "a", 1) as work:
        work.result = 7
    with silent(engine), engine.begin() as connection:
        taken = inbox.take(connection, "a", 2)
        assert (taken.verdict, taken.result) == (Verdict.MISMATCH, None)


@on_sqlite
def test_a_new_connection_may_lead_to_an_earlier_state(migrated: Database) -> None:
    """Without pooled connections none breaks in a restore: each new one forgets what was remembered, and a
    message that the database has lost runs again."""
    engine = accounts.make(migrated.engine(poolclass=NullPool))
    inbox = Inbox("billing", remember=10)
    handle = inbox.handler(engine, key=str)(lambda connection, _: accounts.add(connection))
    assert handle("a").verdict is Verdict.NEW
    with silent(engine):
        assert handle("a").verdict is Verdict.DUPLICATE
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM inbox_message"))  # as a restore that lacks it
    assert [handle(key).verdict for key in ("b", "a")] == [Verdict.NEW] * 2


@on_sqlite
def test_what_was_not_committed_is_not_remembered(engine: Engine) -> None:
    """A message whose transaction failed runs again, whatever the verdicts inside that transaction were."""
    inbox = Inbox("billing", remember=10)
    for _ in range(2):
        with suppress(ZeroDivisionError), inbox.transaction(engine, "a") as work:
            assert work.is_new
            assert inbox.accept(work.connection, "a") is Verdict.DUPLICATE
            raise ZeroDivisionError
    with inbox.transaction(engine, "a") as work:
        assert work.is_new


@on_sqlite
def test_a_duplicate_in_the_transaction_that_took_it_is_not_certain(engine: Engine) -> None:
    """A duplicate inside the transaction that took the message is not remembered, not even the second time or
    if another inbox took it: only a row seen in two transactions is certain to be committed."""
    inbox, other = Inbox("billing", remember=10), Inbox("billing")
    for _ in range(3):
        verdicts = rolled_back(
            engine,
            lambda connection: other.accept(connection, "a"),
            lambda connection: inbox.accept(connection, "a"),
            lambda connection: inbox.accept(connection, "a"),
        )
        assert verdicts == [Verdict.NEW, Verdict.DUPLICATE, Verdict.DUPLICATE]
    assert rolled_back(engine, lambda connection: inbox.accept(connection, "a")) == [Verdict.NEW]
    with engine.begin() as connection:
        other.accept(connection, "a")
    for _ in range(2):
        assert rolled_back(engine, lambda connection: inbox.accept(connection, "a")) == [Verdict.DUPLICATE]
    with silent(engine):
        assert rolled_back(engine, lambda connection: inbox.accept(connection, "a")) == [Verdict.DUPLICATE]


@on_sqlite
def test_a_session_in_a_transaction_of_others_is_not_certain(engine: Engine) -> None:
    """Commits of a session inside an outer transaction, as in test suites, are not remembered: the outer
    transaction may roll back."""
    inbox = Inbox("billing", remember=10)
    for _ in range(2):
        with engine.connect() as connection:
            outer = connection.begin()
            sessions = sessionmaker(connection, join_transaction_mode="rollback_only")
            for expected in (Verdict.NEW, Verdict.DUPLICATE, Verdict.DUPLICATE):
                with inbox.transaction(sessions, "a") as work:
                    assert work.verdict is expected
            outer.rollback()


@on_sqlite
def test_each_database_has_its_own_memory(engine: Engine, migrated: Database) -> None:
    """One inbox used with two databases does not mix them up."""
    inbox = Inbox("billing", remember=10)
    with inbox.transaction(engine, "a") as work:
        assert work.is_new
    url = migrated.server.new_database()
    other = Database(migrated.server, url)
    try:
        metadata.create_all(other.engine())
        with inbox.transaction(other.engine(), "a") as work:
            assert work.is_new
    finally:
        other.close()


@on("sqlite", "postgresql")
def test_nothing_is_remembered_after_a_broken_connection(engine: Engine) -> None:
    """After a connection has broken, the database may have lost commits: each key is looked up again, and a
    key that is not there any more is NEW."""
    inbox = Inbox("billing", remember=10)
    for key in ("a", "b"):
        with inbox.transaction(engine, key) as work:
            assert work.is_new
    with engine.connect() as connection:
        connection.execute(text("DELETE FROM inbox_message WHERE consumer = 'billing'"))
        connection.commit()
    with silent(engine), inbox.transaction(engine, "a") as work:
        assert work.verdict is Verdict.DUPLICATE
    with engine.connect() as connection:
        connection.invalidate()
    for key in ("a", "b"):
        with inbox.transaction(engine, key) as work:
            assert work.is_new


def test_each_schema_has_its_own_memory(postgres: Database) -> None:
    """One inbox used with tenants that differ in `schema_translate_map` does not mix them up."""
    engine, inbox = postgres.engine(), Inbox("billing", remember=10)
    tenants = [engine.execution_options(schema_translate_map={None: name}) for name in ("one", "two")]
    for name, tenant in zip(("one", "two"), tenants, strict=True):
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {name}"))
        metadata.create_all(tenant)
    for tenant in tenants:
        with inbox.transaction(tenant, "a") as work:
            assert work.is_new
    for tenant in tenants:
        with silent(engine), inbox.transaction(tenant, "a") as work:
            assert work.verdict is Verdict.DUPLICATE


@in_loop
async def test_asynchronous_inboxes_remember(sqlite: Database) -> None:
    """`AsyncInbox` remembers too, on an engine and on a sessionmaker."""
    engine = create_async_engine(sqlite.async_url)
    inbox, runs = AsyncInbox("billing", remember=10), list[str]()
    for source in (engine, async_sessionmaker(engine)):

        @inbox.handler(source, key=lambda m: m)
        async def bill(_: Any, message: str) -> str:
            runs.append(message)
            return message

        key = type(source).__name__
        await bill(key)
        with silent(engine.sync_engine):
            assert [(await bill(key)).result for _ in range(2)] == [key, key]
            async with engine.begin() as connection:
                assert await inbox.accept(connection, key) is Verdict.DUPLICATE
        await asyncio.sleep(0)
    assert len(runs) == 2
    await engine.dispose()


@on_sqlite
def test_nothing_is_remembered_unless_asked_for(engine: Engine) -> None:
    """By default every delivery asks the database, and so does an unpickled inbox."""
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    remembering = Inbox("billing", remember=10)
    with remembering.transaction(engine, "a"):
        pass
    for inbox in (Inbox("billing"), pickle.loads(pickle.dumps(remembering))):  # noqa: S301 - its own
        before = len(sent)
        with inbox.transaction(engine, "a") as work:
            assert work.verdict is Verdict.DUPLICATE
        assert len(sent) > before


@on_sqlite
def test_large_results(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results together have a limit: beyond it, the message that was looked up longest ago is forgotten."""
    monkeypatch.setattr("inbox._memory.LARGEST", 250)
    inbox = Inbox("billing", remember=10)
    handle = inbox.handler(engine, key=str)(lambda connection, message: "x" * 98)
    for key in ("a", "b", "a", "c"):
        handle(key)
    with silent(engine):
        assert [handle(key).verdict for key in ("a", "c")] == [Verdict.DUPLICATE] * 2
    with pytest.raises(AssertionError), silent(engine):
        handle("b")


@on_sqlite
def test_the_functions_of_a_message_are_called_once(engine: Engine) -> None:
    """With remember= and hooks as without, `key=`, `payload=` and `message_time=` are called once: they may
    take something out of the message."""
    inbox = Inbox("billing", remember=10, on_event=lambda _: None)
    runs: list[int] = []

    def body(connection: Connection, message: dict[str, str]) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise TransientError

    handle = inbox.handler(
        engine, key=lambda message: message.pop("key"), payload=lambda message: message.pop("payload")
    )(body)
    assert handle({"key": "a", "payload": "x"}).verdict is Verdict.NEW
    assert len(runs) == 2


def test_an_invalid_number_is_refused() -> None:
    """An invalid `remember` is rejected; the error names the option and the value."""
    values: list[Any] = [-1, 1.5, True, "3", None]
    for value in values:
        with pytest.raises(InvalidOption, match=re.escape(f"remember={value!r}: ")):
            Inbox("billing", remember=value)
