"""Migrating in a schema, at the same time as others, and cases that must be rejected."""

import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, Table, create_engine, delete, event, func, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError

from inbox import Inbox, Verdict, migration, show
from inbox._migrating import one_at_a_time
from inbox.errors import InvalidOption, TransientError, UnsupportedDatabase
from inbox.schema import REVISION, STATUS_RULES, VERSION_TABLE, metadata, tables
from inbox_outbox_base.tables.inbox import REFUSED_RULES
from inbox_outbox_base.tables.outbox import DEAD_RULES, MESSAGE_RULES
from tests.servers import Server
from tests.support.application import Application
from tests.support.cases import case
from tests.support.database import Database
from tests.support.inspection import snapshot
from tests.support.on_servers import BOTH_MYSQL, on
from tests.support.processes import workers

pytestmark = pytest.mark.mysql

ROUNDS = 3


def test_a_schema(database: Database) -> None:
    """On PostgreSQL the tables are created in the requested schema, which is created too, and the inbox works
    there; other databases raise an error that says that only PostgreSQL has schemas."""
    engine = database.engine()
    if database.name != "postgresql":
        with pytest.raises(InvalidOption, match="schema='app': only PostgreSQL"):
            migration.migrate(engine, schema="app")
        with pytest.raises(InvalidOption, match="schema='app': only PostgreSQL"):
            migration.script(engine.dialect.name, schema="app")
        assert inspect(engine).get_table_names() == []
        return
    migration.migrate(engine, schema="app")
    assert inspect(engine).get_table_names() == []
    with engine.begin() as connection:
        assert Inbox("billing", schema="app").accept(connection, "a") is Verdict.NEW
    assert show(engine, "billing", "a", schema="app") is not None
    made = snapshot(engine, "app")
    metadata.create_all(engine)
    assert made == snapshot(engine)


def test_schemas_are_apart(postgres: Database) -> None:
    """Several schemas of one database have their own tables and revisions; unusual names are quoted."""
    engine = postgres.engine()
    for name in ('Äpp "x"', "b%s"):
        migration.migrate(engine, schema=name)
    migration.migrate(engine, "base", schema="b%s")
    with engine.connect() as connection:
        reached = [migration.current(connection, name) for name in (None, 'Äpp "x"', "b%s")]
    assert reached == [REVISION, REVISION, None]


@on("sqlite")
def test_unknown_revisions_are_refused(database: Database) -> None:
    """An unknown revision is rejected by name, and nothing is done."""
    engine = database.engine()
    with pytest.raises(
        InvalidOption,
        match=r"revision='0815': expected head or one of base, 0001, 0002, 0003, 0004, 0005, 0006$",
    ):
        migration.migrate(engine, "0815")
    with pytest.raises(InvalidOption, match="revision='0815'"):
        migration.script(engine.dialect.name, "0815")
    assert inspect(engine).get_table_names() == []


def test_tables_of_a_newer_version_are_left_alone(sqlite: Database, tmp_path: Path) -> None:
    """Tables at a revision that this version of the library does not know are neither upgraded nor
    downgraded."""
    engine = sqlite.engine()
    with engine.begin() as connection:
        connection.execute(update(tables().version).values(version_num="9999"))
    for revision in ("head", "base"):
        with pytest.raises(UnsupportedDatabase, match="9999"):
            migration.migrate(engine, revision)
    with pytest.raises(UnsupportedDatabase, match="9999"):
        Application(tmp_path / "app", sqlite.url).upgrade()
    assert inspect(engine).has_table("inbox_message")


def test_other_databases_are_refused() -> None:
    """A dialect without revisions is rejected by name."""
    with pytest.raises(UnsupportedDatabase, match="dialect='mssql'"):
        migration.script("mssql")


@on("sqlite")
def test_the_application_s_version_is_untouched(database: Database) -> None:
    """`migrate` neither reads nor writes the version table of the application's own history."""
    engine = database.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('theirs')")
    for revision in ("head", "base", "head"):
        migration.migrate(engine, revision)
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT * FROM alembic_version").all() == [("theirs",)]


