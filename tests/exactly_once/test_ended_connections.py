"""If the server has ended the pool's connections, code that begins its own transactions does not notice."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from sqlalchemy import Engine, text

from inbox import SqlStore, StatusInbox, purge
from outbox import Relay, pause
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, each_on
from tests.support.outbox_publishers import Recorder, publish

pytestmark = pytest.mark.mysql

POOLED = 3

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


@each_on("postgresql", "work", [(claims,), (relays,), (pauses,), (purges,)], [(claims,)], among=WITH_WRITERS)
def test_connections_that_have_ended(migrated: Database, work: Callable[[Engine], None]) -> None:
    """Code that begins its own transactions succeeds on a pool whose connections the server has ended."""
    publish(migrated.engine(), "a1")
    engine = migrated.engine(pool_size=POOLED)
    with ExitStack() as pool:
        connections = [pool.enter_context(engine.connect()) for _ in range(POOLED)]
        own = text(f"SELECT {OWN[migrated.name]}")
        ids = [connection.execute(own).scalar_one() for connection in connections]
    with migrated.engine().connect() as killer:
        for each in ids:
            killer.execute(text(END[migrated.name].format(each)))
    work(engine)
