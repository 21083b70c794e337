"""The commit guard: a body that swallowed an error, or ended the transaction itself, does not count as a
success."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import product
from typing import Any

import pytest
from pymysql.constants import CLIENT
from sqlalchemy import Connection, Engine, create_engine, event, insert, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from inbox import Action, Inbox, SqlStore, StatusInbox, Verdict
from inbox.errors import MessageHalted, TransactionAborted, TransactionEnded, TransientError
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.constructs import Written
from tests.support.database import Database
from tests.support.deadlock import procedure
from tests.support.on_servers import BOTH_MYSQL, SYNC, each_on, on

pytestmark = pytest.mark.mysql

KEY = "transfer-1"
INBOX = Inbox("bookkeeping")


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with accounts."""
    return accounts.make(migrated.engine(), ["account 1", "cash"])


def deliver(source: "Engine | sessionmaker[Session]", body: Callable[[Any], object]) -> Verdict:
    """Deliver a message once; `body` runs if it is new."""
    with INBOX.transaction(source, KEY) as work:
        if work.is_new:
            body(work.session if isinstance(source, sessionmaker) else work.connection)
    return work.verdict


def swallow_integrity_error(connection: Connection) -> None:
    """A body that swallows a constraint error, as it must not do where an error aborts the transaction."""
    accounts.add(connection)
    with suppress(IntegrityError):
        accounts.open_account(connection)


@on(*SYNC)
def test_a_swallowed_constraint_error(engine: Engine) -> None:
    """On PostgreSQL a swallowed constraint error aborts the transaction: TransactionAborted, nothing is
    written, and the redelivered message runs. Elsewhere only the failed statement is undone, and the rest
    commits."""
    if engine.dialect.name == "postgresql":
        with pytest.raises(TransactionAborted):
            deliver(engine, swallow_integrity_error)
        assert accounts.total(engine) == 0
        assert deliver(engine, accounts.add) is Verdict.NEW
    else:
        assert deliver(engine, swallow_integrity_error) is Verdict.NEW
    assert deliver(engine, swallow_integrity_error) is Verdict.DUPLICATE
    assert accounts.total(engine) == 1


@on("postgresql", "sqlite")
def test_a_constraint_error_inside_a_savepoint_is_fine(engine: Engine) -> None:
    """A body that expects an error can use a savepoint: the rest commits on every database."""

    def careful(connection: Connection) -> None:
        accounts.add(connection)
        with suppress(IntegrityError), connection.begin_nested():
            accounts.open_account(connection)

    assert deliver(engine, careful) is Verdict.NEW
    assert accounts.total(engine) == 1


def test_a_handler_whose_transaction_aborted_is_not_retried(postgres: Database) -> None:
    """A handler does not retry TransactionAborted: the body would swallow the same error again."""
    engine, runs = postgres.engine(), []
    accounts.make(engine)

    @INBOX.handler(engine, key=str)
    def book(connection: Connection, message: str) -> None:
        runs.append(message)
        swallow_integrity_error(connection)

    with pytest.raises(TransactionAborted):
        book(KEY)
    assert runs == [KEY]
    assert accounts.total(engine) == 0


def test_a_swallowed_error_after_a_duplicate_is_told_too(postgres: Database) -> None:
    """A swallowed error raises TransactionAborted for a duplicate too: otherwise what the block wrote would
    be lost silently."""
    engine = accounts.make(postgres.engine())
    deliver(engine, lambda _: None)
    with pytest.raises(TransactionAborted), INBOX.transaction(engine, KEY) as work:  # noqa: PT012
        assert work.verdict is Verdict.DUPLICATE
        swallow_integrity_error(work.connection)


@on("sqlite")
def test_a_swallowed_error_that_rolled_back(engine: Engine) -> None:
    """In SQLite a constraint error can roll back the whole transaction, as a full disk does: the next
    statement raises TransactionAborted instead of beginning another transaction."""

    def body(connection: Connection) -> None:
        with suppress(IntegrityError):
            connection.execute(insert(Account).prefix_with("OR ROLLBACK"), [{"name": "cash", "total": 0}])
        accounts.add(connection)

    with pytest.raises(TransactionAborted):
        deliver(engine, body)
    assert accounts.total(engine) == 0
    assert deliver(engine, accounts.add) is Verdict.NEW


