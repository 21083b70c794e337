"""If the server has ended the pool's connections, code that begins its own transactions does not notice. A
connection that somebody else loses, or that is lost while it is opened, costs a retry."""

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, func, make_url, select, text
from sqlalchemy.exc import InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from inbox import Inbox, SqlStore, StatusInbox, Verdict, is_transient, purge
from inbox.errors import CommitLost, TransientError
from inbox.schema import tables
from outbox import Relay, pause
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, each_on, on
from tests.support.outbox_publishers import Recorder, publish
from tests.support.processes import wait_until
from tests.support.several_databases import Prepared, other, replica
from tests.support.status_mode.asynchronous import in_loop
from tests.support.together import Task

__all__ = ["other", "replica"]

pytestmark = pytest.mark.mysql

POOLED = 3
WORKING = (*WITH_WRITERS, "psycopg2", "mysqldb")

OWN = {"postgresql": "pg_backend_pid()", "mariadb": "connection_id()", "mysql": "connection_id()"}
END = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL {}", "mysql": "KILL {}"}


def claims(engine: Engine) -> None:
    with StatusInbox("billing", store=SqlStore(engine)).claim("a") as claim:
        assert claim.is_new


def relays(engine: Engine) -> None:
    assert Relay(engine, Recorder()).run_once() == 1


def pauses(engine: Engine) -> None:
    pause(engine, "orders")


def purges(engine: Engine) -> None:
    assert purge(engine).finished


@each_on(
    "postgresql",
    "work",
    [(claims,), (relays,), (pauses,), (purges,)],
    [(claims,)],
    among=WORKING,
)
def test_connections_that_have_ended(migrated: Database, work: Callable[[Engine], None]) -> None:
    """Code that begins its own transactions succeeds on a pool whose connections the server has ended."""
    publish(migrated.engine(), "a1")
    engine = migrated.engine(pool_size=POOLED)
    with ExitStack() as pool:
        connections = [pool.enter_context(engine.connect()) for _ in range(POOLED)]
        own = text(f"SELECT {OWN[migrated.name]}")
        ids = [connection.execute(own).scalar_one() for connection in connections]
    end(migrated, ids)
    work(engine)


def end(database: Database, ids: Iterable[object]) -> None:
    """Have the server end these connections."""
    with database.engine().connect() as killer:
        for each in ids:
            killer.execute(text(END[database.name].format(each)))


@on(*WITH_WRITERS)
def test_a_listener_whose_connection_ends(migrated: Database) -> None:
    """The message's own transaction is given up, so that nobody waits for its lock; the handler goes on."""
    engine = accounts.make(migrated.engine())
    elsewhere, runs = migrated.engine(), list[str]()

    @event.listens_for(engine, "commit")
    def audit(_: Connection) -> None:
        if len(runs) == 1:
            with elsewhere.connect() as connection:
                end(migrated, [connection.execute(text(f"SELECT {OWN[migrated.name]}")).scalar_one()])
                wait_until(lambda: connection.execute(text("SELECT 1")) is None)

    @Inbox("bookkeeping", wait=3600).handler(engine, key=str)
    def book(connection: Connection, message: str) -> None:
        runs.append(message)
        accounts.add(connection)

    assert Task(lambda: book("a")).result().verdict is Verdict.NEW
    assert accounts.total(engine) == 1


@on(*WITH_WRITERS)
def test_a_listener_whose_connection_ends_in_a_callers_transaction(migrated: Database) -> None:
    """The caller's connection and its transaction go on."""
    engine = accounts.make(migrated.engine())
    with engine.begin() as connection:
        accounts.add(connection)
        source = sessionmaker(connection, join_transaction_mode="create_savepoint")

        @event.listens_for(source, "before_commit")
        def audit(_: Session) -> None:
            with migrated.engine().connect() as elsewhere:
                end(migrated, [elsewhere.execute(text(f"SELECT {OWN[migrated.name]}")).scalar_one()])
                wait_until(lambda: elsewhere.execute(text("SELECT 1")) is None)

        with pytest.raises(OperationalError), Inbox("bookkeeping").transaction(source, "a") as work:
            accounts.add(work.session, amount=10)
        accounts.add(connection)
    assert accounts.total(engine) == 2


