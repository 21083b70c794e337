"""Publishing on an ORM Session whose transaction something else ends: by text, through the driver, by DDL, or
the server itself. No message is lost, or sent for rows that were undone, without an error."""

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import psycopg.sql
import pymysql
import pytest
from sqlalchemy import Connection, Engine, event, insert, select, text
from sqlalchemy.exc import (
    DBAPIError,
    OperationalError,
)
from sqlalchemy.orm import Session

from outbox.errors import TransactionEnded
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.constructs import Written
from tests.support.deadlock import ACCOUNTS, ADDS, heavier_transaction, procedure
from tests.support.on_servers import each_on, on
from tests.support.processes import wait_until
from tests.support.published import publish, texts
from tests.support.together import Task

# What SQLAlchemy's sessions do depends on no database, except that an error aborts PostgreSQL's transaction.
on_two = on("sqlite", "postgresql")


def commit_text(session: Session) -> None:
    """Only SQLAlchemy's COMMIT writes the messages, so that this one is refused."""
    session.execute(text("COMMIT"))


def roll_back_text(session: Session) -> None:
    """The COMMIT is of another transaction than the business row's."""
    session.execute(text("ROLLBACK"))
    session.commit()


def go_on(session: Session) -> None:
    """The next statement would begin it."""
    session.execute(text("ROLLBACK"))
    session.execute(text("SELECT 1"))


def commit_driver(session: Session) -> None:
    """Found when the session is closed."""
    session.connection().connection.commit()


ENDS: dict[Callable[[Session], None], int] = {commit_text: 0, roll_back_text: 0, go_on: 0, commit_driver: 1}
"""How a session's transaction is ended without it, and how many business rows are committed."""


@on_two
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("end", ENDS)
def test_something_else_ends_the_transaction(
    engine: Engine, end: Callable[[Session], None], is_first: bool
) -> None:
    """Messages are not written in another transaction than the one in which they were published, and none is
    lost without an error."""

    def work() -> None:
        with Session(engine) as session:
            if is_first:
                publish(session, "never")
            accounts.add(session)
            if not is_first:
                publish(session, "never")
            end(session)

    with pytest.raises(TransactionEnded, match="publish of message"):
        work()
    assert texts(engine) == []
    assert accounts.total(engine) == ENDS[end]


def chain(session: Session) -> None:
    """Roll back and begin another transaction in one statement."""
    session.execute(text("ROLLBACK AND CHAIN"))


def chain_unseen(session: Session) -> None:
    """A comment inside a comment hides the COMMIT on PostgreSQL."""
    session.execute(text("/* a /* b */ SELECT */ COMMIT AND CHAIN"))


def begin_implicitly(session: Session) -> None:
    """MySQL and MariaDB commit before this."""
    session.execute(text("START TRANSACTION"))


def commit_and_begin(session: Session) -> None:
    """By the driver, whose statements SQLAlchemy does not see."""
    cursor = session.connection().connection.cursor()
    for statement in "COMMIT", "BEGIN", "UPDATE account SET total = total + 100":
        cursor.execute(statement)


def chain_in_a_savepoint(session: Session) -> None:
    """Its end fails, and the application goes on."""
    with suppress(DBAPIError), session.begin_nested():
        chain(session)


def chain_after_an_error(session: Session) -> None:
    """An error has aborted the transaction on PostgreSQL."""
    with suppress(DBAPIError):
        session.execute(text("SELECT missing"))
    chain(session)


def chain_unknown(session: Session) -> None:
    """By a construct that SQLAlchemy does not know."""
    session.execute(Written("ROLLBACK AND CHAIN"))


def chain_composed(session: Session) -> None:
    """By an object of psycopg's."""
    composed: Any = psycopg.sql.SQL("ROLLBACK AND CHAIN")
    session.connection().exec_driver_sql(composed)


def chain_for_objects(session: Session) -> None:
    """By a text that is to read an ORM's objects, as from a procedure."""
    with suppress(NotImplementedError):  # it has no rows
        session.execute(select(Account).from_statement(text("ROLLBACK AND CHAIN")))


