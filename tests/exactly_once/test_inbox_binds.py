"""Sessions with several databases: the message is taken in the database that the session writes to, or
nothing is committed."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from examples.embedded_postgres import EmbeddedPostgres
from inbox import AsyncInbox, Claim, Inbox, SqlStore, StatusInbox, Verdict
from inbox.errors import InvalidOption, TransactionAborted, UnusableConnection
from inbox.schema import tables
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.database import Database, make_tables
from tests.support.on_servers import BOTH_MYSQL, each_on, on
from tests.support.several_databases import Prepared, balance, other, recipe, replica
from tests.support.status_mode.asynchronous import in_loop
from tests.support.status_mode.stores import status_inbox

__all__ = ["other", "replica"]

INBOX = Inbox("bookkeeping")
KEY = "transfer-1"
NEW, DUPLICATE = Verdict.NEW, Verdict.DUPLICATE


def verdict(database: Database, inbox: Inbox = INBOX) -> Verdict:
    """The verdict of a redelivery, which takes the message if it is new."""
    with database.engine().begin() as connection:
        return inbox.accept(connection, KEY)


def swallow(session: Session) -> None:
    """A body that swallows an error in the second database and, at least on PostgreSQL, loses its write
    there."""
    accounts.add(session)
    with suppress(DBAPIError):
        session.execute(insert(Account), [{"name": "cash", "total": 1}])


def fail(session: Session) -> None:
    """A body that raises after it has written."""
    accounts.add(session)
    raise ZeroDivisionError


def add_late(session: Session) -> None:
    """A body whose write to the second database is flushed only at commit."""
    session.add(Account(name="new", total=1))


@each_on("sqlite", "body", [(swallow,), (accounts.add,), (add_late,)], [(swallow,), (accounts.add,)])
def test_a_body_that_writes_to_a_second_database(migrated: Database, other: Database, body: Any) -> None:
    """The handler raises before either database commits anything, and the redelivery is NEW."""
    source = sessionmaker(migrated.engine(), binds={Account: other.engine()})
    handler = INBOX.handler(source, key=str)(lambda session, message: body(session))
    with pytest.raises((UnusableConnection, TransactionAborted), match="nothing was"):
        handler(KEY)
    assert accounts.totals(other.engine()) == {"cash": 0}
    assert verdict(migrated) is NEW


Take = Callable[[Session, dict[str, Any]], Verdict]
TAKES: list[Take] = [
    lambda session, given: INBOX.accept(session, KEY, **given),
    lambda session, given: INBOX.take(session, KEY, **given).verdict,
    lambda session, given: INBOX.accept_many(session, [KEY], **given)[0],
]


@each_on("sqlite", "take", [(take,) for take in TAKES], [(TAKES[0],)])
def test_a_transaction_of_the_callers_own(migrated: Database, other: Database, take: Take) -> None:
    """If the transaction is the caller's own, its commit raises before either database commits anything."""
    with Session(migrated.engine(), binds={Account: other.engine()}) as session:
        assert take(session, {}) is NEW
        accounts.add(session)
        with pytest.raises(UnusableConnection, match="nothing was committed"):
            session.commit()
    assert balance(other) == 0
    assert verdict(migrated) is NEW


@on("mariadb")
@pytest.mark.parametrize("then", ["nothing", "an error", "an unread answer", "a lost connection"])
def test_a_second_database_that_answers_with_rows(migrated: Database, other: Database, then: str) -> None:
    """From such an answer PyMySQL does not learn that it is in a transaction, so the server is asked. It may
    also be that nobody can tell."""
    second = other.engine()
    with second.begin() as connection:
        accounts.add(connection, amount=0)
    with Session(migrated.engine(), binds={Account: second}) as session:
        assert INBOX.accept(session, KEY) is NEW
        session.scalars(insert(Account).returning(Account.name), [{"name": "new", "total": 1}]).one()
        given: dict[str, Any] = {"bind_arguments": {"mapper": Account}}
        if then == "an error":
            with pytest.raises(ProgrammingError):
                session.execute(text("SELECT * FROM missing"), **given)
        if then == "an unread answer":
            session.execute(text("SELECT 1"), execution_options={"stream_results": True}, **given)
        if then == "a lost connection":
            number = session.scalar(select(func.connection_id()), **given)
            with second.connect() as killer:
                killer.execute(text(f"KILL {number}"))
        with pytest.raises(DBAPIError if then == "a lost connection" else UnusableConnection):
            session.commit()
    assert accounts.totals(second) == {"cash": 0}
    assert verdict(migrated) is NEW


