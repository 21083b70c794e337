"""What the tests of sessions with several databases share."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Delete, Engine, Update, event, text
from sqlalchemy.orm import Session

from tests.servers import Server
from tests.support import accounts
from tests.support.database import Database


@pytest.fixture
def other(migrated: Database, server: Server) -> Iterator[Database]:
    """A second database of the same kind, without our tables; both have accounts."""
    database = Database(server, server.new_database())
    for each in (migrated, database):
        accounts.make(each.engine())
    yield database
    database.close()


def balance(database: Database) -> int:
    """The committed total there."""
    return accounts.total(database.engine())


def recipe(leader: Engine, followers: list[Engine]) -> type[Session]:
    """The session of "Custom Vertical Partitioning" in SQLAlchemy's manual."""

    class RoutingSession(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> Engine:
            if self._flushing or isinstance(clause, Update | Delete):
                return leader
            return random.choice(followers)

    return RoutingSession


@pytest.fixture
def replica(other: Database) -> Iterator[Database]:
    """A database that answers as a replica does; PostgreSQL and SQLite report writes by themselves."""
    if other.url.get_backend_name() != "mysql":
        yield other
        return
    engine = other.engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:  # it has the right to write all the same
        connection.execute(text("SET GLOBAL read_only = ON"))
        yield other
        connection.execute(text("SET GLOBAL read_only = OFF"))


class Prepared:
    """The transactions of a MySQL or MariaDB engine that are prepared from now on. The server's other ones
    are of other tests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._xids: list[str] = []
        event.listen(engine, "prepare_twophase", lambda _, xid: self._xids.append(xid))

    def left(self) -> list[str]:
        """Those that are neither committed nor rolled back."""
        with self._engine.connect() as connection:
            rows = connection.exec_driver_sql("XA RECOVER")
            return [xid for xid in (row.data.decode() for row in rows) if xid in self._xids]

    def roll_back(self) -> None:
        """Roll back what is left: its locks would stay."""
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for xid in self.left():
                connection.exec_driver_sql(f"XA ROLLBACK '{xid}'")