UNDOING = [
    chain,
    chain_in_a_savepoint,
    chain_after_an_error,
    chain_unknown,
    chain_composed,
    chain_for_objects,
]
OWN_ENDS = ["commit", "rollback", "close"]
OTHERS = {
    "postgresql": [
        chain,
        chain_unseen,
        commit_and_begin,
        chain_in_a_savepoint,
        chain_after_an_error,
        chain_composed,
    ],
    "mariadb": [
        chain,
        begin_implicitly,
        commit_and_begin,
        chain_in_a_savepoint,
        chain_unknown,
        chain_for_objects,
    ],
    "sqlite": [commit_and_begin],
}


@pytest.mark.parametrize(
    ("server", "begin_again", "then"),
    [
        (server, *row)
        for server, kinds in OTHERS.items()
        for row in product(kinds, OWN_ENDS if server == "postgresql" else ["commit"])
    ],
    indirect=["server"],
)
def test_another_transaction_begins(
    session: Session, engine: Engine, begin_again: Callable[[Session], None], then: str
) -> None:
    """The end of the session's transaction says that it was another one, and nothing of that is kept."""
    accounts.add(session)
    publish(session, "never")
    begin_again(session)
    with suppress(DBAPIError):  # PostgreSQL refuses it after the error in the savepoint
        accounts.add(session, amount=10)
    with pytest.raises(TransactionEnded, match="publish of message"):
        THEN[then](session)
    with suppress(TransactionEnded):
        session.close()
    assert texts(engine) == []
    assert accounts.total(engine) == (begin_again not in UNDOING)


@on("postgresql")
def test_another_transaction_begins_and_fails(session: Session, engine: Engine) -> None:
    """The rollback says that it was another one, although an error has aborted that."""
    accounts.add(session)
    publish(session, "never")
    commit_and_begin(session)
    with pytest.raises(DBAPIError):
        session.execute(text("SELECT missing"))
    with pytest.raises(TransactionEnded, match="publish of message"):
        session.close()
    assert texts(engine) == []
    assert accounts.total(engine) == 1


def swallow_an_error(session: Session) -> None:
    """As text, which may leave a savepoint of ours behind, and with SQLAlchemy's own savepoint around."""
    session.execute(text("SAVEPOINT mine"))
    with suppress(DBAPIError), session.begin_nested():
        session.execute(text("CALL missing()"))
    session.execute(text("ROLLBACK TO SAVEPOINT mine"))


def end_an_older_savepoint(session: Session) -> None:
    """A message is published inside a savepoint that is written as text, and so the mark is set inside it."""
    session.execute(text("SAVEPOINT mine"))
    publish(session, "told")
    use_the_driver(session)
    session.execute(text("RELEASE SAVEPOINT mine"))
    use_the_driver(session)


def look_after_an_error(session: Session) -> None:
    """At the driver's connection, as for a log, before the savepoint is rolled back as text."""
    session.execute(text("SAVEPOINT mine"))
    with suppress(DBAPIError):
        accounts.open_account(session)
    assert session.connection().connection is not None
    session.execute(text("ROLLBACK TO SAVEPOINT mine"))


def look_while_reading(session: Session) -> None:
    """At the driver's connection, while rows are still to come."""
    many = "SELECT a.total FROM account a, account b, account c, account d, account e"
    accounts_wanted = 5
    for number in range(accounts_wanted - 1):
        accounts.open_account(session, str(number))
    streaming = session.execute(text(many), execution_options={"stream_results": True, "yield_per": 10})
    rows = iter(streaming)
    next(rows)
    assert session.connection().connection is not None
    assert sum(1 for _ in rows) == accounts_wanted**5 - 1
    session.execute(text("DELETE FROM account WHERE name <> 'cash'"))


def look_from_a_listener(session: Session) -> None:
    """At the driver's connection, from a listener to each statement, ours among them."""
    event.listen(session.connection(), "after_cursor_execute", lambda connection, *_: connection.connection)
    accounts.add(session, amount=0)


