"""A temporary failure does not end a relay; a permanent one raises an error each time."""

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, delete, event, select, text
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import DBAPIError, OperationalError

from inbox_outbox_base.errors.codes import code_of
from outbox import Envelope, Outbox, Outcome, Relay, pause
from outbox.errors import WrongBucketCount
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import ACCEPTED, TABLES, Recorder, count, publish, relay
from tests.support.processes import wait_until
from tests.support.proxy import TcpProxy
from tests.support.relay.crashes import Paused, is_shared, running
from tests.support.together import Task, wait_until_blocked

pytestmark = pytest.mark.mysql

PATIENCE = 60.0


class Slow(Recorder):
    """A publisher whose send takes longer than the lease."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = threading.Event()

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Answer late."""
        self.has_begun.set()
        time.sleep(5)
        return super().send(batch)


def test_a_pool_that_is_empty(postgres: Database) -> None:
    """While the application uses all connections, the relay waits; it continues when it gets one."""
    publish(postgres.engine(), "a1")
    engine = postgres.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    publisher = Recorder()
    with engine.connect() as connection, running(Relay(engine, publisher)):
        time.sleep(1)
        assert not publisher.accepted
        connection.close()
        wait_until(lambda: publisher.accepted)
    assert publisher.names == ["a1"]


@on("sqlite")
def test_no_buckets(engine: Engine) -> None:
    """If the buckets were deleted, both the relay and `publish` raise an error."""
    with engine.begin() as connection:
        connection.execute(delete(TABLES.bucket))
    with pytest.raises(WrongBucketCount, match="outbox_bucket is empty"):
        relay(engine, Recorder())
    with pytest.raises(WrongBucketCount, match="outbox_bucket is empty"), engine.begin() as connection:
        Outbox().publish(connection, "t", b"x")


@on("postgresql")
def test_one_pass_renews_its_lease(engine: Engine) -> None:
    """If a send of `run_once` takes longer than the lease, the lease is renewed, so that another relay does
    not take its buckets."""
    publish(engine, "a1")
    slow, other = Slow(), Recorder(lambda _: ACCEPTED)
    first = Task(lambda: relay(engine, slow, lease=3))
    assert slow.has_begun.wait(PATIENCE)
    time.sleep(3.5)
    assert relay(engine, other, lease=3) == 0
    assert first.result() == 1
    assert not other.sent


CANCEL = {
    "postgresql": "SELECT pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT concat('KILL QUERY ', trx_mysql_thread_id) FROM information_schema.innodb_trx "
    "WHERE trx_state = 'LOCK WAIT'",
}
TIME_LIMIT = {
    "postgresql": {"options": "-c statement_timeout=200"},
    "mariadb": {"init_command": "SET max_statement_time = 0.2"},
}
# SQLite has neither, and MySQL limits only the time of reading.
ENDED = {
    ("cancelled", "postgresql"): "57014",
    ("cancelled", "mysql"): 1317,
    ("cancelled", "mariadb"): 1317,
    ("time limit", "postgresql"): "57014",
    ("time limit", "mariadb"): 1969,
}


@pytest.mark.parametrize(("how", "server"), ENDED, indirect=["server"])
def test_a_statement_that_is_ended_from_outside(migrated: Database, how: str) -> None:
    """An operator, or a time limit of the role, cancels a relay's statement while it waits for a lock: the
    relay tries again, and nothing is sent twice."""
    engine = migrated.engine()
    relays = migrated.engine(connect_args=TIME_LIMIT[migrated.name] if how == "time limit" else {})
    publish(engine, "a1")
    codes: list[object] = []

    @event.listens_for(relays, "handle_error")
    def note(context: ExceptionContext) -> None:
        assert isinstance(context.sqlalchemy_exception, DBAPIError)
        codes.append(code_of(context.sqlalchemy_exception))

    publisher = Paused()
    with running(Relay(relays, publisher, lease=600)):
        assert publisher.begun.wait(PATIENCE)
        with engine.connect() as connection:
            connection.execute(select(TABLES.message.c.id).with_for_update()).all()
            publisher.may_end.set()
            if how == "cancelled":
                wait_until_blocked(engine)
                _cancel(engine)
            wait_until(lambda: codes)
        wait_until(lambda: count(engine, TABLES.message) == 0)
    assert set(codes) == {ENDED[how, migrated.name]}
    assert publisher.names == ["a1"]


def _cancel(engine: Engine) -> None:
    with engine.connect() as connection:
        for statement in connection.scalars(text(CANCEL[engine.dialect.name])).all():
            if isinstance(statement, str):
                connection.execute(text(statement))


ACCOUNT = "inbox_outbox_app"


