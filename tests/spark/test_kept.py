"""The connection that a process keeps between two transactions."""

import multiprocessing
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from spark import Statements
from spark._executor import kept
from spark._executor.kept import KEPT
from spark._executor.task import Done
from tests.support.database import Database
from tests.support.on_servers import BOTH_MYSQL, on
from tests.support.processes import wait_until
from tests.support.roles import role
from tests.support.spark.writes import attempt, batch, execute, fetched, prepared, taken, written
from tests.support.together import together

SESSIONS = """
    SELECT pid, usename FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'inbox-outbox spark'
"""
LEAVING = """
    CREATE FUNCTION leaves() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.seen SELECT current_setting('search_path'), current_setting('app.mine', true);
        CREATE TEMPORARY TABLE mine (id int);
        PERFORM set_config('search_path', 'pg_catalog, public', false), set_config('app.mine', 'yes', false);
        RETURN NEW;
    END $$
"""
IS_THERE = "SELECT count(*) FROM information_schema.processlist WHERE db = database()"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No other test's connection is there, and none closes because the machine is slow."""
    KEPT.close()
    monkeypatch.setattr(kept, "IDLE", 60.0)
    yield
    KEPT.close()


def sessions(engine: Engine) -> list[int]:
    """The server's processes for connections of the writer."""
    return [pid for pid, *_ in fetched(engine, SESSIONS)]


def are_of(engine: Engine, user: str) -> bool:
    """Whether this role has the only session."""
    return [name for _, name in fetched(engine, SESSIONS)] == [user]


def new(done: Done | None) -> int:
    """How many rows of a partition were new."""
    assert done is not None
    return done.counts.new