def use_the_driver(session: Session) -> None:
    """For a statement of its own."""
    session.connection().connection.cursor().execute("SELECT 1")


SETTINGS = {
    # Before any query.
    "postgresql": ["SET LOCAL lock_timeout = 0", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"],
    "mysql": ["SET @a = 1"],
    "mariadb": ["SET @a = 1"],
}


def use_the_driver_between_streams(session: Session) -> None:
    """While the connection reads through cursors of the server, which run queries alone."""
    connection = session.connection().execution_options(stream_results=True)
    connection.connection.cursor().execute("SELECT 1")
    connection.execution_options(stream_results=False)


HARMLESS = [
    swallow_an_error,
    end_an_older_savepoint,
    look_after_an_error,
    look_while_reading,
    look_from_a_listener,
    use_the_driver,
    use_the_driver_between_streams,
]


@each_on(
    "postgresql",
    "harmless,then",
    product(HARMLESS, OWN_ENDS),
    product(HARMLESS, ["commit"]),
    among=("postgresql", "mariadb"),
)
def test_the_transaction_goes_on(
    session: Session, engine: Engine, harmless: Callable[[Session], None], then: str
) -> None:
    """Nothing is raised after what only might have ended it."""
    publish(session, "never")  # the first one looks at the tables
    session.rollback()
    if harmless is not end_an_older_savepoint:  # it publishes itself
        publish(session, "told")
    for statement in SETTINGS[engine.dialect.name]:
        session.execute(text(statement))
    accounts.add(session)
    harmless(session)
    THEN[then](session)
    session.close()
    assert texts(engine) == ["told"] * (then == "commit")
    assert accounts.total(engine) == (then == "commit")


@on("mariadb")
def test_ddl_ends_the_transaction(session: Session, engine: Engine) -> None:
    """DDL commits the business row, and the COMMIT that would write the message is another one."""
    accounts.add(session)
    publish(session, "never")
    session.execute(text("CREATE TABLE late (id integer)"))
    with pytest.raises(TransactionEnded, match="had ended before its COMMIT"):
        session.commit()
    session.rollback()
    publish(session, "ever")
    session.commit()
    assert texts(engine) == ["ever"]
    assert accounts.total(engine) == 1


def fail_as_text(session: Session) -> None:
    """DDL commits before it can fail, and the error as the server's answer does not tell."""
    session.execute(text("CREATE TABLE account (id integer)"))


def fail_on_the_driver(session: Session) -> None:
    """SQLAlchemy does not hear of it."""
    session.connection().connection.cursor().execute("CREATE TABLE account (id integer)")


THEN: dict[str, Callable[[Session], object]] = {
    "commit": lambda session: session.commit(),
    "rollback": lambda session: session.rollback(),
    "close": lambda session: session.close(),
    "goes on": lambda session: session.execute(text("SELECT 1")),
}


@pytest.mark.mysql
@each_on(
    "mariadb",
    "fail,then",
    product([fail_as_text, fail_on_the_driver], THEN),
    among=("mariadb", "mysql"),
)
def test_ddl_fails_and_has_ended_the_transaction(
    session: Session, engine: Engine, fail: Callable[[Session], None], then: str
) -> None:
    """It has committed the business row, but not the message, and the next step of the session says so."""
    accounts.add(session)
    publish(session, "never")
    with pytest.raises((OperationalError, pymysql.OperationalError)):
        fail(session)
    with pytest.raises(TransactionEnded, match="had ended before"):
        THEN[then](session)
    with suppress(TransactionEnded):
        session.close()
    assert texts(engine) == []
    assert accounts.total(engine) == 1


@on("mariadb")
def test_ddl_fails_in_a_savepoint(engine: Engine) -> None:
    """The savepoint is gone, too, and its rollback says so."""

    def work() -> None:
        with Session(engine) as session:
            accounts.add(session)
            publish(session, "never")
            with session.begin_nested():
                fail_as_text(session)

    with pytest.raises(TransactionEnded, match="had ended before"):
        work()
    assert texts(engine) == []
    assert accounts.total(engine) == 1


@on("mariadb")
def test_an_ordinary_error_ends_nothing(session: Session, engine: Engine) -> None:
    """After a row that exists already, and after a text that fails, a session goes on."""
    publish(session, "1")
    accounts.add(session)
    for failing in lambda: accounts.open_account(session), lambda: session.execute(text("CALL missing()")):
        with pytest.raises(DBAPIError):
            failing()
        publish(session, "2")
    session.commit()
    assert texts(engine) == [*"122"]
    assert accounts.total(engine) == 1


@on("mariadb")
@pytest.mark.parametrize("statement", ["ROLLBACK", "TRUNCATE TABLE account"])
def test_a_transaction_that_begins_with_an_answer_of_rows(
    session: Session, engine: Engine, statement: str
) -> None:
    """From such an answer PyMySQL does not learn that it is in a transaction."""
    publish(session, "ever")
    session.commit()
    publish(session, "never")
    session.scalars(insert(Account).returning(Account.name), [{"name": "new", "total": 1}]).one()
    session.execute(text(statement))
    with pytest.raises(TransactionEnded):
        session.commit()
    assert texts(engine) == ["ever"]


@on("mariadb", "mysql")
@pytest.mark.mysql
def test_publishing_between_the_answers_of_a_procedure(session: Session, engine: Engine) -> None:
    """Nothing that the outbox asks drops the answers that are still to be read."""
    publish(session, "first")
    session.commit()
    with procedure(engine, "three", "BEGIN SELECT 1; SELECT 2; SELECT 3; END"):
        cursor = session.connection().connection.cursor()
        cursor.execute("CALL three()")
        found: list[Any] = []
        while rows := cursor.fetchall():
            found += rows
            publish(session, str(rows[0][0]))
            cursor.nextset()
        cursor.close()
        session.commit()
    assert found == [(1,), (2,), (3,)]
    assert texts(engine) == ["first", *"123"]


BODIES = [
    "DO $$ BEGIN UPDATE account SET total = total + 1; END $$",
    "CREATE FUNCTION late() RETURNS integer LANGUAGE plpgsql AS $a$ BEGIN RETURN '\\'; COMMIT; END $a$",
    "CREATE FUNCTION later() RETURNS integer BEGIN ATOMIC SELECT 1; SELECT 2; END",
    "SELECT 1; SELECT CASE WHEN true THEN 1 END",
    r"SELECT E'it\'s; END'",
]
MYSQL_BODIES = ["SELECT 1 AS `;COMMIT`", r"SELECT 'it\'s; END'", "SELECT 5--1 # it's; END"]
TRIGGER = "CREATE TRIGGER late AFTER INSERT ON account BEGIN SELECT 1; SELECT 2; END"


@pytest.mark.parametrize(
    ("server", "statements"),
    [("postgresql", BODIES), ("sqlite", [TRIGGER]), ("mariadb", MYSQL_BODIES)],
    indirect=["server"],
    ids=["postgresql", "sqlite", "mariadb"],
)
def test_a_text_that_only_looks_like_a_commit(
    session: Session, engine: Engine, statements: list[str]
) -> None:
    """Bodies, literals, names and comments may have a COMMIT or an END in them."""
    publish(session, "ever")
    for statement in (
        *statements,
        "SELECT ';COMMIT', 'it''s; END'",
        r"SELECT 'C:\; commit now'",
        "/* ; commit */ UPDATE account SET name = ';COMMIT' -- ; COMMIT",
    ):
        session.connection().exec_driver_sql(statement)
    session.commit()
    assert texts(engine) == ["ever"]
    assert accounts.total(engine, ";COMMIT") == (statements is BODIES)


COMMITS = [
    "UPDATE account SET total = 7; commit; BEGIN",
    "-- it's\nEND WORK",
    "/* it's */ COMMIT AND CHAIN",
    "SELECT ';'; END",
    "DO $$ BEGIN END $$; END TRANSACTION; BEGIN",
    "PREPARE TRANSACTION 'late'",
    r"SELECT 'a\'; COMMIT; SELECT 'b'",
    r"SELECT '\'; /* now */ COMMIT",
]


@on("postgresql")
def test_a_commit_among_other_statements(session: Session, engine: Engine) -> None:
    """A text with a COMMIT is refused before it is sent, and the session goes on."""
    publish(session, "ever")
    for statement in COMMITS:
        with pytest.raises(TransactionEnded, match="nothing was committed"):
            session.connection().exec_driver_sql(statement)
    assert accounts.total(engine) == 0
    session.commit()
    assert texts(engine) == ["ever"]


DEADLOCKED: dict[str, Callable[[Session], object]] = {
    "statement": lambda session: accounts.add(session, "account 1"),
    "semicolon": lambda session: session.execute(text(f"{ADDS};")),
    "procedure": lambda session: session.execute(text("CALL add_one()")),
    "driver": lambda session: session.connection().connection.cursor().execute(ADDS),
    "stream": lambda session: session.execute(
        text("SELECT * FROM account ORDER BY name FOR UPDATE"), execution_options={"stream_results": True}
    ).all(),
}


@on("mariadb", "mysql")
@pytest.mark.mysql
@pytest.mark.parametrize("statement", DEADLOCKED)
def test_the_server_rolls_back_the_transaction(engine: Engine, statement: str) -> None:
    """The error of a deadlock goes up as it is. If the application ignores it, the COMMIT would be of what
    followed: it is refused. A rollback is not, and the session can go on."""
    with engine.begin() as connection:
        for name in ACCOUNTS[:-1]:
            accounts.open_account(connection, name)

    def meet_deadlock(session: Session) -> None:
        publish(session, "never")
        with heavier_transaction(engine, session):
            DEADLOCKED[statement](session)

    deadlock = pytest.raises((OperationalError, pymysql.OperationalError), match="1213")
    with procedure(engine, "add_one", ADDS):
        with deadlock, Session(engine) as session, session.begin():
            meet_deadlock(session)
        with Session(engine) as session:
            with deadlock:
                meet_deadlock(session)
            with pytest.raises(TransactionEnded):
                session.commit()
            session.rollback()
            publish(session, "ever")
            session.commit()
    assert texts(engine) == ["ever"]
    assert accounts.total(engine) == 0


@on("mariadb")
def test_a_deadlock_of_other_locks(engine: Engine) -> None:
    """MariaDB reports it by the same number, but rolls nothing back: the session goes on."""
    with engine.connect() as other, Session(engine) as session:

        def lock(handle: Connection | Session, name: str) -> None:
            handle.execute(text("SELECT GET_LOCK(:name, 60)"), {"name": name}).all()

        publish(session, "1")
        accounts.add(session)
        lock(session, "first")
        lock(other, "second")
        waiting = Task(lambda: lock(other, "first"))
        wait_until(lambda: _waits(engine))
        with pytest.raises(OperationalError, match="1213"):
            lock(session, "second")
        session.execute(text("SELECT RELEASE_LOCK('first')")).all()
        waiting.result()
        session.commit()
    assert texts(engine) == ["1"]
    assert accounts.total(engine) == 1


def _waits(engine: Engine) -> bool:
    """Whether a connection waits for a lock of `GET_LOCK`."""
    with engine.connect() as connection:
        found = "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock'"
        return bool(connection.execute(text(found)).scalar_one())


@on("mariadb", "mysql")
@pytest.mark.mysql
@pytest.mark.parametrize("statement", ["TRUNCATE TABLE account", "LOCK TABLES account WRITE"])
def test_ddl_that_waits_in_vain(engine: Engine, statement: str) -> None:
    """It has committed before it waits, so its lock timeout does not hide that."""
    with engine.begin() as rival, pytest.raises(TransactionEnded), Session(engine) as session:  # noqa: PT012
        rival.execute(text("SELECT * FROM account"))
        publish(session, "never")
        accounts.add(session)
        session.execute(text("SET lock_wait_timeout = 1"))
        with suppress(OperationalError):
            session.execute(text(statement))
    assert accounts.total(engine) == 1
    assert texts(engine) == []