@on("mariadb", "mysql")
@pytest.mark.parametrize(("trouble", "code"), [("read only", 1290), ("no connection", 1226)])
def test_temporary_failures_of_mysql(migrated: Database, trouble: str, code: int) -> None:
    """During a switchover of the server, or while the account has no connection left, the relay tries again,
    as on PostgreSQL."""
    root = migrated.engine(isolation_level="AUTOCOMMIT")
    account = f"{ACCOUNT}@'%'"
    _run(root, f"DROP USER IF EXISTS {account}")
    _run(root, f"CREATE USER {account} IDENTIFIED BY '{ACCOUNT}'")
    _run(root, f"GRANT ALL ON {migrated.url.database}.* TO {account}")
    engine = create_engine(migrated.url.set(username=ACCOUNT, password=ACCOUNT), poolclass=NullPool)
    codes: list[object] = []
    event.listen(engine, "handle_error", lambda context: codes.append(context.original_exception.args[0]))
    publisher = Recorder()
    spare: list[Connection] = []

    def take_the_last() -> bool:
        with suppress(OperationalError):  # the relay has the last connection
            spare.append(engine.connect())
        return bool(spare)

    with running(Relay(engine, publisher, poll=0.02, lease=2)):
        try:
            if trouble == "read only":
                _run(root, "SET GLOBAL read_only = 1")
            if trouble == "no connection":
                _run(root, f"ALTER USER {account} WITH MAX_USER_CONNECTIONS 1")
                wait_until(take_the_last)
                codes.clear()
            wait_until(lambda: code in codes)
        finally:
            _run(root, "SET GLOBAL read_only = 0")
            for each in spare:
                each.close()
        publish(migrated.engine(), "a1")
        wait_until(lambda: publisher.accepted)
    assert publisher.names == ["a1"]
    _run(root, f"DROP USER {account}")


def test_a_session_that_is_read_only(postgres: Database) -> None:
    """A session that began while the database was read-only stays read-only: the pool replaces it, and the
    relay continues once the database is writable."""
    engine, codes = postgres.engine(), list[object]()
    publish(postgres.engine(), "a1")
    event.listen(engine, "handle_error", lambda context: codes.append(context.original_exception.sqlstate))
    admin = postgres.engine(isolation_level="AUTOCOMMIT")
    setting = f"ALTER DATABASE {postgres.url.database} SET default_transaction_read_only"
    publisher = Recorder()
    _run(admin, f"{setting} = on")
    with running(Relay(engine, publisher, poll=0.02)):
        wait_until(lambda: codes)
        _run(admin, f"{setting} = off")
        wait_until(lambda: publisher.accepted)
    assert set(codes) == {"25006"}
    assert publisher.names == ["a1"]


def test_a_file_that_is_read_only(sqlite: Database) -> None:
    """A relay continues when its SQLite file takes writes again."""
    engine, relaying, publisher = sqlite.engine(), sqlite.engine(), Recorder()
    setting = "query_only = 0"
    event.listen(relaying, "checkout", lambda connection, *_: connection.execute(f"PRAGMA {setting}"))
    with running(Relay(relaying, publisher, lease=3)):
        wait_until(lambda: is_shared(engine, 1))
        setting = "query_only = 1"
        publish(engine, "a1")
        time.sleep(4)
        assert not publisher.names
        setting = "query_only = 0"
        wait_until(lambda: publisher.names == ["a1"])


def test_an_operator_after_the_server_was_read_only(postgres: Database) -> None:
    """When an operator's call fails in a read-only session, the next call gets a new session."""
    engine = postgres.engine()
    admin = postgres.engine(isolation_level="AUTOCOMMIT")
    setting = f"ALTER DATABASE {postgres.url.database} SET default_transaction_read_only"
    _run(admin, f"{setting} = on")
    with pytest.raises(DBAPIError):
        pause(engine)
    _run(admin, f"{setting} = off")
    assert pause(engine)


@on("mariadb", "mysql")
def test_a_connection_that_breaks_on_its_way_to_the_pool(migrated: Database) -> None:
    """When a connection returns to the pool, MySQL's and MariaDB's drivers reset its isolation level with a
    statement. If the connection breaks there, the relay goes on, each message is sent once, and the pool
    loses no place."""
    publish(migrated.engine(), "a1")
    with TcpProxy(str(migrated.url.host), migrated.url.port or 0) as proxy:
        url = migrated.url.set(host="127.0.0.1", port=proxy.port)
        engine = migrated.engine_at(
            url, connect_args={"ssl_disabled": True}, pool_size=1, max_overflow=0, pool_timeout=5
        )
        publisher = Recorder()
        cuts = 0

        def is_set_back(chunk: bytes) -> bool:
            nonlocal cuts
            is_it = b"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ" in chunk
            cuts += is_it
            return is_it

        with running(Relay(engine, publisher, poll=0.02, lease=600)):
            wait_until(lambda: publisher.accepted)
            for times in (1, 2, 3):
                proxy.cut_on(is_set_back, forward=False)
                wait_until(lambda: cuts == times)  # noqa: B023
                publish(migrated.engine(), f"b{times}")
                wait_until(lambda: len(publisher.accepted) == 1 + times)  # noqa: B023
    assert publisher.names == ["a1", "b1", "b2", "b3"]


def _run(engine: Engine, statement: str) -> None:
    with engine.connect() as connection:
        connection.execute(text(statement))