@on("postgresql")
def test_a_process_keeps_one_connection(
    migrated: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's transactions and all tasks of a process use one session. Two tasks at once have one each,
    of which one is kept, and it is closed when nobody uses it."""
    opened: list[Any] = []

    def count(dialect: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> None:
        if parameters.get("application_name") == "inbox-outbox spark":
            opened.append(parameters)

    event.listen(Engine, "do_connect", count)
    try:
        task = prepared(migrated)
        assert [new(attempt(task, part, batch((f"k{part}", part)))) for part in range(8)] == [1] * 8
        assert len(opened) == 1
        both = together(
            [partial(attempt, task, 8, batch(("k8", 8))), partial(attempt, task, 9, batch(("k9", 9)))]
        )
        assert [new(each) for each in both] == [1, 1]
        assert len(opened) == 2
    finally:
        event.remove(Engine, "do_connect", count)
    wait_until(lambda: len(sessions(engine)) == 1)
    monkeypatch.setattr(kept, "IDLE", 0.1)
    assert new(attempt(task, 10, batch(("k10", 0)))) == 1
    wait_until(lambda: not sessions(engine))


@on("postgresql")
def test_a_kept_session_is_like_a_new_one(migrated: Database, engine: Engine) -> None:
    """What a trigger leaves in its session is gone for the next task: settings and temporary tables."""
    execute(engine, "CREATE TABLE seen (path text, mine text)")
    execute(engine, LEAVING)
    execute(engine, "CREATE TRIGGER leaves BEFORE INSERT ON result FOR EACH ROW EXECUTE FUNCTION leaves()")
    task = prepared(migrated)
    rows = [attempt(task, part, batch((f"k{part}", part))) for part in range(7)]
    assert [new(each) for each in rows] == [1] * 7
    assert len(sessions(engine)) == 1
    # PostgreSQL forgets the value of a setting of one's own, not that there was one.
    seen = set(fetched(engine, "SELECT path LIKE '%pg_catalog%', coalesce(mine, '') FROM seen"))
    assert seen == {(False, "")}


@on("postgresql")
def test_a_session_of_ones_own_statements_is_not_kept(migrated: Database, engine: Engine) -> None:
    """Whatever statements leave in their session, the next task has another one, with the statement for each
    new connection."""
    execute(engine, "CREATE TABLE seen (path text, init text, role text)")
    results = Statements(
        "INSERT INTO seen SELECT current_setting('search_path'), current_setting('app.init'), current_user",
        "INSERT INTO result (id, amount) SELECT id, amount FROM new_rows",
        "CREATE TEMPORARY TABLE mine (id int)",
        "PREPARE mine AS SELECT 1",
        "SELECT pg_advisory_lock(4711)",
        "SET SESSION search_path = pg_catalog, public",
        "SET SESSION app.init = 'mine'",
        "SET SESSION ROLE pg_monitor",
        "RESET ROLE",
    )
    task = prepared(migrated, results=results, session_init_statement="SET app.init = 'given'")
    rows = [attempt(task, part, batch((f"k{part}", part))) for part in range(7)]
    assert [new(each) for each in rows] == [1] * 7
    assert sessions(engine) == []
    [(path, init, _)] = set(fetched(engine, "SELECT * FROM seen"))
    assert init == "given"
    assert "pg_catalog" not in path


@on("postgresql")
def test_a_session_that_the_server_ended_is_replaced(
    migrated: Database, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """The server ends the kept session between two tasks: the next one connects, at its first try."""
    task = prepared(migrated)
    assert new(attempt(task, 0, batch(("a", 1)))) == 1
    [before] = sessions(engine)
    execute(engine, f"SELECT pg_terminate_backend({before}, 10000)")
    tries: list[Connection] = []

    def count(connection: Connection) -> None:
        tries.append(connection)

    event.listen(Engine, "begin", count)
    try:
        assert new(attempt(task, 1, batch(("b", 2)))) == 1
    finally:
        event.remove(Engine, "begin", count)
    assert len(tries) == 1
    assert sessions(engine) != [before]
    assert "Exception" not in caplog.text
    assert [row for row, _ in written(engine)] == ["a", "b"]


def nothing(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
    """Results that read no row."""


@on("postgresql")
@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"results": Statements("SELECT 1 / 0")}, pytest.raises(DBAPIError)),
        ({"results": nothing}, nullcontext()),
        ({"max_connections": 1}, nullcontext()),
    ],
    ids=["error", "function", "budget"],
)
def test_such_a_connection_is_not_kept(
    migrated: Database, engine: Engine, options: dict[str, Any], ends: AbstractContextManager[object]
) -> None:
    """After an error, after a function of the user's own, and with max_connections, nothing stays open."""
    task = prepared(migrated, **options)
    with ends:
        assert new(attempt(task, 0, batch(("a", 1)))) == 1
    wait_until(lambda: not sessions(engine))


@on("postgresql")
def test_another_login_has_another_session(migrated: Database, engine: Engine) -> None:
    """The same address with another role or another setting is another connection, and the one that was kept
    is closed: a process keeps one."""
    with role(migrated) as other:
        execute(engine, f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {other.database.url.username}")
        execute(engine, f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {other.database.url.username}")
        url = other.database.url
        path = url.update_query_dict({"options": "-csearch_path=public"})
        for number, address in enumerate([migrated.url, url, path, migrated.url]):
            assert new(attempt(prepared(migrated, url=address), 0, batch((f"k{number}", 1)))) == 1
            wait_until(partial(are_of, engine, str(address.username)))
        KEPT.close()
        execute(engine, f"DROP OWNED BY {url.username}")


@on("postgresql")
def test_a_forked_process_leaves_the_connection_alone(migrated: Database, engine: Engine) -> None:
    """A child has a connection of its own, and its end does not end its parent's session."""
    task = prepared(migrated)
    assert new(attempt(task, 0, batch(("a", 1)))) == 1
    [before] = sessions(engine)
    child = multiprocessing.get_context("fork").Process(target=attempt, args=(task, 1, batch(("b", 2))))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    wait_until(lambda: sessions(engine) == [before])
    assert new(attempt(task, 2, batch(("c", 3)))) == 1
    assert sessions(engine) == [before]
    assert taken(engine) == ["a", "b", "c"]


@on("postgresql")
def test_a_table_that_has_changed_is_seen(migrated: Database, engine: Engine) -> None:
    """The target's columns change between two tasks: the second one writes them as they are now."""
    task = prepared(migrated)
    assert new(attempt(task, 0, batch(("a", 1)))) == 1
    execute(engine, "ALTER TABLE result ALTER amount TYPE numeric(20, 2), ALTER id TYPE text")
    assert new(attempt(task, 1, batch(("b", 2)))) == 1
    execute(engine, "ALTER TABLE result DROP amount, ADD amount integer")
    assert new(attempt(task, 2, batch(("c", 3)))) == 1
    assert written(engine) == [("a", None), ("b", None), ("c", 3)]


@on(*BOTH_MYSQL)
def test_elsewhere_each_transaction_connects(migrated: Database, engine: Engine) -> None:
    """A session that cannot be renewed is not kept."""
    task = prepared(migrated)
    assert new(attempt(task, 0, batch(("a", 1)))) == 1
    wait_until(lambda: fetched(engine, IS_THERE) == [(1,)])
