"""Steps of status-table mode whose writes commit together with the record of the step, on every SQL store."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from inbox import Claim, SqlStore, Status, StatusInbox, Verdict, release
from inbox._status_mode.stores import Change, HeldRecord, Store
from inbox.errors import (
    InvalidOption,
    InvalidResult,
    LeaseLost,
    StoreUnreachable,
    TransactionAborted,
    TransactionEnded,
    UnusableConnection,
)
from inbox.schema import metadata, tables
from tests.servers import Server
from tests.support import accounts
from tests.support.database import Database, make_tables
from tests.support.on_servers import WITH_WRITERS, each_on, on
from tests.support.processes import wait_until
from tests.support.status_mode.stores import CONSUMER, deliver, fail, request, status_inbox, stored
from tests.support.together import Task

pytestmark = pytest.mark.mysql

sources = each_on("sqlite", "source", [("own",), ("engine",), ("session",)], [("own",)])


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """An engine for a database with an account at zero."""
    return accounts.make(migrated.engine())


@pytest.fixture
def inbox(engine: Engine) -> StatusInbox:
    """An inbox whose store is in the same database."""
    return status_inbox(SqlStore(engine), max_attempts=3)


def book(handle: Any) -> list[int]:
    """A step's body that is not idempotent."""
    accounts.add(handle)
    return [1]


@sources
def test_a_step_and_its_writes_are_exactly_once(engine: Engine, inbox: StatusInbox, source: str) -> None:
    """The step's rows are written once, however often the message is delivered, and its result is replayed:
    on the store's own engine, on another one, and in a Session."""
    given: dict[str, Any] = {"own": None, "engine": engine, "session": sessionmaker(engine)}
    results = []

    def body(claim: Claim) -> None:
        results.append(claim.transact("book", book, source=given[source]))
        fail()

    for _ in range(2):
        deliver(inbox, body)
    assert results == [[1], [1]]
    assert accounts.total(engine) == 1


@on("sqlite")
def test_a_step_that_raises_leaves_nothing(engine: Engine, inbox: StatusInbox) -> None:
    """If the body raises, its writes and the step's record are rolled back, and the next attempt runs the
    step again."""

    def body(claim: Claim) -> None:
        claim.transact("book", lambda handle: book(handle) if claim.attempt > 1 else fail(book(handle)))

    deliver(inbox, body)
    assert accounts.total(engine) == 0
    assert (stored(inbox.store).status, stored(inbox.store).steps) == (Status.FAILED, None)
    assert deliver(inbox, body).verdict is Verdict.NEW
    assert accounts.total(engine) == 1
    assert stored(inbox.store).status is Status.CONSUMED


def _swallow(handle: Any) -> None:
    accounts.add(handle)
    with pytest.raises(DBAPIError):
        handle.execute(text("SELECT * FROM no_such_table"))


def test_a_swallowed_error_never_passes_for_a_write(engine: Engine, inbox: StatusInbox) -> None:
    """If the body swallows a database error, either its writes are kept and the step is recorded, or the step
    raises and neither is kept."""
    aborts = engine.dialect.name == "postgresql"
    if aborts:
        with pytest.raises(TransactionAborted, match=r"^step='book'"):
            deliver(inbox, lambda claim: claim.transact("book", _swallow))
    else:
        deliver(inbox, lambda claim: claim.transact("book", _swallow))
    assert accounts.total(engine) == (0 if aborts else 1)
    assert (stored(inbox.store).steps is None) is aborts


ENDINGS: dict[str, Callable[[Any], object]] = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "COMMIT as SQL": lambda connection: connection.exec_driver_sql("COMMIT"),
}


@each_on("sqlite", "end", [(name,) for name in ENDINGS], [("COMMIT as SQL",), ("rollback",)])
@pytest.mark.parametrize("then", ["return", "raise", "lose"])
def test_a_body_that_ends_the_transaction_is_an_error(
    engine: Engine, inbox: StatusInbox, end: str, then: str
) -> None:
    """A body that commits or rolls back itself raises TransactionEnded, also if it raises an error of its own
    afterwards, or the connection is lost. If it has committed, the message halts, and no attempt commits the
    same writes again."""

    def body(connection: Any) -> None:
        accounts.add(connection)
        ENDINGS[end](connection)
        if then == "lose":
            connection.invalidate()
        if then != "return":
            fail()

    has_committed, errors = end != "rollback", []
    for _ in range(2):
        try:
            deliver(inbox, lambda claim: claim.transact("book", body))
        except TransactionEnded as error:
            errors.append(str(error))
    assert len(errors) == (1 if has_committed else 2 if then == "return" else 0)
    assert all(error.startswith("step='book'") for error in errors)
    record = stored(inbox.store)
    assert record.status is (Status.HALTED if has_committed else Status.FAILED)
    assert (record.pending_step or None) == ("book" if has_committed else None)
    assert accounts.total(engine) == has_committed


