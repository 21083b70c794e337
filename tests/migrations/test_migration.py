"""Creating and upgrading the tables in three ways, which can follow one another."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Engine, Row, create_engine, insert, inspect, select

from inbox import Inbox, Verdict, migration
from inbox.schema import REVISION, metadata, tables
from outbox.schema import BUCKETS
from tests.support.alembic_project import run as alembic
from tests.support.application import Application
from tests.support.database import Database
from tests.support.inspection import snapshot
from tests.support.on_servers import each_on, on
from tests.support.program import ROOT
from tests.support.script import run_script

pytestmark = pytest.mark.mysql

MESSAGE = tables().message
SCHEMA = "App 100%"
REFUSED = f"InvalidOption: schema={SCHEMA!r}: only PostgreSQL has schemas inside a database"
INBOX_TABLES = set(metadata.tables)
PARTITION = {"consumer": "billing", "batch": 0, "part": 0, "parts": 1, "fingerprint": bytes(16)}
PARTITION |= {"rows_read": 1, "rows_new": 1, "rows_duplicate": 0, "rows_repeated": 0, "rows_dropped": 0}


@pytest.fixture
def in_environment(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variable in which the repository's `alembic` looks for the database."""
    monkeypatch.setenv(migration.URL_VARIABLE, database.url.render_as_string(hide_password=False))


def declared(database: Database) -> dict[str, object]:
    """The snapshot of another database on the same server, created from the declarations."""
    other = Database(database.server, database.server.new_database())
    try:
        metadata.create_all(other.engine())
        return snapshot(other.engine())
    finally:
        other.close()


def revision(engine: Engine, schema: str | None = None) -> str | None:
    """The revision of the tables."""
    with engine.connect() as connection:
        return migration.current(connection, schema)


def take(engine: Engine, *keys: str) -> list[Verdict]:
    """Take messages with the inbox."""
    with engine.begin() as connection:
        return [Inbox("billing").accept(connection, key) for key in keys]


