"""A server limit that is shorter than `wait` ends the wait, and nothing else."""

import threading
import time

import pytest
from sqlalchemy import URL, Connection, text

from inbox import Inbox, Verdict
from inbox_outbox_base.databases.registry import database_of
from tests.support import accounts, outages
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on
from tests.support.together import Task, wait_until_blocked

pytestmark = pytest.mark.mysql

KEYS = ["new-1", "taken", "new-2"]
NEW, IN_FLIGHT = Verdict.NEW, Verdict.IN_FLIGHT
WAIT = 2.0


def limited_locks(database: Database) -> URL:
    """The URL for sessions whose own lock timeout is shorter than the wait."""
    option = {
        "postgresql": ("options", "-c lock_timeout=300"),
        "mysql": ("init_command", "SET SESSION innodb_lock_wait_timeout = 1"),
    }
    name, value = option[database.url.get_backend_name()]
    return database.url.update_query_dict({name: value})


on_remote = on(*WITH_WRITERS)  # SQLite has no limits but the wait itself
limits = pytest.mark.parametrize("limit", [outages.impatient, limited_locks])


@pytest.fixture
def server_database(migrated: Database) -> Database:
    """A database on a server that has such limits."""
    accounts.make(migrated.engine())
    return migrated


@on_remote
@limits
def test_a_message_in_flight(server_database: Database, limit: "outages.Limit") -> None:
    """At the server's limit the message is IN_FLIGHT, singly or in a batch, and what was written before and
    after commits."""
    inbox = Inbox("bookkeeping", wait=WAIT)
    engine = server_database.engine_at(limit(server_database))
    with server_database.engine().connect() as other, engine.begin() as connection:
        inbox.accept(other, "taken")
        accounts.add(connection, amount=1)
        assert inbox.accept(connection, "taken") is IN_FLIGHT
        accounts.add(connection, amount=10)
        assert inbox.accept_many(connection, KEYS) == [NEW, IN_FLIGHT, NEW]
        accounts.add(connection, amount=100)
    assert accounts.total(engine) == 111


def test_a_wait_that_somebody_cancels(postgres: Database) -> None:
    """If an administrator cancels the waiting statement, the message is IN_FLIGHT and the transaction goes
    on."""
    engine = accounts.make(postgres.engine())
    asked = threading.Event()

    def take() -> Verdict:
        with engine.begin() as connection:
            own = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            sessions.append(own)
            asked.set()
            verdict = Inbox("bookkeeping", wait=60).accept(connection, "taken")
            accounts.add(connection)
            return verdict

    sessions: list[int] = []
    with engine.connect() as other:
        Inbox("bookkeeping").accept(other, "taken")
        taking = Task(take)
        assert asked.wait(30)
        wait_until_blocked(engine)
        with engine.connect() as administrator:
            administrator.execute(text("SELECT pg_cancel_backend(:pid)"), {"pid": sessions[0]})
        assert taking.result() is IN_FLIGHT
    assert accounts.total(engine) == 1


@on_remote
def test_the_look_at_a_lost_commit(server_database: Database) -> None:
    """The check after a lost COMMIT runs in the inbox's own transaction: it waits as long as it takes to know
    the outcome, and leaves the session's limits as they were."""
    engine = server_database.engine_at(outages.impatient(server_database), pool_size=1)
    inbox = Inbox("bookkeeping", wait=30)
    attempt = inbox._attempt("taken", None)

    def look() -> bytes | None:
        with engine.connect() as connection, connection.begin():
            stored = database_of(connection).settled(connection, attempt, 30)
            return None if stored is None else stored.claim

    with server_database.engine().connect() as other:
        database_of(other).take(other, attempt, 0)
        looking = Task(look)
        wait_until_blocked(server_database.engine())
        time.sleep(1)
        other.commit()
    assert looking.result() == attempt.claim
    with engine.connect() as connection:
        assert _limit(connection) == 0.3


def _limit(connection: Connection) -> float:
    question = {
        "postgresql": "SELECT setting::float / 1000 FROM pg_settings WHERE name = 'statement_timeout'",
        "mariadb": "SELECT @@max_statement_time",
        "mysql": "SELECT @@max_execution_time / 1000",
    }
    name = "mariadb" if getattr(connection.dialect, "is_mariadb", False) else connection.dialect.name
    return float(connection.execute(text(question[name])).scalar_one())
