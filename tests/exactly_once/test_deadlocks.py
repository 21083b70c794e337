"""On a deadlock, MariaDB and MySQL roll back the whole transaction, but let the session go on."""

from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError, OperationalError

from inbox import Action, Inbox, Verdict
from inbox.errors import TransactionAborted, TransactionEnded
from tests.support import accounts
from tests.support.database import Database
from tests.support.deadlock import ACCOUNTS, ADDS, heavier_transaction, procedure
from tests.support.on_servers import BOTH_MYSQL, on

pytestmark = pytest.mark.mysql

KEY = "transfer-1"
INBOX = Inbox("bookkeeping")


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with accounts."""
    return accounts.make(migrated.engine(), ACCOUNTS)


def deliver(engine: Engine, body: Callable[[Connection], object]) -> Verdict:
    """Deliver a message once; `body` runs if it is new."""
    with INBOX.transaction(engine, KEY) as work:
        if work.is_new:
            body(work.connection)
    return work.verdict


@on(*BOTH_MYSQL)
@pytest.mark.parametrize("goes_on", ["stops", "reads", "writes", "has sent a text"])
def test_a_swallowed_deadlock(engine: Engine, goes_on: str) -> None:
    """If the body swallows that error: TransactionAborted, nothing is written, and the redelivered message
    runs."""
    after = {
        "stops": None,
        "reads": "SELECT 1",
        "writes": "UPDATE account SET total = 7 WHERE name = 'account 9'",
        "has sent a text": "SELECT 1",
    }

    def swallow_deadlock(connection: Connection) -> None:
        if goes_on == "has sent a text":  # for all that is known it may commit, but it does not
            connection.execute(text("DO 1"))
        with heavier_transaction(engine, connection), pytest.raises(OperationalError, match="1213"):
            accounts.add(connection, "account 1")
        if statement := after[goes_on]:
            connection.execute(text(statement))

    with pytest.raises(TransactionAborted):
        deliver(engine, swallow_deadlock)
    assert accounts.totals(engine)["account 9"] == 100  # the other transaction's
    assert accounts.total(engine) == 0
    assert deliver(engine, accounts.add) is Verdict.NEW
    assert accounts.total(engine) == 1


@on("mariadb")
@pytest.mark.parametrize(
    "how",
    [
        "goes on",
        "takes it again",
        "in a savepoint",
        "between texts",
        "unseen",
        "unseen, after USE",
        "unseen, after RELEASE",
        "unseen, with another translation",
        "handled by a procedure",
    ],
)
def test_a_swallowed_deadlock_in_a_transaction_of_the_callers(engine: Engine, how: str) -> None:
    """The COMMIT raises, unless the message was taken once more: otherwise what is written after the deadlock
    would commit without the inbox row."""
    takes_again = how == "takes it again"
    quietly = f"BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; {ADDS}; END"
    with (
        procedure(engine, "add_quietly", quietly),
        nullcontext() if takes_again else pytest.raises(TransactionAborted),
        engine.begin() as connection,
    ):
        INBOX.accept(connection, KEY)
        if how == "between texts":
            connection.execute(text("BEGIN NOT ATOMIC DO 1; END"))
        if "USE" in how:
            connection.execute(text("/* elsewhere */ USE information_schema"))
            connection.execute(text(f"USE `{engine.url.database}`"))
        if "RELEASE" in how:
            connection.execute(text("SAVEPOINT one"))
            connection.execute(text("RELEASE SAVEPOINT one"))
        if "translation" in how:
            connection.execution_options(schema_translate_map={"shop": "information_schema"})
        with (
            heavier_transaction(engine, connection),
            suppress(OperationalError, engine.dialect.loaded_dbapi.OperationalError),
            connection.begin_nested() if how in ("in a savepoint", "unseen") else nullcontext(),
        ):
            if "procedure" in how:
                connection.execute(text("CALL add_quietly()"))
            elif "unseen" in how:  # the driver's own cursor, as for a bulk load
                connection.connection.cursor().execute(
                    "UPDATE account SET total = 1 WHERE name = 'account 1'"
                )
            else:
                accounts.add(connection, "account 1")
        if how == "between texts":
            connection.execute(text("SHOW STATUS LIKE 'Uptime'"))
        if takes_again:
            assert INBOX.accept(connection, KEY) is Verdict.NEW
        accounts.add(connection)
    assert accounts.total(engine) == int(takes_again)
    with engine.begin() as connection:
        assert INBOX.accept(connection, KEY) is (Verdict.DUPLICATE if takes_again else Verdict.NEW)


@on("mariadb")
def test_a_handled_error_and_another_database(migrated: Database, engine: Engine) -> None:
    """A constraint error undoes its statement only, so nothing is looked for."""
    own = migrated.url.database
    with engine.connect() as connection:
        assert INBOX.accept(connection, KEY) is Verdict.NEW
        connection.execute(text("USE information_schema"))
        with suppress(IntegrityError), connection.begin_nested():
            connection.execute(text(f"INSERT INTO `{own}`.account SELECT * FROM `{own}`.account"))
        connection.commit()
        connection.execute(text(f"USE `{own}`"))
        assert INBOX.accept(connection, KEY) is Verdict.DUPLICATE


@on(*BOTH_MYSQL)
@pytest.mark.parametrize("how", ["driver", "text", "a procedure's COMMIT"])
def test_what_looks_undone_is_not(migrated: Database, engine: Engine, how: str) -> None:
    """Where somebody may have undone the message, its row is looked for where it was written, and found."""
    with (
        procedure(engine, "commit_now", "COMMIT"),
        procedure(engine, "raise_now", "SIGNAL SQLSTATE '45000'"),
        engine.connect() as connection,
    ):
        assert INBOX.accept(connection, KEY) is Verdict.NEW
        if how == "driver":  # as PyMySQL's users change to the tenant's
            connection.connection.select_db("information_schema")
        elif how == "text":
            with pytest.raises(OperationalError):
                connection.execute(text("CALL raise_now()"))
            connection.execute(text("/* tenant */ USE information_schema"))
        else:
            connection.execute(text("CALL commit_now()"))
        connection.commit()
        connection.execute(text(f"USE `{migrated.url.database}`"))
        assert INBOX.accept(connection, KEY) is Verdict.DUPLICATE


@on("mariadb")
def test_a_connection_that_is_lost_after_accept(engine: Engine) -> None:
    """The caller gets the driver's error."""
    with engine.connect() as connection, engine.connect() as killer:
        INBOX.accept(connection, KEY)
        killer.execute(text(f"KILL {connection.scalar(text('SELECT connection_id()'))}"))
        with pytest.raises(OperationalError) as caught:
            connection.execute(text("SELECT 1"))
    assert caught.value.connection_invalidated