@pytest.mark.quick("postgresql", "mariadb")
def test_several_processes_at_the_same_time(database: Database) -> None:
    """Four processes that migrate at the same time all succeed, on the upgrade and on the downgrade."""
    url = database.url.render_as_string(hide_password=False)
    engine = database.engine()
    with workers(*[(_migrate_when_told, url)] * 4) as processes:
        for revision in ["head", "base"] * ROUNDS + ["head"]:
            for process in processes:
                process.tell(revision)
            assert [process.hear() for process in processes] == ["done"] * 4
            assert inspect(engine).has_table("inbox_message") is (revision == "head")
    with engine.connect() as connection:
        assert migration.current(connection) == REVISION


def _migrate_when_told(pipe: Connection, url: str) -> None:
    warnings.simplefilter("error")
    while True:
        revision = pipe.recv()
        engine = create_engine(url)
        migration.migrate(engine, revision)
        engine.dispose()
        pipe.send("done")


@pytest.mark.parametrize(
    ("server", "level"),
    [
        *product(["postgresql", "mariadb"], ["AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"]),
        *product(["mysql", "sqlite"], ["AUTOCOMMIT", "SERIALIZABLE"]),
    ],
    indirect=["server"],
)
def test_at_every_isolation_level(database: Database, level: str) -> None:
    """At every isolation level, several threads can migrate an engine's database at the same time, and the
    engine keeps its level."""
    engine = database.engine(isolation_level=level)
    with engine.connect() as connection:
        before = connection.get_isolation_level()
    _migrate_together([engine] * 3)
    with engine.connect() as connection:
        assert migration.current(connection) == REVISION
        assert connection.get_isolation_level() == before


@pytest.mark.quick("postgresql", "mariadb")
def test_several_databases_at_the_same_time(server: Server) -> None:
    """Threads of one process can migrate several databases at the same time."""
    databases = [Database(server, server.new_database()) for _ in range(3)]
    try:
        engines = [database.engine() for database in databases]
        _migrate_together(engines)
        for engine in engines:
            with engine.connect() as connection:
                assert migration.current(connection) == REVISION
    finally:
        for database in databases:
            database.close()


def _migrate_together(engines: list[Engine]) -> None:
    start = threading.Barrier(len(engines))

    def one(engine: Engine) -> None:
        start.wait(30)
        migration.migrate(engine)

    with ThreadPoolExecutor(len(engines)) as pool:
        list(pool.map(one, engines))


@on("postgresql", "sqlite")
def test_a_failure_leaves_no_trace(database: Database) -> None:
    """Where the database can roll back DDL, a failed migration leaves nothing behind."""
    engine = database.engine()
    in_the_way = "CREATE TABLE inbox_message_accepted_at (id INTEGER)"
    with engine.begin() as connection:
        connection.exec_driver_sql(in_the_way)
    with pytest.raises(DBAPIError):
        migration.migrate(engine)
    assert inspect(engine).get_table_names() == ["inbox_message_accepted_at"]


MOMENTS: dict[str, list[str]] = {
    "CREATE TABLE inbox_outbox_version": [],
    "CREATE TABLE inbox_message": ["none of our migrations created them", "inbox_message"],
    "CREATE TABLE inbox_ledger": ["revision 0002, inbox_ledger exist already", "inbox_ledger"],
    "CREATE TABLE outbox_message": ["revision 0004, outbox_message exist already", "outbox_message"],
    "CREATE TABLE inbox_consumer": ["revision 0005, inbox_consumer exist already", "inbox_consumer"],
}
"""By the last statement of a migration: what the next one says, and the tables that it has left."""


@on(*BOTH_MYSQL)
def test_a_migration_that_dies_within_a_revision(database: Database) -> None:
    """Where DDL cannot be rolled back, the next one names what is there, drops nothing, and continues once
    somebody has dropped it."""
    engine, whole = database.engine(), None
    for moment, left in MOMENTS.items():
        dying = database.engine()
        event.listen(dying, "after_cursor_execute", partial(_die_at, moment))
        with case(moment):
            with pytest.raises(ZeroDivisionError):
                migration.migrate(dying)
            if left:
                before = inspect(engine).get_table_names()
                with pytest.raises(UnsupportedDatabase, match=left[0]):
                    migration.migrate(engine)
                assert inspect(engine).get_table_names() == before
            with engine.begin() as connection:
                for name in left[1:]:
                    connection.exec_driver_sql(f"DROP TABLE {name}")
            migration.migrate(engine)
            whole = whole or snapshot(engine)
            assert snapshot(engine) == whole
        migration.migrate(engine, "base")