@on("mariadb")
def test_two_phases_whose_second_database_ends(migrated: Database, other: Database) -> None:
    """Only its own transaction stays prepared; the message's is committed or rolled back."""
    engine, second = migrated.engine(), other.engine()
    source = sessionmaker(engine, binds={Account: second}, twophase=True)
    prepared, lost = Prepared(engine), Prepared(second)
    numbers: list[Any] = []
    is_first: list[bool] = []
    event.listen(engine, "commit_twophase", lambda *_: is_first.append(False))

    @event.listens_for(second, "commit_twophase")
    def lose(*_: object) -> None:
        while numbers:
            is_first.append(True)
            end(migrated, [numbers.pop()])

    inbox = Inbox("bookkeeping", wait=1)
    for key in map(str, range(50)):  # SQLAlchemy commits them in any order
        is_first.clear()
        with suppress(CommitLost), inbox.transaction(source, key) as work:
            accounts.add(work.session)
            own = select(func.connection_id())
            numbers.append(work.session.scalar(own, bind_arguments={"mapper": Account}))
        assert prepared.left() == []
        assert len(lost.left()) == 1
        lost.roll_back()
        if is_first[0]:
            break
    assert is_first[0]
    with inbox.transaction(source, key) as work:
        assert work.verdict is Verdict.NEW


@on(*WITH_WRITERS)
def test_a_reader_whose_connection_ends(migrated: Database, replica: Database) -> None:
    """A session whose other database is lost is retried: nobody says that it has written there."""
    runs, leader = list[str](), {"clause": tables().message}

    @Inbox("bookkeeping").handler(sessionmaker(migrated.engine(), binds={Account: replica.engine()}), key=str)
    def book(session: Session, message: str) -> None:
        runs.append(message)
        session.execute(text("UPDATE account SET total = total + 1"), bind_arguments=leader)
        session.scalars(select(Account)).all()
        if len(runs) == 1:
            reader = {"mapper": Account}
            own = text(f"SELECT {OWN[migrated.name]}")
            end(migrated, [session.execute(own, bind_arguments=reader).scalar_one()])

    assert book("a").verdict is Verdict.NEW
    assert len(runs) == 2
    assert accounts.total(migrated.engine()) == 1


@on("postgresql", "mariadb", "psycopg2", "mysqldb")
@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("way", ["engine", "session", "step"])
def test_a_body_that_goes_on(migrated: Database, way: str, goes_on: bool) -> None:
    """A body that lets a savepoint of its own fail, and so swallows that its connection is lost, gets a
    transient error."""
    engine, runs = accounts.make(migrated.engine()), list[int]()

    def book(handle: Connection | Session) -> None:
        runs.append(1)
        accounts.add(handle)
        with suppress(SQLAlchemyError), handle.begin_nested():
            if len(runs) == 1:
                end(migrated, [handle.execute(text(f"SELECT {OWN[migrated.name]}")).scalar_one()])
            accounts.add(handle, amount=0)
        if goes_on:
            accounts.add(handle, amount=0)

    if way == "step":
        inbox = StatusInbox("billing", store=SqlStore(engine))
        with pytest.raises(TransientError), inbox.claim("a") as claim:
            claim.transact("book", book)
        with inbox.claim("a") as claim:
            claim.transact("book", book)
    else:
        source: Any = engine if way == "engine" else sessionmaker(engine)
        handler = Inbox("billing").handler(source, key=str)(lambda handle, _: book(handle))
        assert handler("a").verdict is Verdict.NEW
    assert len(runs) == 2
    assert accounts.total(engine) == 1


@on("mysql")
@in_loop
async def test_a_connection_that_is_lost_while_it_is_opened(migrated: Database) -> None:
    """The driver does not understand half of an answer. That is as transient as any lost connection."""
    address = migrated.url.host, migrated.url.port
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opened = threading.Thread(target=half_open, args=(listener, address), daemon=True)
        opened.start()
        url = make_url(migrated.async_url).set(host="127.0.0.1", port=listener.getsockname()[1])
        engine = create_async_engine(url)
        with pytest.raises(InternalError) as caught:
            await engine.connect()
        await engine.dispose()
        opened.join()
    assert is_transient(caught.value)


def half_open(listener: socket.socket, address: Any) -> None:
    """Pass on what a server answers to a client, but to the server only that the client has gone away."""
    client, _ = listener.accept()
    with client, socket.create_connection(address) as server:
        client.sendall(server.recv(65_536))
        client.recv(65_536)
        server.shutdown(socket.SHUT_WR)
        while answer := server.recv(65_536):
            client.sendall(answer)