@on("sqlite")
def test_a_swallowed_flush_error(engine: Engine) -> None:
    """An ORM session rolls back when a flush fails, on every database: TransactionAborted, nothing is
    written, and the redelivered message runs."""

    def body(session: Session) -> None:
        session.add(Account(name="cash", total=5))
        with suppress(IntegrityError):
            session.flush()

    with pytest.raises(TransactionAborted):
        deliver(sessionmaker(engine), body)
    assert accounts.total(engine) == 0
    assert deliver(sessionmaker(engine), accounts.add) is Verdict.NEW
    assert accounts.total(engine) == 1


@on("sqlite")
def test_a_flush_error_at_the_end_comes_through(engine: Engine) -> None:
    """The session's last flush runs before the commit, so its error reaches the caller."""
    with pytest.raises(IntegrityError):
        deliver(sessionmaker(engine), lambda session: session.add(Account(name="cash", total=5)))
    assert accounts.total(engine) == 0
    assert deliver(engine, accounts.add) is Verdict.NEW


def commit(handle: Any) -> None:
    """End the transaction with a commit."""
    handle.commit()


def roll_back(handle: Any) -> None:
    """End the transaction with a rollback."""
    handle.rollback()


def commit_by_sql(handle: Any) -> None:
    """Commit without SQLAlchemy's knowledge."""
    handle.execute(text("COMMIT"))


def roll_back_by_sql(handle: Any) -> None:
    """Roll back without SQLAlchemy's knowledge."""
    handle.execute(text("ROLLBACK"))


def commit_and_begin_again(handle: Any) -> None:
    """Commit, and let SQLAlchemy begin another transaction."""
    handle.commit()
    accounts.add(handle, amount=100)


def commit_twice(handle: Any) -> None:
    """Commit, write again and commit again, so that nothing is pending at the end."""
    commit_and_begin_again(handle)
    handle.commit()


def _sql(handle: Any, statement: str) -> None:
    connection = handle.connection() if isinstance(handle, Session) else handle
    connection.execute(text(statement))


def commit_by_sql_and_go_on(handle: Any) -> None:
    """Commit, write again and commit again, without SQLAlchemy's knowledge."""
    _sql(handle, "COMMIT")
    accounts.add(handle, amount=100)
    _sql(handle, "COMMIT")


def roll_back_by_sql_and_go_on(handle: Any) -> None:
    """Roll back without SQLAlchemy's knowledge, and write something else."""
    _sql(handle, "ROLLBACK")
    accounts.add(handle, amount=100)


def commit_by_the_driver_and_go_on(handle: Any) -> None:
    """Commit through the driver, which not even the cursor notices, and go on."""
    connection = handle.connection() if isinstance(handle, Session) else handle
    connection.connection.commit()
    with suppress(TransactionEnded):  # a body that ignores the error
        accounts.add(handle, amount=100)
    accounts.add(handle, amount=100)


BY_SQLALCHEMY = [commit, commit_and_begin_again, commit_twice, roll_back]
UNNOTICED = [
    commit_by_sql,
    commit_by_sql_and_go_on,
    commit_by_the_driver_and_go_on,
    roll_back_by_sql,
    roll_back_by_sql_and_go_on,
]
"""Endings that only the driver's state tells, which each driver keeps in its own way."""


# 43 items: the product on SQLite, and 5 rows for each of the other drivers.
@each_on(
    "sqlite",
    "end,use_session",
    product([*BY_SQLALCHEMY, *UNNOTICED], [True, False]),
    product(UNNOTICED, [False]),
    among=SYNC,
)
def test_a_body_that_ends_the_transaction(
    engine: Engine, end: Callable[[Any], None], *, use_session: bool
) -> None:
    """A body that ends the transaction raises TransactionEnded. If it had committed, the next delivery is a
    DUPLICATE; if it had rolled back, the message runs again. Nothing that it wrote afterwards is kept, unless
    the driver does not tell the end and the body has committed that itself."""
    source = sessionmaker(engine) if use_session else engine
    more = 100 if engine.dialect.driver == "mysqldb" and end is commit_by_sql_and_go_on else 0

    def body(handle: Any) -> None:
        accounts.add(handle)
        end(handle)

    with pytest.raises(TransactionEnded):
        deliver(source, body)
    kept = 1 if end.__name__.startswith("commit") else 0
    assert accounts.total(engine) == kept + more
    assert deliver(source, accounts.add) is (Verdict.DUPLICATE if kept else Verdict.NEW)
    assert accounts.total(engine) == 1 + more


