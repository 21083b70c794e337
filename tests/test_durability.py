"""What a crash of the server keeps of what was acknowledged, by the server's settings; and what is said of
settings that lose it."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, create_engine, select, text

from inbox import Inbox, Verdict
from inbox.schema import tables
from tests import accounts
from tests.database import make_tables
from tests.replication import Primary
from tests.services import Missing, mariadb
from tests.services.mysql_like import SETTINGS, LocalServer

KEYS = tables().message.c.key


def take(engine: Engine, *keys: str) -> None:
    """Messages that are acknowledged."""

    @Inbox("billing").handler(engine, key=str)
    def add(connection: Connection, message: str) -> None:
        accounts.add(connection)

    for key in keys:
        assert add(key).verdict is Verdict.NEW


def kept(engine: Engine) -> list[str]:
    """The keys that are still there; as many effects are."""
    engine.dispose()
    with engine.connect() as connection:
        keys = sorted(str(key) for key in connection.scalars(select(KEYS)))
    assert accounts.total(engine) == len(keys)
    return keys


@pytest.mark.parametrize("setting", ["on", "off"])
def test_postgresql(setting: str) -> None:
    """After kill -9 of all of PostgreSQL's processes everything is there, unless synchronous_commit is off:
    then the last messages are gone, each with its effect."""
    with Primary({"wal_writer_delay": "10s", "fsync": "off"}) as server:
        make_tables(server.url)
        url = server.url.update_query_dict({"options": f"-c synchronous_commit={setting}"})
        accounts.make(engine := create_engine(url))
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL synchronous_commit = on"))
            accounts.add(connection, amount=0)
        take(engine, "a", "b", "c")
        server.restart()
        assert kept(engine) == (["a", "b", "c"] if setting == "on" else [])
        engine.dispose()


@pytest.fixture
def private_mariadb() -> Iterator[LocalServer]:
    """A MariaDB that the test may crash, and that writes its log only when it has to."""
    found = mariadb.program()
    if isinstance(found, Missing):
        pytest.skip(f"mariadb: {found.reason}")
    server = LocalServer(*found, [*SETTINGS, "--innodb-flush-log-at-timeout=2700"])
    yield server
    server.close()


def test_mariadb(private_mariadb: LocalServer) -> None:
    """After kill -9 of MariaDB everything is there, unless innodb_flush_log_at_trx_commit is 0. With 2 it is
    in the system's memory, which outlives the process: a crash of the machine cannot be seen here."""
    admin = create_engine(private_mariadb.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text("CREATE DATABASE shop"))
    url = private_mariadb.url.set(database="shop")
    make_tables(url)
    accounts.make(engine := create_engine(url))
    for setting, survive in ((1, True), (2, True), (0, False)):
        with admin.connect() as connection:
            connection.execute(text(f"SET GLOBAL innodb_flush_log_at_trx_commit = {setting}"))
        before = kept(engine)
        keys = [f"{setting} {name}" for name in "abc"]
        take(engine, *keys)
        private_mariadb.restart()
        admin.dispose()
        assert kept(engine) == sorted(before + (keys if survive else []))
    engine.dispose()
    admin.dispose()
