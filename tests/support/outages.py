"""Outages of real servers that are no message's fault: the test itself begins and ends each."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from uuid import uuid4

import redis
from sqlalchemy import URL, Engine, text

from tests.support.database import Database

ACCOUNT = "unprivileged"
Limit = Callable[[Database], URL]
END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
"""Ends all other sessions of a database of PostgreSQL."""


def impatient(database: Database, seconds: float = 0.3) -> URL:
    """The database for sessions whose statements the server cancels after this many seconds."""
    option = {
        "postgresql": ("options", f"-c statement_timeout={round(seconds * 1000)}"),
        "mariadb": ("init_command", f"SET SESSION max_statement_time = {seconds}"),
        "mysql": ("init_command", f"SET SESSION max_execution_time = {round(seconds * 1000)}"),
    }
    name, value = option[database.name]
    return database.url.update_query_dict({name: value})


@contextmanager
def closed(database: Database) -> Iterator[None]:
    """A database of PostgreSQL accepts no connections, and its sessions have ended."""
    name = database.url.database
    elsewhere = database.engine_at(database.url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with elsewhere.connect() as connection:
        connection.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'))
        ends = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = :name"
        try:
            connection.execute(text(ends), {"name": name})
            yield
        finally:
            connection.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'))


@contextmanager
def locked_tables(database: Database) -> Iterator[None]:
    """Another session holds an exclusive lock on the tables, as ALTER TABLE does."""
    lock = {
        "postgresql": "LOCK TABLE inbox_message, inbox_status",
        "mariadb": "LOCK TABLES inbox_message WRITE, inbox_status WRITE",
    }
    with database.engine().connect() as connection:
        connection.execute(text(lock[database.name]))
        try:
            yield
        finally:
            if database.name == "mariadb":
                connection.execute(text("UNLOCK TABLES"))


@contextmanager
def unprivileged(database: Database) -> Iterator[URL]:
    """The database for an account without the right to write on a read-only server."""
    account = f"{ACCOUNT}_{uuid4().hex[:8]}"
    with _admin(database).connect() as connection:
        connection.execute(text(f"CREATE USER {account} IDENTIFIED BY '{account}'"))
        try:
            rights = "SELECT, INSERT, UPDATE, DELETE"
            connection.execute(text(f"GRANT {rights} ON {database.url.database}.* TO {account}"))
            yield database.url.set(username=account, password=account)
        finally:
            connection.execute(text(f"DROP USER {account}"))


@contextmanager
def read_only(database: Database) -> Iterator[None]:
    """The server is read-only, as one that is no longer the primary."""
    with _admin(database).connect() as connection:
        connection.execute(text("SET GLOBAL read_only = 1"))
        try:
            yield
        finally:
            connection.execute(text("SET GLOBAL read_only = 0"))


def _admin(database: Database) -> Engine:
    return database.engine(isolation_level="AUTOCOMMIT")


Trouble = Callable[["redis.Redis"], AbstractContextManager[None]]


@contextmanager
def full(client: "redis.Redis") -> Iterator[None]:
    """Redis is out of memory, with an eviction policy that evicts nothing."""
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", "100kb")
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


@contextmanager
def alone(client: "redis.Redis") -> Iterator[None]:
    """Redis has fewer replicas than it needs to accept writes."""
    client.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        client.config_set("min-replicas-to-write", 0)


@contextmanager
def unsaved(client: "redis.Redis") -> Iterator[None]:
    """Redis cannot write its snapshots, and therefore accepts no writes."""
    settings: dict[str, str] = client.config_get("dir")  # type: ignore[assignment]
    snapshot = Path(settings["dir"]) / "dump.rdb"
    snapshot.unlink(missing_ok=True)
    snapshot.mkdir()
    client.config_set("save", "3600 1")
    _save(client, "err")
    try:
        yield
    finally:
        snapshot.rmdir()
        _save(client, "ok")
        client.config_set("save", "")


@contextmanager
def busy(client: "redis.Redis") -> Iterator[None]:
    """Another client's script runs for too long."""
    client.config_set("busy-reply-threshold", 10)
    spinning = threading.Thread(target=_spin, args=(client,))
    spinning.start()
    try:
        _wait_until(lambda: _is_busy(client))
        yield
    finally:
        client.script_kill()
        spinning.join()


def _save(client: "redis.Redis", status: str) -> None:
    client.bgsave()
    _wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == status)


def _spin(client: "redis.Redis") -> None:
    try:
        client.eval("while true do end", 0)
    except redis.ResponseError:
        return


def _is_busy(client: "redis.Redis") -> bool:
    try:
        client.ping()
    except redis.ResponseError:
        return True
    return False


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.02)