def deliver_step(source: "Engine | sessionmaker[Session]", body: Callable[[Any], Any]) -> Verdict:
    """Deliver a message once as a step of status-table mode."""
    engine = source if isinstance(source, Engine) else source.kw["bind"]
    with StatusInbox("calls", store=SqlStore(engine)).claim(KEY) as claim:
        claim.transact("book", lambda handle: body(handle) and None, source=source)
    return claim.verdict


def send_by_the_driver(handle: Any, *statements: str) -> None:
    """Send statements that SQLAlchemy does not see."""
    connection = handle.connection() if isinstance(handle, Session) else handle
    cursor = connection.connection.cursor()
    for statement in statements:
        cursor.execute(statement)


ADD = "UPDATE account SET total = total + 100 WHERE name = 'cash'"


def roll_back_by_the_driver(handle: Any) -> None:
    """Go on in another transaction, of which only the driver knows."""
    send_by_the_driver(handle, "ROLLBACK", "BEGIN", ADD)


def commit_by_the_driver(handle: Any) -> None:
    """The same after a commit."""
    send_by_the_driver(handle, "COMMIT", "BEGIN", ADD)


def roll_back_and_chain(handle: Any) -> None:
    """Roll back and begin another transaction in one statement."""
    _sql(handle, "ROLLBACK AND CHAIN")


def commit_and_chain(handle: Any) -> None:
    """Commit and begin another transaction in one statement; ignore that the next statement is refused."""
    _sql(handle, "COMMIT AND CHAIN")
    with suppress(TransactionEnded):
        accounts.add(handle, amount=100)


def commit_by_beginning(handle: Any) -> None:
    """On MySQL and MariaDB, BEGIN commits."""
    _sql(handle, "BEGIN")
    accounts.add(handle, amount=100)


def commit_by_autocommit(handle: Any) -> None:
    """On MySQL and MariaDB, this setting commits, and each later statement would."""
    _sql(handle, "SET autocommit = 1")
    with suppress(TransactionEnded):
        accounts.add(handle, amount=100)


def roll_back_and_chain_with_columns(handle: Any) -> None:
    """As a text of which SQLAlchemy knows the columns."""
    handle.execute(text("ROLLBACK AND CHAIN").columns())


def roll_back_and_chain_unknown(handle: Any) -> None:
    """By a construct that SQLAlchemy does not know."""
    handle.execute(Written("ROLLBACK AND CHAIN"))


BY_THE_DRIVER = [roll_back_by_the_driver, commit_by_the_driver]
BY_CHAIN = [roll_back_and_chain, commit_and_chain]


@pytest.mark.parametrize(
    ("server", "begin_again", "use_session"),
    [
        *product(["postgresql"], [*BY_THE_DRIVER, *BY_CHAIN], [True, False]),
        *product(["psycopg2"], [*BY_THE_DRIVER, *BY_CHAIN], [False]),
        *product([*BOTH_MYSQL, "mysqldb"], [commit_by_the_driver, *BY_CHAIN, commit_by_beginning], [False]),
        *product([*BOTH_MYSQL, "mysqldb"], [commit_by_autocommit], [False]),
        ("mariadb", roll_back_and_chain_with_columns, False),
        ("mariadb", roll_back_and_chain_unknown, False),
        *product(["sqlite"], BY_THE_DRIVER, [False]),
    ],
    indirect=["server"],
)
def test_a_body_that_begins_another_transaction(
    engine: Engine, begin_again: Callable[[Any], None], *, use_session: bool
) -> None:
    """If another transaction is open when the body ends, TransactionEnded is raised, and what was written in
    it is rolled back."""

    def body(handle: Any) -> None:
        accounts.add(handle)
        begin_again(handle)

    with pytest.raises(TransactionEnded):
        deliver(sessionmaker(engine) if use_session else engine, body)
    kept = 1 if begin_again.__name__.startswith("commit") else 0
    assert accounts.total(engine) == kept
    assert deliver(engine, accounts.add) is (Verdict.DUPLICATE if kept else Verdict.NEW)
    assert accounts.total(engine) == 1


