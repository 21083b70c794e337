"""Trouble that is no message's fault, on real servers: each kind begins and ends by the test's own hand."""

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


def impatient(database: Database, seconds: float = 0.3) -> URL:
    """The database for sessions whose statements the server ends after so many seconds."""
    option = {
        "postgresql": ("options", f"-c statement_timeout={round(seconds * 1000)}"),
        "mariadb": ("init_command", f"SET SESSION max_statement_time = {seconds}"),
        "mysql": ("init_command", f"SET SESSION max_execution_time = {round(seconds * 1000)}"),
    }
    name, value = option[database.name]
    return database.url.update_query_dict({name: value})


@contextmanager
def locked_tables(database: Database) -> Iterator[None]:
    """Somebody keeps everybody else from the tables, as ALTER TABLE does."""
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
    """The database for an account that a read-only server refuses."""
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
    """The server is no primary any more."""
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
    """Redis has no more memory, and forgets nothing to have some."""
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", "100kb")
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


@contextmanager
def alone(client: "redis.Redis") -> Iterator[None]:
    """Redis has lost the replicas without which it is to take no writes."""
    client.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        client.config_set("min-replicas-to-write", 0)


@contextmanager
def unsaved(client: "redis.Redis") -> Iterator[None]:
    """Redis cannot write its snapshots, and is to take no writes then."""
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
    """Somebody's script runs for too long."""
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