@on(*BOTH_MYSQL)
def test_a_way_back_that_dies(database: Database) -> None:
    """The next one drops what is left."""
    engine, dying = database.engine(), database.engine()
    migration.migrate(engine)
    event.listen(dying, "after_cursor_execute", partial(_die_at, "DROP TABLE IF EXISTS outbox_id"))
    with pytest.raises(ZeroDivisionError):
        migration.migrate(dying, "base")
    migration.migrate(engine, "base", keep_rows=True)
    assert inspect(engine).get_table_names() == []


@on(*BOTH_MYSQL)
def test_features_whose_migration_has_died(database: Database) -> None:
    """A table that several features share is made by the next one."""
    engine, dying = database.engine(), database.engine()
    migration.migrate(engine, features=["outbox"])
    event.listen(dying, "after_cursor_execute", partial(_die_at, "CREATE INDEX inbox_message_accepted_at"))
    with pytest.raises(ZeroDivisionError):
        migration.migrate(dying, features=["inbox"])
    migration.migrate(engine, features=["inbox"])
    assert inspect(engine).has_table("inbox_consumer")


@on("mariadb", "sqlite")
def test_a_table_of_another_application(database: Database) -> None:
    """A table that has one of our names is left alone, and refused by name if it is in the way."""
    engine = database.engine()
    migration.migrate(engine, features=["inbox"])
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE outbox_message (id INTEGER)")
        connection.exec_driver_sql("INSERT INTO outbox_message VALUES (1)")
    migration.migrate(engine, features=["inbox"])
    with pytest.raises(UnsupportedDatabase, match="revision 0004, outbox_message exist, but not"):
        migration.migrate(engine)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT id FROM outbox_message").scalar_one() == 1


def _die_at(moment: str, *given: Any) -> None:
    if given[2].replace("`", "").strip().startswith(moment):
        raise ZeroDivisionError