@on("sqlite")
def test_an_invalid_result_rolls_back(engine: Engine, inbox: StatusInbox) -> None:
    """A result that JSON cannot represent is an error that names the step, and the writes are rolled back."""

    def body(connection: Any) -> Any:
        accounts.add(connection)
        return object()

    with pytest.raises(InvalidResult, match=r"^step='book'"):
        deliver(inbox, lambda claim: claim.transact("book", body))
    assert accounts.total(engine) == 0


def test_a_lost_claim_writes_nothing(inbox: StatusInbox) -> None:
    """If the message is lost, `transact` raises LeaseLost without calling the body, even if the claim has not
    noticed yet."""
    calls: list[Any] = []

    def body(claim: Claim) -> None:
        release(inbox.store, CONSUMER, "a")
        assert inbox.store.claim(request()).verdict is Verdict.NEW
        claim.transact("book", calls.append)

    with pytest.raises(LeaseLost):
        deliver(inbox, body)
    assert calls == []
    assert stored(inbox.store).owner == "worker"


def test_nobody_takes_the_message_over_during_the_transaction(engine: Engine, inbox: StatusInbox) -> None:
    """A transaction that runs longer than the lease keeps the message: a claim during it waits, gets
    IN_FLIGHT or fails, and the lease is renewed at the end."""
    quick = status_inbox(inbox.store, lease=1.0)
    verdicts = []

    def claim_it() -> Verdict | None:
        try:
            return inbox.store.claim(request(lease=1.0)).verdict
        except (DBAPIError, StoreUnreachable):
            return None

    def body(claim: Claim) -> None:
        until = stored(inbox.store).lease_until
        assert until is not None

        def write(connection: Any) -> None:
            accounts.add(connection)
            wait_until(lambda: inbox.store.now() > until)
            task.append(Task(claim_it))
            time.sleep(0.3)

        task: list[Task[Verdict | None]] = []
        claim.transact("book", write)
        verdicts.append(task[0].result())

    assert deliver(quick, body).verdict is Verdict.NEW
    assert verdicts[0] in (Verdict.IN_FLIGHT, None)
    assert accounts.total(engine) == 1
    assert stored(inbox.store).status is Status.CONSUMED


@sources
def test_an_engine_that_commits_by_itself_is_refused(migrated: Database, source: str) -> None:
    """In AUTOCOMMIT mode nothing commits together with the step, so `transact` rejects it and does not call
    the body: on the store's own engine, on another one, and in a Session."""
    engine = migrated.engine(isolation_level="AUTOCOMMIT")
    store = SqlStore(engine if source == "own" else migrated.engine())
    given: dict[str, Any] = {"own": None, "engine": engine, "session": sessionmaker(engine)}
    calls: list[Any] = []
    with pytest.raises(UnusableConnection, match=r"^step='book': .*AUTOCOMMIT"):
        deliver(status_inbox(store), lambda claim: claim.transact("book", calls.append, source=given[source]))
    assert calls == []
    assert stored(store).steps is None


@on("redis", fixture="place")
def test_only_a_database_can_commit_with_the_step(store: Store) -> None:
    """A store that is not an SQL database rejects `transact`, and the error says what to use instead."""
    with pytest.raises(InvalidOption, match=r"transact: RedisStore.*use step"):
        deliver(status_inbox(store), lambda claim: claim.transact("book", fail))


def test_another_database(engine: Engine, inbox: StatusInbox, server: Server) -> None:
    """A source that is not the store's database is refused by name, and the body is not called."""
    elsewhere = Database(server, server.fresh_database())
    make_tables(elsewhere.url)
    with pytest.raises(InvalidOption, match="step='book': source= is not the store's database"):
        deliver(inbox, lambda claim: claim.transact("book", fail, source=elsewhere.engine()))
    elsewhere.close()


@on("postgresql")
def test_another_schema(postgres: Database, engine: Engine, inbox: StatusInbox) -> None:
    """The same for a schema of the store's database. But an engine of its own that sees a record which a late
    COMMIT has changed says what the store's engine says."""
    there = engine.execution_options(schema_translate_map={None: "elsewhere"})
    with there.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA elsewhere")
        metadata.create_all(connection)
    with pytest.raises(InvalidOption, match="source= is not the store's database, or not the same schema"):
        deliver(inbox, lambda claim: claim.transact("book", fail, source=there))

    def late(claim: Claim) -> None:
        with engine.begin() as connection:
            connection.execute(update(tables().status).values(claim=bytes(16)))
        claim.transact("book", fail, source=postgres.engine())

    with pytest.raises(LeaseLost):
        deliver(inbox, late)