@on("mariadb")
def test_a_deadlock_inside_a_savepoint(engine: Engine) -> None:
    """The savepoint is gone with the whole transaction, and the redelivered message runs."""

    def meet_deadlock(connection: Connection) -> None:
        with heavier_transaction(engine, connection), suppress(OperationalError), connection.begin_nested():
            accounts.add(connection, "account 1")

    with pytest.raises(TransactionAborted):
        deliver(engine, meet_deadlock)
    assert deliver(engine, accounts.add) is Verdict.NEW
    assert accounts.total(engine) == 1


@on("mariadb")
def test_an_error_that_ends_the_transaction(engine: Engine) -> None:
    """A deadlock has rolled back the transaction, too, and the handler retries it."""
    runs = []

    @INBOX.handler(engine, key=str)
    def body(connection: Connection, message: str) -> None:
        runs.append(message)
        connection.connection.cursor().execute(ADDS.replace("account 1", "cash"))
        if len(runs) == 1:
            with heavier_transaction(engine, connection):
                accounts.add(connection, "account 1")

    assert body(KEY).verdict is Verdict.NEW
    assert len(runs) == 2


DEADLOCKED: dict[str, Callable[[Connection], object]] = {
    "semicolon": lambda connection: connection.execute(text(f"{ADDS};")),
    "procedure": lambda connection: connection.execute(text("CALL add_one()")),
    "driver": lambda connection: connection.connection.cursor().execute(ADDS),
    "driver's procedure": lambda connection: connection.connection.cursor().callproc("add_one"),
}


@on(*BOTH_MYSQL)
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("statement", DEADLOCKED)
def test_a_deadlock_of_what_might_end_the_transaction(
    engine: Engine, statement: str, is_nested: bool
) -> None:
    """Nothing had committed, so the message is delivered again, and takes effect once."""
    runs: list[str] = []

    @INBOX.handler(engine, key=str)
    def book(connection: Connection, message: str) -> None:
        runs.append(message)
        if len(runs) == 1:
            with (
                heavier_transaction(engine, connection),
                connection.begin_nested() if is_nested else nullcontext(),
            ):
                DEADLOCKED[statement](connection)
        accounts.add(connection)

    with procedure(engine, "add_one", ADDS):
        decisions = [INBOX.listener().decide([KEY], book)[0] for _ in range(2)]
    assert [each.action for each in decisions] in ([Action.RETRY, Action.ACK], [Action.ACK, Action.ACK])
    assert (accounts.total(engine), len(runs)) == (1, 2)


@on(*BOTH_MYSQL)
@pytest.mark.parametrize("swallows", [True, False])
def test_a_procedure_that_commits_before_its_deadlock(engine: Engine, swallows: bool) -> None:
    """A redelivery would be a duplicate, and the rest of the message would be lost: TransactionEnded."""
    late = "BEGIN COMMIT; SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END"

    def body(connection: Connection) -> None:
        accounts.add(connection)
        with suppress(OperationalError) if swallows else nullcontext():
            connection.execute(text("CALL commit_and_fail()"))

    with procedure(engine, "commit_and_fail", late), pytest.raises(TransactionEnded):
        deliver(engine, body)
    assert deliver(engine, accounts.add) is Verdict.DUPLICATE
    assert accounts.total(engine) == 1