@on("mariadb")
@pytest.mark.parametrize("begins", [True, False])
def test_a_second_database_in_autocommit_mode(migrated: Database, other: Database, begins: bool) -> None:
    """It has nothing to commit, unless a text has begun a transaction."""
    reader = other.engine(isolation_level="AUTOCOMMIT")
    with Session(migrated.engine(), binds={Account: reader}) as session:
        assert INBOX.accept(session, KEY) is NEW
        if begins:
            session.execute(text("START TRANSACTION"), bind_arguments={"mapper": Account})
            session.execute(update(Account).values(total=1))
        session.scalars(select(Account)).all()
        with pytest.raises(UnusableConnection) if begins else nullcontext():
            session.commit()
    assert verdict(migrated) is (NEW if begins else DUPLICATE)
    assert balance(other) == 0


@on("sqlite")
@pytest.mark.parametrize("take", TAKES, ids=["accept", "take", "accept_many"])
def test_a_session_that_reads_from_replicas(migrated: Database, replica: Database, take: Take) -> None:
    """With SQLAlchemy's recipe for replicas, the message is taken on the leader, in the same transaction as
    the flushed objects."""
    leader, followers = migrated.engine(), [replica.engine()]
    with recipe(leader, followers)() as session:
        assert session.scalar(select(Account.total)) == 0
        assert take(session, {}) is NEW
        session.add(Account(name="new", total=1))
        session.commit()
    assert accounts.totals(leader) == {"cash": 0, "new": 1}
    assert verdict(migrated) is DUPLICATE


@on("sqlite")
def test_a_handler_that_reads_from_replicas(migrated: Database, replica: Database) -> None:
    """A handler takes the message on the leader too, and `work.connection` is the leader's; so do steps of
    status-table mode."""
    leader = migrated.engine()
    source = sessionmaker(class_=recipe(leader, [replica.engine()]))
    with INBOX.transaction(source, KEY) as work:
        assert work.connection.engine is leader
        assert work.session.scalar(select(Account.total)) == 0
        work.session.add(Account(name="new", total=1))
        work.result = 7
    assert INBOX.handler(source, key=str)(lambda session, message: None)(KEY).result == 7

    def body(claim: Claim, message: str) -> None:
        claim.transact("book", lambda session: session.add(Account(name="too", total=1)), source=source)

    inbox = StatusInbox("calls", store=SqlStore(leader))
    assert inbox.handler(key=str)(body)(KEY).verdict is NEW
    assert accounts.totals(leader) == {"cash": 0, "new": 1, "too": 1}


@on("sqlite")
def test_a_step_that_writes_to_a_second_database(migrated: Database, other: Database) -> None:
    """`transact` raises before anything is committed, and the step is not recorded."""
    source = sessionmaker(migrated.engine(), binds={Account: other.engine()})
    inbox = StatusInbox("calls", store=SqlStore(migrated.engine()))
    with inbox.claim(KEY) as claim:
        for name in ("first", "second"):
            with pytest.raises(UnusableConnection):
                claim.transact(name, accounts.add, source=source)
    assert balance(other) == 0


@on("sqlite")
def test_the_bind_can_be_named(migrated: Database, other: Database) -> None:
    """`bind_arguments` names the inbox's database, as for `Session.execute`; without a session it is
    rejected."""
    engine = migrated.engine()
    given: dict[str, Any] = {"bind_arguments": {"mapper": Account}}
    source = sessionmaker(other.engine(), binds={Account: engine})
    handler = INBOX.handler(source, key=str, **given)(lambda session, message: accounts.add(session))
    assert [handler(KEY).verdict, handler(KEY).verdict] == [NEW, DUPLICATE]
    for take in TAKES:
        with source() as session:
            accounts.add(session)
            assert take(session, given) is DUPLICATE
            session.commit()
    assert balance(migrated) == 4
    with engine.begin() as connection, pytest.raises(InvalidOption, match="bind_arguments="):
        INBOX.accept(connection, KEY, **given)
    with pytest.raises(InvalidOption, match="bind_arguments="), INBOX.transaction(engine, KEY, **given):
        pytest.fail("began")