@pytest.mark.parametrize("swallows", [True, False])
@pytest.mark.parametrize(
    ("server", "begin_again"),
    [
        *product(["postgresql", "psycopg2"], [commit_and_chain]),
        *product(["mariadb"], [*BY_CHAIN, commit_by_the_driver]),
        *product(["sqlite"], BY_THE_DRIVER),
    ],
    indirect=["server"],
)
def test_another_transaction_inside_a_savepoint(
    engine: Engine, begin_again: Callable[[Any], None], *, swallows: bool
) -> None:
    """The savepoint cannot be ended then. If a commit was the reason, TransactionEnded is raised, also if the
    body swallows that error; after a rollback, the redelivered message runs."""

    def body(connection: Connection) -> None:
        accounts.add(connection)
        with suppress(DBAPIError) if swallows else nullcontext(), connection.begin_nested():
            begin_again(connection)

    is_kept = begin_again.__name__.startswith("commit")
    undone = TransactionAborted if swallows else DBAPIError
    with pytest.raises(TransactionEnded if is_kept else undone):
        deliver(engine, body)
    assert accounts.total(engine) == is_kept
    assert deliver(engine, accounts.add) is (Verdict.DUPLICATE if is_kept else Verdict.NEW)
    assert accounts.total(engine) == 1


def raise_passing(_: Any) -> None:
    raise TransientError


def lose_the_connection(handle: Any) -> None:
    connection = handle.connection() if isinstance(handle, Session) else handle
    connection.invalidate()
    raise ValueError


def take_another(handle: Any) -> None:
    Inbox("other").accept(handle, "b")


@pytest.mark.parametrize(
    ("server", "end", "then", "use_session"),
    [
        ("sqlite", commit, raise_passing, False),
        ("sqlite", commit, raise_passing, True),
        ("sqlite", commit, take_another, False),
        ("sqlite", commit_by_the_driver, lose_the_connection, False),
        ("postgresql", commit_by_the_driver, lose_the_connection, True),
        ("sqlite", roll_back, raise_passing, True),
        ("sqlite", roll_back_by_sql, raise_passing, False),
        ("postgresql", commit_by_the_driver, raise_passing, False),
        *product(["mariadb", "mysqldb"], [commit_by_beginning], [raise_passing], [False]),
    ],
    indirect=["server"],
)
def test_a_body_that_ends_the_transaction_and_raises(
    engine: Engine, end: Callable[[Any], None], then: Callable[[Any], None], *, use_session: bool
) -> None:
    """If a body has committed and then raises, even a passing error or one of an inbox, the message is not
    tried again, by the handler or by the broker: it would be a duplicate, and the rest would be lost. After a
    rollback it is."""
    narrow, runs = create_engine(engine.url, pool_size=1, max_overflow=0), []

    @INBOX.handler(sessionmaker(narrow) if use_session else narrow, key=str)
    def body(handle: Any, message: str) -> None:
        runs.append(message)
        accounts.add(handle)
        if len(runs) == 1:
            end(handle)
            then(handle)

    decision = INBOX.listener().decide([KEY], body)[0]
    narrow.dispose()
    assert accounts.total(engine) == 1
    if end.__name__.startswith("commit"):
        assert (decision.action, len(runs)) == (Action.DEAD_LETTER, 1)
        assert decision.reason.startswith("TransactionEnded: the ")
    else:
        assert (decision.action, len(runs)) == (Action.ACK, 2)