def succeed(*arguments: str) -> str:
    """Run an `alembic` command that must succeed, and return its output."""
    done = alembic(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_migrate(database: Database) -> None:
    """`migrate(engine)` creates the tables as they are declared; a second call changes nothing."""
    engine = database.engine()
    migration.migrate(engine)
    assert snapshot(engine) == declared(database)
    assert revision(engine) == REVISION
    assert take(engine, "a") == [Verdict.NEW]
    migration.migrate(engine)
    assert take(engine, "a") == [Verdict.DUPLICATE]


def test_migrate_in_memory() -> None:
    """An in-memory SQLite database is migrated on its single connection."""
    engine = create_engine("sqlite://")
    migration.migrate(engine)
    assert take(engine, "a", "a") == [Verdict.NEW, Verdict.DUPLICATE]
    engine.dispose()


@pytest.mark.usefixtures("in_environment")
def test_alembic_in_the_repository(database: Database) -> None:
    """`alembic upgrade head` creates the same tables, `alembic check` finds nothing, and `downgrade base`
    removes them."""
    engine = database.engine()
    succeed("upgrade", "head")
    assert snapshot(engine) == declared(database)
    succeed("check")
    assert REVISION in succeed("current")
    succeed("downgrade", "base")
    assert inspect(engine).get_table_names() == []


@pytest.mark.quick("postgresql", "mariadb")
@pytest.mark.usefixtures("in_environment")
def test_alembic_in_the_repository_prints(database: Database) -> None:
    """`alembic upgrade head --sql` prints the SQL that creates the same tables, from the beginning or from a
    revision on; `downgrade --sql` prints the SQL that removes them."""
    run_script(database, succeed("upgrade", "head", "--sql"))
    engine = database.engine()
    assert snapshot(engine) == declared(database)
    run_script(database, succeed("downgrade", "head:0003", "--sql"))
    assert revision(engine) == "0003"
    migration.migrate(engine, "0002")
    run_script(database, succeed("upgrade", "0002:head", "--sql"))
    assert snapshot(engine) == declared(database)
    assert revision(engine) == REVISION


def test_alembic_in_the_repository_without_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without INBOX_OUTBOX_URL the error names that variable."""
    monkeypatch.delenv(migration.URL_VARIABLE, raising=False)
    done = alembic("upgrade", "head")
    assert done.returncode != 0
    assert migration.URL_VARIABLE in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("in_environment")
@each_on(
    "postgresql",
    "arguments",
    [(["upgrade", "head"],), (["upgrade", "head", "--sql"],), (["check"],)],
    [(["upgrade", "head"],), (["upgrade", "head", "--sql"],)],
    among=["sqlite"],
)
def test_alembic_in_the_repository_with_a_schema(database: Database, arguments: list[str]) -> None:
    """On PostgreSQL `alembic -x schema=NAME` puts the tables in the schema of that name, whatever it is; on
    other databases it is rejected."""
    if database.name != "postgresql":
        done = alembic("-x", f"schema={SCHEMA}", *arguments)
        assert done.returncode != 0
        assert done.stderr.splitlines()[-1] == REFUSED
        assert "Traceback" not in done.stderr
        return
    engine = database.engine()
    if arguments == ["check"]:
        migration.migrate(engine, schema=SCHEMA)
    output = succeed("-x", f"schema={SCHEMA}", *arguments)
    if "--sql" in arguments:
        run_script(database, output)
    assert set(inspect(engine).get_table_names(SCHEMA)) == INBOX_TABLES
    assert revision(engine, SCHEMA) == REVISION


@pytest.mark.quick("postgresql", "mariadb")
def test_in_an_application(database: Database, tmp_path: Path) -> None:
    """A revision in the application's own history creates the same tables, and the application's `alembic
    check` then finds nothing; a downgrade and another upgrade work, and do not touch the application's own
    tables."""
    engine, application = database.engine(), Application(tmp_path / "app", database.url)
    application.upgrade()
    application.check()
    made = snapshot(engine)
    assert {name: made[name] for name in INBOX_TABLES} == declared(database)
    assert take(engine, "a") == [Verdict.NEW]
    application.downgrade("invoices")
    assert set(inspect(engine).get_table_names()) == {"invoice", "alembic_version"}
    application.upgrade()
    assert snapshot(engine) == made
    assert take(engine, "a") == [Verdict.NEW]


@pytest.mark.quick("postgresql", "mariadb")
def test_in_an_application_that_prints(database: Database, tmp_path: Path) -> None:
    """In the application, `alembic upgrade --sql` prints the SQL that creates the same tables, and `downgrade
    --sql` the SQL that removes them, although its environment does not ask for literal values."""
    engine, application = database.engine(), Application(tmp_path / "app", database.url)
    run_script(database, application.upgrade_sql())
    application.check()
    made = snapshot(engine)
    assert {name: made[name] for name in INBOX_TABLES} == declared(database)
    assert revision(engine) == REVISION
    run_script(database, application.downgrade_sql("inbox:invoices"))
    assert set(inspect(engine).get_table_names()) == {"invoice", "alembic_version"}


def test_in_a_schema_of_an_application(postgres: Database, tmp_path: Path) -> None:
    """The application's revision can put the tables in a schema; `alembic check` finds nothing then
    either."""
    engine = postgres.engine()
    metadata.drop_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA app")
    application = Application(tmp_path / "app", postgres.url, schema="app")
    application.upgrade()
    application.check()
    assert set(inspect(engine).get_table_names("app")) == INBOX_TABLES
    application.downgrade("invoices")
    assert inspect(engine).get_table_names("app") == []


@on("sqlite")
@pytest.mark.usefixtures("in_environment")
def test_the_ways_follow_one_another(database: Database, tmp_path: Path) -> None:
    """The second of the ways finds the tables already created and changes nothing."""
    engine, application = database.engine(), Application(tmp_path / "app", database.url)
    application.upgrade()
    take(engine, "a")
    made = snapshot(engine)
    migration.migrate(engine)
    succeed("upgrade", "head")
    application.check()
    assert snapshot(engine) == made
    assert take(engine, "a") == [Verdict.DUPLICATE]


@on("sqlite")
def test_an_application_comes_second(database: Database, tmp_path: Path) -> None:
    """An application's revision that runs after `migrate` finds the tables already created."""
    engine, application = database.engine(), Application(tmp_path / "app", database.url)
    migration.migrate(engine)
    take(engine, "a")
    application.upgrade()
    application.check()
    assert take(engine, "a") == [Verdict.DUPLICATE]


@on("sqlite")
def test_after_create_all(database: Database) -> None:
    """Tables created from the metadata are at the newest revision: `migrate` has nothing to do."""
    engine = database.engine()
    metadata.create_all(engine)
    assert revision(engine) == REVISION
    take(engine, "a")
    migration.migrate(engine)
    metadata.create_all(engine)
    assert take(engine, "a") == [Verdict.DUPLICATE]


@each_on("sqlite", "next_way", [("migrate",), ("create_all",), ("application",)], [("migrate",)])
def test_back_to_base_leaves_nothing(database: Database, tmp_path: Path, next_way: str) -> None:
    """`migrate(engine, "base")` removes every table, so each of the ways can create them again."""
    engine = database.engine()
    migration.migrate(engine)
    migration.migrate(engine, "base")
    assert inspect(engine).get_table_names() == []
    assert revision(engine) is None
    migration.migrate(engine, "base")
    if next_way == "migrate":
        migration.migrate(engine)
    elif next_way == "create_all":
        metadata.create_all(engine)
    else:
        Application(tmp_path / "app", database.url).upgrade()
    assert revision(engine) == REVISION
    assert take(engine, "a") == [Verdict.NEW]


@on("sqlite")
def test_an_empty_version_table_means_base(database: Database, tmp_path: Path) -> None:
    """An empty version table, as `alembic stamp base` leaves it, does not disturb an upgrade."""
    engine = database.engine()
    tables().version.create(engine)
    with engine.begin() as connection:
        connection.execute(tables().version.delete())
    Application(tmp_path / "app", database.url).upgrade()
    assert revision(engine) == REVISION


def test_with_rows(database: Database) -> None:
    """Upgrades from each revision, and downgrades to each, leave the rows of all other tables unchanged."""
    engine = database.engine()
    names = [step.revision for step in revisions()]
    before: dict[str, list[Row[Any]]] = {}
    for name in [*names, *names[-2::-1], "base", *names]:
        migration.migrate(engine, name)
        assert revision(engine) == (None if name == "base" else name)
        after = content(engine)
        assert {table: after[table] for table in before if table in after} == {
            table: rows for table, rows in before.items() if table in after
        }
        if name != "base":
            fill(engine)
        before = content(engine)
    assert snapshot(engine) == declared(database)


def content(engine: Engine) -> dict[str, list[Row[Any]]]:
    """The rows of each of the library's tables that exist, but not the revision."""
    exist = inspect(engine).get_table_names()
    with engine.connect() as connection:
        return {
            table.name: sorted(connection.execute(select(table)), key=repr)
            for table in tables().message.metadata.sorted_tables
            if table.name in exist and table is not tables().version
        }


def fill(engine: Engine) -> None:
    """Insert rows with and without values in the nullable columns."""
    turn = uuid4().hex
    rows = [
        {"consumer": "billing", "key": f"{turn}-{number}", "claim": bytes(16)}
        | {"digest": bytes(16) if number else None, "result": "{}" if number else None}
        for number in range(2)
    ]
    in_status_mode = {"consumer": "orders", "claim": bytes(16), "status": "failed", "token": 1}
    in_status_mode |= {"key": turn}
    in_status_mode |= {"owner": "worker", "attempts_started": 1, "attempts_finished": 1}
    with engine.begin() as connection:
        connection.execute(insert(MESSAGE), rows)
        if inspect(connection).has_table("inbox_ledger"):
            connection.execute(insert(tables().ledger), PARTITION | {"run": turn})
        if inspect(connection).has_table("inbox_status"):
            connection.execute(insert(tables().status), in_status_mode)
        if inspect(connection).has_table("outbox_message"):
            for table in (tables().outbox.message, tables().outbox.delayed):
                message = {"id": str(uuid4()), "bucket": 1, "topic": "a", "payload": b"a", "content_type": ""}
                later = {"available_at": datetime.now(UTC)} if "available_at" in table.c else {}
                connection.execute(insert(table).inline(), message | later)
        if inspect(connection).has_table("inbox_consumer"):
            Inbox(turn).accept(connection, "a")


def test_new_tables_have_their_buckets(database: Database) -> None:
    """However the tables were created, the buckets exist and none is owned."""
    engine, bucket = database.engine(), tables().outbox.bucket
    expected = [(number, None, None, None, 1, None, None) for number in range(BUCKETS)]
    for make in (metadata.create_all, migration.migrate):
        make(engine)
        with engine.connect() as connection:
            assert connection.execute(select(bucket).order_by(bucket.c.bucket)).all() == expected
        migration.migrate(engine, "base")


def revisions() -> list[Script]:
    """All revisions, oldest first."""
    return list(ScriptDirectory(str(ROOT / "migrations")).walk_revisions())[::-1]


def test_the_declarations_are_at_the_newest_revision() -> None:
    """`schema.REVISION`, which `create_all` stamps, is the newest revision."""
    assert revisions()[-1].revision == REVISION


def test_the_page_names_the_newest_revision() -> None:
    """docs/tables.md names the newest revision where it shows a revision to copy, and lists every
    revision."""
    page = (ROOT / "docs" / "tables.md").read_text()
    assert set(re.findall(r'upgrade\(op, "(\d+)"', page)) == {REVISION}
    for step in revisions():
        assert f"\n| {step.revision} | " in page


def test_every_revision_has_a_way_back() -> None:
    """Every revision describes what it does, and has a downgrade that does something."""
    for step in revisions():
        assert step.doc
        assert step.module.downgrade.__code__.co_names, step.revision