@on(*WITH_WRITERS)  # SQLite has one writer: while a transaction writes nothing else does
def test_other_messages_keep_their_leases(migrated: Database) -> None:
    """While a transaction locks its message's record, heartbeats still renew the leases of all other
    messages, and its own `heartbeat` does not block on its own row."""
    engine = accounts.make(migrated.engine())
    inbox = StatusInbox("orders", store=SqlStore(engine), lease=3)

    def slow(connection: Connection) -> None:
        accounts.add(connection)
        time.sleep(4)
        claim.heartbeat()
        assert (claim.lost, other.lost) == (False, False)

    with inbox.claim("other") as other, inbox.claim("a") as claim:
        claim.transact("slow", slow)
        assert not claim.lost
    assert accounts.total(engine) == 1


def test_no_step_inside_a_transaction(sqlite: Database) -> None:
    """A step inside a transaction is rejected without being called, because it could not be recorded."""
    inbox = StatusInbox("orders", store=SqlStore(sqlite.engine()))
    with inbox.claim("a") as claim:
        with pytest.raises(InvalidOption, match="step='inner': step 'outer' is still running"):
            claim.transact("outer", lambda _: _step(claim))
        assert claim.step("inner", lambda: 1) == 1


def _step(claim: Claim) -> None:
    claim.step("inner", lambda: pytest.fail("it was called"))


@on("postgresql")
def test_another_transaction_locks_the_record_weakly(engine: Engine, inbox: StatusInbox) -> None:
    """A row that refers to the record is inserted meanwhile, which locks the record: the step commits."""

    def referring(connection: Connection) -> list[int]:
        with engine.begin() as other:
            other.execute(text("SELECT 1 FROM inbox_status FOR KEY SHARE"))
            return book(connection)

    claim = deliver(inbox, lambda claim: claim.transact("book", referring))
    assert claim.verdict is Verdict.NEW
    assert accounts.total(engine) == 1


@on("postgresql")
def test_a_step_that_begins_another_transaction(engine: Engine, inbox: StatusInbox) -> None:
    """The record of the step is not written in another transaction than the one that has locked it."""

    def chaining(connection: Connection) -> list[int]:
        book(connection)
        connection.execute(text("ROLLBACK AND CHAIN"))
        return book(connection)

    with pytest.raises(TransactionAborted):
        deliver(inbox, lambda claim: claim.transact("book", chaining))
    assert accounts.total(engine) == 0


@pytest.mark.parametrize("server", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("error", [ValueError, None])
def test_a_commit_inside_a_savepoint(
    engine: Engine, inbox: StatusInbox, error: type[Exception] | None
) -> None:
    """The savepoint cannot be ended: the message halts, because the first write is committed."""

    def committing(connection: Connection) -> None:
        accounts.add(connection)
        with connection.begin_nested():
            connection.execute(text("COMMIT AND CHAIN"))
            if error is not None:
                raise error

    with pytest.raises(TransactionEnded):
        deliver(inbox, lambda claim: claim.transact("book", committing))
    assert stored(inbox.store).status is Status.HALTED
    assert accounts.total(engine) == 1


@on("sqlite", *WITH_WRITERS, "mysqldb")
def test_an_interruption_after_a_commit(engine: Engine, inbox: StatusInbox) -> None:
    """The message halts, and the interruption goes on."""

    def interrupted(connection: Connection) -> None:
        accounts.add(connection)
        connection.execute(text("COMMIT"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deliver(inbox, lambda claim: claim.transact("book", interrupted))
    assert stored(inbox.store).status is Status.HALTED
    assert accounts.total(engine) == 1


@on("sqlite", "postgresql")
def test_a_hook_that_fails_after_the_commit(engine: Engine, inbox: StatusInbox) -> None:
    """The hook's error goes up, but the step has happened, and what is recorded later does not hide it."""
    source = sessionmaker(engine)

    @event.listens_for(source, "after_commit")
    def fail_once(_: Session) -> None:
        if not failures:
            failures.append(1)
            raise ZeroDivisionError

    def body(claim: Claim) -> None:
        first = not failures
        with pytest.raises(ZeroDivisionError) if first else nullcontext():
            claim.transact("book", book, source=source)
        claim.step("later", lambda: None)
        if first:
            fail()

    failures: list[int] = []
    deliver(inbox, body)
    assert deliver(inbox, body).verdict is Verdict.NEW
    assert accounts.total(engine) == 1


@on("sqlite", "postgresql", "mariadb")
def test_a_step_that_may_have_begun(
    engine: Engine, inbox: StatusInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a transaction is also right about an earlier step whose beginning got no answer."""
    write = inbox.store.write

    def lose_answer(held: HeldRecord, change: Change) -> bool:
        write(held, change)
        raise StoreUnreachable("it does not answer")

    def body(claim: Claim) -> None:
        monkeypatch.setattr(inbox.store, "write", lose_answer)
        with pytest.raises(StoreUnreachable):
            claim.step("charge", lambda: pytest.fail("it was called"), on_unknown="halt")
        monkeypatch.undo()
        assert stored(inbox.store).pending_step == "charge"
        claim.transact("book", book)
        assert stored(inbox.store).pending_step is None

    assert deliver(inbox, body).verdict is Verdict.NEW
    assert accounts.total(engine) == 1