@on("sqlite")
@pytest.mark.parametrize("error", [ValueError("no"), DBAPIError("SELECT 1", {}, TransientError())], ids=repr)
def test_nobody_can_be_asked_about_the_end(engine: Engine, error: Exception) -> None:
    """While the database takes no connection, a body that has committed and raises is never taken for one
    that has finished: with an error of its own at once, after one of the database when the next attempt finds
    the row."""
    narrow, refusals = create_engine(engine.url, pool_size=1, max_overflow=0), [6]
    runs: list[str] = []

    @event.listens_for(narrow, "do_connect")
    def refuse(*_: Any) -> None:
        if runs and refusals[0]:
            refusals[0] -= 1
            refusal = sqlite3.OperationalError("database is locked")
            refusal.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise refusal

    @INBOX.handler(narrow, key=str)
    def body(connection: Connection, message: str) -> None:
        runs.append(message)
        accounts.add(connection)
        connection.exec_driver_sql("COMMIT")
        raise error

    decision = INBOX.listener().decide([KEY], body)[0]
    narrow.dispose()
    assert decision.action is Action.DEAD_LETTER
    assert (len(runs), accounts.total(engine)) == (1, 1)


@on("mariadb", "mysqldb")
def test_several_statements_at_once(engine: Engine) -> None:
    """A driver may be set to send a text with several statements: the first one does not tell all."""
    options = {"client_flag": CLIENT.MULTI_STATEMENTS} if engine.dialect.driver == "pymysql" else {}
    several = create_engine(engine.url, connect_args=options)
    with pytest.raises(TransactionEnded):
        deliver(several, lambda connection: _sql(connection, f"SELECT 1; ROLLBACK; BEGIN; {ADD}"))
    several.dispose()
    assert accounts.total(engine) == 0


@on("postgresql", "mariadb", "sqlite", "psycopg2", "mysqldb")
def test_a_body_may_use_the_driver(engine: Engine) -> None:
    """A body that uses the driver, savepoints and SQL of its own, and ends nothing, commits."""

    def body(connection: Connection) -> None:
        with connection.begin_nested():
            send_by_the_driver(connection, ADD)
        connection.execute(text("SAVEPOINT other"))
        connection.execute(text(ADD))
        connection.execute(text("ROLLBACK TO SAVEPOINT other"))
        send_by_the_driver(connection, "SAVEPOINT own", ADD, "RELEASE SAVEPOINT own")

    assert deliver(engine, body) is Verdict.NEW
    assert accounts.total(engine) == 200
    assert deliver(engine, body) is Verdict.DUPLICATE


@pytest.mark.parametrize("begin_again", [*BY_THE_DRIVER, *BY_CHAIN])
def test_where_the_mark_is_hidden(postgres: Database, begin_again: Callable[[Any], None]) -> None:
    """If each transaction of a role already has the setting that marks ours, a savepoint is the mark."""
    engine = accounts.make(postgres.engine())
    options = {"options": "-c default_transaction_read_only=on"}
    role = create_engine(engine.url, connect_args=options).execution_options(postgresql_readonly=False)
    assert deliver(role, accounts.add) is Verdict.NEW
    with pytest.raises(TransactionEnded), INBOX.transaction(role, "another") as work:
        begin_again(work.connection)
    role.dispose()


IMPLICIT = ["CREATE TABLE more (id INTEGER)", "TRUNCATE TABLE account"]


@each_on(
    "mariadb",
    "statement,deliver,use_session",
    product(IMPLICIT, [deliver, deliver_step], [True, False]),
    [(statement, deliver, False) for statement in IMPLICIT],
    among=BOTH_MYSQL,
)
def test_ddl_that_commits(engine: Engine, statement: str, deliver: Any, *, use_session: bool) -> None:
    """MySQL and MariaDB commit before a DDL statement: the next statement raises TransactionEnded and is not
    sent, so the second half of a body never runs after a first half that can no longer be rolled back."""
    sent: list[str] = []

    def body(handle: Any) -> None:
        handle.execute(text(statement))
        event.listen(engine, "before_cursor_execute", lambda *call: sent.append(call[2]))
        accounts.add(handle, amount=100)

    with pytest.raises(TransactionEnded):
        deliver(sessionmaker(engine) if use_session else engine, body)
    assert not [each for each in sent if "UPDATE account" in each]


