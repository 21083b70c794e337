"""Galera: migrations on several nodes. `make matrix` runs these tests."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection as Pipe
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, event, inspect

from inbox import migration
from inbox._migrating import one_at_a_time
from inbox.errors import TransientError
from inbox.schema import REVISION
from inbox_outbox_base.databases.mysql import turn
from tests.support.cluster import Cluster
from tests.support.processes import workers

pytestmark = pytest.mark.matrix

LEASE = 4
MOMENTS = {
    "UPDATE inbox_outbox_turn": [],
    "CREATE TABLE inbox_outbox_version": [],
    "DELETE FROM inbox_outbox_version": ["inbox_message"],
    "CREATE TABLE outbox_message": ["outbox_message"],
}
"""By the last statement of a migration that is killed: the tables that must be dropped by hand."""


@pytest.fixture
def empty(cluster: Cluster) -> Iterator[list[Engine]]:
    """An engine for each node, to a new database without tables."""
    name = f"new_{uuid4().hex}"
    cluster.run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    for node in range(3):
        cluster.rows("SELECT 1", node)  # every node has applied it
    engines = [create_engine(node.url.set(database=name)) for node in cluster.nodes]
    yield engines
    for engine in engines:
        engine.dispose()
    cluster.run(f"DROP DATABASE {name}")


def at_once(engines: list[Engine], revision: str) -> None:
    """Migrate on all of these engines at the same time."""
    with ThreadPoolExecutor(len(engines)) as threads:
        for done in [threads.submit(migration.migrate, each, revision) for each in engines]:
            done.result()


def test_several_nodes_migrate_at_once(empty: list[Engine]) -> None:
    """They take turns: all of them succeed, up, down and up again."""
    for revision in ("head", "base", "head"):
        at_once([*empty, *empty], revision)
    for engine in empty:
        with engine.connect() as connection:
            connection.exec_driver_sql("SET SESSION wsrep_sync_wait = 7")
            assert migration.current(connection) == REVISION
            connection.invalidate()


def migrate_and_die(pipe: Pipe, url: str, moment: str) -> None:
    """Migrate, and be killed after this statement."""
    turn.LEASE = LEASE

    def die(*given: Any) -> None:
        if given[2].replace("`", "").strip().startswith(moment):
            os.kill(os.getpid(), signal.SIGKILL)

    engine = create_engine(url)
    event.listen(engine, "after_cursor_execute", die)
    migration.migrate(engine)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_migration_that_is_killed(empty: list[Engine], moment: str) -> None:
    """Another node takes its turn over once the lease has ended, and goes on from what it has committed."""
    url = empty[0].url.render_as_string(hide_password=False)
    with workers((migrate_and_die, url, moment)) as [worker]:
        assert worker.exit_code() == -signal.SIGKILL
    for name in MOMENTS[moment]:
        with empty[2].begin() as connection:
            connection.exec_driver_sql(f"DROP TABLE {name}")
    migration.migrate(empty[1])
    with empty[1].connect() as connection:
        assert migration.current(connection) == REVISION


def migrate_when_told(pipe: Pipe, url: str) -> None:
    """Stop in the middle of a migration until the test says to go on."""
    turn.LEASE, turn._EVERY = LEASE, 1

    def wait(*given: Any) -> None:
        if given[2].replace("`", "").strip().startswith("CREATE TABLE inbox_ledger"):
            pipe.send("there")
            pipe.recv()

    engine = create_engine(url)
    event.listen(engine, "after_cursor_execute", wait)
    migration.migrate(engine)
    pipe.send("done")


def test_a_migration_that_is_slow_keeps_its_turn(
    empty: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It renews its lease: another node waits, and says so."""
    monkeypatch.setattr(one_at_a_time, "LOCK_WAIT", 2 * LEASE)
    url = empty[0].url.render_as_string(hide_password=False)
    with workers((migrate_when_told, url)) as [worker]:
        assert worker.hear() == "there"
        with pytest.raises(TransientError, match="another migration has been running"):
            migration.migrate(empty[1])
        assert not inspect(empty[2]).has_table("outbox_message")
        worker.tell()
        assert worker.hear() == "done"
    migration.migrate(empty[1])