@on("postgresql", "sqlite")  # the others cannot tell that nothing was written
@in_loop
async def test_async_sessions(migrated: Database, other: Database) -> None:
    """An AsyncSession behaves the same: it is routed, takes `bind_arguments`, or is rejected."""
    first, second = create_async_engine(migrated.async_url), create_async_engine(other.async_url)
    inbox = AsyncInbox("bookkeeping")
    routing = async_sessionmaker(sync_session_class=recipe(first.sync_engine, [second.sync_engine]))
    async with inbox.transaction(routing, "routed") as work:
        assert work.connection.sync_engine is first.sync_engine
        assert await work.session.scalar(select(Account.total)) == 0
        work.session.add(Account(name="new", total=1))
    async with routing() as session:
        assert await inbox.accept(session, "routed") is DUPLICATE
        assert (await inbox.take(session, "routed")).verdict is DUPLICATE
        assert await inbox.accept_many(session, ["routed"]) == [DUPLICATE]
    binds = async_sessionmaker(second, binds={Account: first})
    async with inbox.transaction(binds, "named", bind_arguments={"mapper": Account}) as work:
        await accounts.add_async(work.session)
    with pytest.raises(UnusableConnection):
        async with inbox.transaction(async_sessionmaker(first, binds={Account: second}), KEY) as work:
            await accounts.add_async(work.session)
    async with AsyncSession(first) as session:
        assert await inbox.accept_many(session, ["named", KEY]) == [DUPLICATE, NEW]
    await first.dispose()
    await second.dispose()
    assert accounts.totals(migrated.engine()) == {"cash": 1, "new": 1}
    assert balance(other) == 0


@on("sqlite")
def test_a_bind_that_names_our_table(migrated: Database, other: Database) -> None:
    """A session may list the inbox's table in its binds, like the application's own tables."""
    binds: dict[Any, Any] = {tables().message: migrated.engine()}
    with Session(other.engine(), binds=binds) as session:
        assert INBOX.accept(session, KEY) is NEW
        session.commit()
    assert verdict(migrated) is DUPLICATE


def test_two_phases() -> None:
    """With two-phase commit a session may write to two databases. If the body swallowed an error on the
    second one, where PREPARE would silently keep nothing, this is detected before anything is prepared."""
    with EmbeddedPostgres({"max_prepared_transactions": "4"}) as server:  # the default is 0
        first, second = create_engine(server.url), create_engine(server.database("second"))
        make_tables(server.url)
        for engine in (first, second):
            accounts.make(engine)
        source = sessionmaker(first, binds={Account: second}, twophase=True)
        with pytest.raises(TransactionAborted), INBOX.transaction(source, KEY) as work:
            swallow(work.session)
        for verdict_expected in (NEW, DUPLICATE):
            with INBOX.transaction(source, KEY) as work:
                assert work.verdict is verdict_expected
                accounts.add(work.session)
        assert accounts.total(second) == 2
        first.dispose()
        second.dispose()


@on(*BOTH_MYSQL)
@pytest.mark.parametrize("name", ["one", "two"])
def test_two_phases_on_mysql(migrated: Database, other: Database, name: str) -> None:
    """On MySQL and MariaDB, where SQLAlchemy sends PREPARE, COMMIT and ROLLBACK as statements, neither a
    commit nor a rollback leaves a prepared transaction and its locks behind."""
    first, second = migrated.engine(), other.engine()
    prepared = Prepared(first), Prepared(second)
    binds: dict[Any, Any] = {Account: second} if name == "two" else {}
    source = sessionmaker(first, binds=binds, twophase=True)
    with pytest.raises(ZeroDivisionError), INBOX.transaction(source, KEY) as work:
        fail(work.session)
    for verdict_expected in (NEW, DUPLICATE):
        with INBOX.transaction(source, KEY) as work:
            assert work.verdict is verdict_expected
            if work.is_new:
                accounts.add(work.session)
    with status_inbox(SqlStore(first)).claim(KEY) as claim:
        claim.transact("book", accounts.add, source=source)
    assert [each.left() for each in prepared] == [[], []]
    assert balance(other if name == "two" else migrated) == 2