FAILING = [
    "CREATE TABLE account (id INTEGER)",
    "ALTER TABLE account DROP COLUMN missing",
    "TRUNCATE TABLE missing",
    "LOCK TABLES missing WRITE",
    "CALL commits_and_fails()",
]
"""Statements that fail when they have committed. The error as the server's answer does not tell."""


@pytest.fixture
def _procedure(engine: Engine) -> Iterator[None]:
    """A procedure that commits, and then fails."""
    body = "BEGIN COMMIT; SIGNAL SQLSTATE '45000'; END"
    with procedure(engine, "commits_and_fails", body):
        yield


def fails(handle: Any, statement: str) -> None:
    """As a text of the body's."""
    handle.execute(text(statement))


def fails_in_savepoint(handle: Any, statement: str) -> None:
    """In a savepoint, which the body believes to protect it."""
    with handle.begin_nested():
        _sql(handle, statement)


@pytest.mark.usefixtures("_procedure")
@each_on(
    "mariadb",
    "statement,send,deliver,swallows",
    [
        *product(FAILING, [fails_in_savepoint], [deliver, deliver_step], [True, False]),
        *product(FAILING[:1], [fails, send_by_the_driver], [deliver, deliver_step], [True, False]),
    ],
    among=BOTH_MYSQL,
)
def test_a_statement_that_commits_and_fails(
    engine: Engine, statement: str, send: Callable[[Any, str], None], deliver: Any, *, swallows: bool
) -> None:
    """A statement that fails may have committed before, also in a savepoint: TransactionEnded, whether the
    body goes on or not, and nothing that follows is kept."""

    def body(handle: Any) -> None:
        accounts.add(handle)
        with suppress(Exception) if swallows else nullcontext():
            send(handle, statement)
        accounts.add(handle, amount=100)

    with pytest.raises(TransactionEnded):
        deliver(engine, body)
    assert accounts.total(engine) == 1
    with pytest.raises(MessageHalted) if deliver is deliver_step else nullcontext():
        assert deliver(engine, accounts.add) is Verdict.DUPLICATE
    assert accounts.total(engine) == 1


@on("sqlite")
def test_the_callers_own_connection(engine: Engine) -> None:
    """A session bound to a Connection, as in many test suites, leaves nothing on it: the Connection goes on,
    in the same transaction or in another one."""
    with engine.connect() as connection:
        for number in range(3):
            source = sessionmaker(connection, join_transaction_mode="create_savepoint")
            with Inbox("bookkeeping").transaction(source, f"transfer-{number}") as work:
                accounts.add(work.session)
        connection.commit()
        assert type(connection) is Connection
        accounts.add(connection)
        connection.commit()
    assert accounts.total(engine) == 4


@pytest.mark.parametrize("end", [None, RuntimeError], ids=["commits", "fails"])
@on("sqlite")
def test_a_transaction_inside_another_one(engine: Engine, end: type[Exception] | None) -> None:
    """However the inner transaction ends, the outer connection accepts no statement after its own transaction
    has ended."""

    def body(connection: Connection) -> None:
        source = sessionmaker(connection, join_transaction_mode="create_savepoint")
        with suppress(RuntimeError), INBOX.transaction(source, "inner") as work:
            accounts.add(work.session)
            if end is not None:
                raise end
        connection.exec_driver_sql("ROLLBACK")
        accounts.add(connection, amount=100)

    with pytest.raises(TransactionEnded):
        deliver(engine, body)
    assert accounts.total(engine) == 0


def test_a_body_that_detaches_its_connection(engine: Engine) -> None:
    """A body may take its connection out of the pool; its end is found all the same."""

    def body(connection: Connection) -> None:
        connection.detach()
        accounts.add(connection)

    assert deliver(engine, body) is Verdict.NEW
    assert accounts.total(engine) == 1


@on("sqlite")
def test_a_body_that_closes_its_connection(engine: Engine) -> None:
    """Closing the connection rolls back: TransactionEnded, nothing is written, and the redelivered message
    runs."""
    with pytest.raises(TransactionEnded):
        deliver(engine, lambda connection: connection.close())
    assert deliver(engine, accounts.add) is Verdict.NEW
    assert accounts.total(engine) == 1