@on(*BOTH_MYSQL)
def test_a_migration_that_waits_too_long_says_so(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """On MySQL and MariaDB, where GET_LOCK times out without an error, a migration that waits too long for
    the lock raises an error that says so, and does nothing."""
    monkeypatch.setattr(one_at_a_time, "LOCK_WAIT", 1)
    engine = database.engine()
    with engine.connect() as connection:
        connection.execute(select(func.get_lock(VERSION_TABLE, 10)))
        with pytest.raises(TransientError, match="another migration has been running"):
            migration.migrate(engine)
    assert inspect(engine).get_table_names() == []


def test_the_turn_ends_with_the_migration(database: Database) -> None:
    """A pooled connection does not keep the lock: another engine can migrate immediately."""
    first, second = database.engine(pool_size=1), database.engine(pool_size=1)
    for engine, revision in ((first, "head"), (second, "base"), (first, "head")):
        migration.migrate(engine, revision)


MESSAGE_ROW: dict[str, object] = {"consumer": "billing", "key": "a", "claim": bytes(16)}
STATUS_ROW = MESSAGE_ROW | {
    "status": "failed",
    "token": 1,
    "owner": "worker",
    "attempts_started": 1,
    "attempts_finished": 1,
}
HALF_STATES: list[tuple[str, dict[str, object]]] = [
    ("known", {"status": "lost"}),
    ("lease", {"status": "consuming"}),
    ("lease", {"lease_until": datetime(2026, 1, 1, tzinfo=UTC)}),
    ("attempts", {"attempts_finished": 2}),
    ("attempts", {"attempts_started": -1, "attempts_finished": -1}),
    ("result", {"result": "1"}),
    ("halted", {"status": "halted", "error": "no"}),
    ("given_up", {"status": "halted", "pending_step": "charge"}),
    ("given_up", {"status": "dead"}),
    ("consumer_not_empty", {"consumer": ""}),
    ("key_not_empty", {"key": ""}),
]


REFUSED_ROW: dict[str, object] = {"consumer": "billing", "key": "", "verdict": "mismatch", "times": 1}
HALF_REFUSED: list[tuple[str, dict[str, object]]] = [
    ("known", {"verdict": "new"}),
    ("counts", {"times": 0}),
    ("consumer_not_empty", {"consumer": ""}),
]
LETTER: dict[str, object] = {"bucket": 0, "id": "a", "topic": "orders", "payload": b"", "content_type": "a"}
HALF_SENT: list[tuple[str, dict[str, object]]] = [
    ("known", {"state": "sent", "error": "no"}),
    ("attempts", {"attempts": 1, "unanswered": 2}),
    ("attempts", {"attempts": 0, "unanswered": -1}),
    ("why", {"state": "held"}),
    ("why", {"state": "unknown"}),
]
DEAD_LETTER = LETTER | {"attempts": 1, "outcome": "refused", "error": "no"}


def test_checks_refuse_half_states(migrated: Database) -> None:
    """The database itself rejects an empty consumer and an empty key, and its error names the rule."""
    empty: list[tuple[str, dict[str, object]]] = [
        (f"{column}_not_empty", {column: ""}) for column in ("consumer", "key")
    ]
    _refused(migrated.engine(), tables().message, MESSAGE_ROW, empty)


def test_checks_refuse_half_states_of_a_message(migrated: Database) -> None:
    """The database rejects impossible states of a message of status-table mode."""
    _refused(migrated.engine(), tables().status, STATUS_ROW, HALF_STATES)


def test_checks_refuse_half_states_of_a_refused_message(migrated: Database) -> None:
    """The database rejects impossible states of a refused message; only the key may be empty."""
    _refused(migrated.engine(), tables().refused, REFUSED_ROW, HALF_REFUSED)


def test_checks_refuse_half_states_of_the_outbox(migrated: Database) -> None:
    """The database rejects impossible states of a message that waits for a relay."""
    _refused(migrated.engine(), tables().outbox.message, LETTER, HALF_SENT)


def test_checks_refuse_unknown_kinds_of_dead_letters(migrated: Database) -> None:
    """A dead letter's outcome is refused or unknown; the database rejects any other."""
    _refused(migrated.engine(), tables().outbox.dead, DEAD_LETTER, [("known", {"outcome": "sent"})])


def test_every_rule_is_broken() -> None:
    """Every CHECK rule of the tables is broken by one of these tests."""
    assert {*STATUS_RULES} <= {rule for rule, _ in HALF_STATES}
    assert {*MESSAGE_RULES} == {rule for rule, _ in HALF_SENT}
    assert {*DEAD_RULES} == {"known"}
    assert {*REFUSED_RULES} <= {rule for rule, _ in HALF_REFUSED}


def test_numbers_never_come_again(database: Database) -> None:
    """Message sequences are never reused, even if the last row was deleted: otherwise an old relay could
    mistake a new message for its own. This holds for tables created in both ways."""
    for make in (metadata.create_all, migration.migrate):
        engine = database.engine()
        make(engine)
        message, drawn = tables().outbox.message, []
        for _ in range(3):
            with engine.begin() as connection:
                connection.execute(insert(message), LETTER)
                drawn.append(connection.execute(select(message.c.sequence)).scalar_one())
                connection.execute(delete(message))
        assert drawn == sorted(set(drawn))
        migration.migrate(engine, "base")


def _refused(
    engine: Engine, table: Table, row: dict[str, object], halves: Sequence[tuple[str, dict[str, object]]]
) -> None:
    with engine.begin() as connection:
        connection.execute(insert(table), row)
    other = row | {"key": "b"} | ({"id": "b"} if "id" in row else {})
    for rule, half in halves:
        broken = pytest.raises(DBAPIError, match=f"{table.name}_{rule}")
        with case(half), engine.connect() as connection, broken:
            connection.execute(insert(table), other | half)
