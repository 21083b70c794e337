"""The library's tables beside an application's own Alembic history, with real `alembic` commands."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, func, insert, inspect, select

import inbox
from inbox import Inbox, Verdict, migration
from inbox._migrating import one_at_a_time
from inbox._migrating.revisions import revisions
from inbox.errors import InvalidOption, TransientError, UnsupportedDatabase
from inbox.schema import FEATURES, REVISION, VERSION_TABLE, metadata, metadata_for, tables
from outbox import Outbox
from tests.support.alembic_project import Project
from tests.support.cli import error, inbox_outbox, succeeded
from tests.support.database import Database
from tests.support.inspection import snapshot
from tests.support.on_servers import on
from tests.support.script import run_script

OWN = {"alembic_version", "invoice"}
HIDDEN = 'settings["include_name"] = inbox.migration.include_name'
ALL = {VERSION_TABLE}.union(*FEATURES.values())
not_mysql = on("postgresql", "mariadb", "sqlite")
"""For long tests: MySQL has the same code and DDL as MariaDB."""


def metadata_of(*features: str, schema: str | None = None) -> str:
    """A line of `env.py` that names the library's metadata."""
    ours = f"inbox.schema.metadata_for(*{features!r}, schema={schema!r})"
    return f'settings |= {{"target_metadata": [own, {ours}], "include_schemas": {schema is not None}}}'


def there(engine: Engine, schema: str | None = None) -> set[str]:
    """The tables in the database."""
    return set(inspect(engine).get_table_names(schema))


def expected(*features: str) -> set[str]:
    """The tables of some features, with the version table."""
    return {VERSION_TABLE}.union(*(FEATURES[each] for each in features))


def test_autogenerate_leaves_our_tables_alone(postgres: Database, tmp_path: Path) -> None:
    """With `include_name` in its `env.py`, an application whose library tables were created by `migrate`
    autogenerates revisions for its own tables only, which drop none of the library's; `alembic check` then
    finds nothing."""
    engine = postgres.engine()
    migration.migrate(engine)
    migration.migrate(engine, schema="messaging")
    inbox.set_policy(engine, "billing", mode="exactly-once", key_time="uuid7")
    parts = {each.name for each in inbox.partitions(engine, "billing", ahead=timedelta(days=2))}
    parts |= {"inbox_message_default", max(parts).rpartition("_")[0].removesuffix("_before")}
    application = Project(tmp_path, postgres.url, f'{HIDDEN}; settings["include_schemas"] = True')
    written = application.autogenerate("invoices")
    assert "create_table('invoice'" in written
    assert "inbox" not in written
    assert "outbox" not in written
    application.alembic("upgrade", "head")
    application.alembic("check")
    assert there(engine) == OWN | ALL | parts
    application.alembic("downgrade", "base")
    assert there(engine) == {"alembic_version"} | ALL | parts


@on("postgresql", "mariadb")
def test_some_of_the_features(database: Database, tmp_path: Path) -> None:
    """An application that uses only the inbox gets only the inbox's tables, and `alembic check` finds
    nothing; a later revision adds the outbox, and its downgrade removes it again."""
    engine = database.engine()
    application = Project(tmp_path / "inbox", database.url, metadata_of("inbox"))
    application.write(
        "invoices",
        'op.execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY NOT NULL)")',
        'op.drop_table("invoice")',
    )
    application.write(
        "inbox", f'migration.upgrade(op, "{REVISION}", features=["inbox"])', "migration.downgrade(op)"
    )
    application.alembic("upgrade", "head")
    application.alembic("check")
    assert there(engine) == OWN | expected("inbox")
    with engine.begin() as connection:
        assert Inbox("billing").accept(connection, "a") is Verdict.NEW
    application.write(
        "outbox",
        f'migration.upgrade(op, "{REVISION}", features=["inbox", "outbox"])',
        'migration.downgrade(op, features=["outbox"])',
    )
    application.alembic("upgrade", "head")
    assert there(engine) == OWN | expected("inbox", "outbox")
    with engine.begin() as connection:
        Outbox().publish(connection, "orders", "a")
        assert Inbox("billing").accept(connection, "a") is Verdict.DUPLICATE
    application.alembic("downgrade", "inbox")
    assert there(engine) == OWN | expected("inbox")
    application.alembic("downgrade", "invoices")
    assert there(engine) == OWN


@on("postgresql", "sqlite")
def test_a_naming_convention(database: Database, tmp_path: Path) -> None:
    """An application's naming convention applies only to its own tables: the library's tables are the same as
    those that `migrate` creates, down to the constraints, and so is the SQL that `alembic --sql` prints."""
    convention = {"ck": "ck_%(table_name)s_%(constraint_name)s", "pk": "pk_%(table_name)s"}
    application = Project(tmp_path, database.url, f"own.naming_convention = {convention}")
    application.write("inbox", "migration.upgrade(op)", "migration.downgrade(op)")
    application.alembic("upgrade", "head")
    assert "ck_inbox" not in application.alembic("upgrade", "head", "--sql")
    application.alembic("downgrade", "base")
    application.alembic("upgrade", "head")
    engine = database.engine()
    made = snapshot(engine)
    application.alembic("downgrade", "base")
    migration.migrate(engine)
    assert made == snapshot(engine)


@not_mysql
@pytest.mark.parametrize("features", [("inbox",), ("status", "outbox")])
def test_the_features_are_the_same_whichever_way(database: Database, features: tuple[str, ...]) -> None:
    """`migrate`, its SQL and `metadata_for` create the same tables for the same features; features that were
    left out can be added later, with the same result."""
    engine = database.engine()
    others = [Database(database.server, database.server.new_database()) for _ in range(3)]
    try:
        migration.migrate(engine, features=features)
        made = snapshot(engine)
        assert set(made) == expected(*features)
        run_script(others[0], migration.script(engine.dialect.name, features=features))
        metadata_for(*features).create_all(others[1].engine())
        assert snapshot(others[0].engine()) == snapshot(others[1].engine()) == made
        migration.migrate(engine, features=features)
        assert snapshot(engine) == made
        migration.migrate(engine)
        migration.migrate(others[2].engine())
        assert snapshot(engine) == snapshot(others[2].engine())
        if database.name == "postgresql":
            for step in [*revisions()[-2::-1], *revisions()]:
                migration.migrate(engine, step.revision)
        assert snapshot(engine) == snapshot(others[2].engine())
    finally:
        for each in others:
            each.close()


def test_invalid_features(postgres: Database) -> None:
    """An unknown feature is rejected by name, before anything is done."""
    for wrong in (["mailbox"], [], "inbox"):
        with pytest.raises(InvalidOption, match=r"features=.*expected some of inbox, status, ledger, outbox"):
            migration.migrate(postgres.engine(), features=wrong)
    for names in (("mailbox",), ()):
        with pytest.raises(InvalidOption, match=r"features=.*expected some of inbox"):
            metadata_for(*names)
    done = inbox_outbox("migrate", "--feature", "mailbox", url=postgres.url)
    assert (done.returncode, error(done)[:23]) == (2, "--feature=['mailbox']: ")


def test_every_revision_names_its_features() -> None:
    """Every revision names the features whose tables it creates or changes, and together they create all
    tables."""
    for step in revisions():
        assert set(step.module.features) <= set(FEATURES)
        assert step.module.features
        for name in getattr(step.module, "makes", ()):
            assert {each for each, names in FEATURES.items() if name in names} == set(step.module.features)
    assert {name for step in revisions() for name in getattr(step.module, "makes", ())} == ALL - {
        VERSION_TABLE
    }
    assert set(metadata.tables) == ALL


@not_mysql
def test_what_autogenerate_writes_of_our_tables_can_be_run(database: Database, tmp_path: Path) -> None:
    """A revision autogenerated from the library's metadata runs up and down without edits, and `alembic
    check` then finds nothing; `migrate` reports that no revision is recorded, instead of creating the tables
    again."""
    engine = database.engine()
    application = Project(tmp_path, database.url, metadata_of(*FEATURES))
    written = application.autogenerate("everything")
    assert "inbox." not in written.replace("inbox.schema", "")
    application.alembic("upgrade", "head")
    application.alembic("check")
    assert there(engine) == OWN | ALL
    with engine.begin() as connection:
        assert Inbox("billing").accept(connection, "a") is Verdict.NEW
    with pytest.raises(UnsupportedDatabase, match=f"tables of inbox, .* {VERSION_TABLE} names no revision"):
        migration.migrate(engine)
    with engine.begin() as connection:
        connection.execute(insert(tables().version).values(version_num=REVISION))
    migration.migrate(engine)
    application.alembic("downgrade", "base")
    assert there(engine) == {"alembic_version"}


def test_a_schema_is_made(postgres: Database, tmp_path: Path) -> None:
    """`upgrade(op, schema=...)` creates the schema, on a database and in printed SQL; a role that cannot
    create schemas can use an existing one."""
    engine = postgres.engine()
    application = Project(
        tmp_path,
        postgres.url,
        metadata_of("inbox", schema="messaging") + "; own.clear()",
    )
    metadata.drop_all(engine)
    write = f'migration.upgrade(op, "{REVISION}", schema="messaging", features=["inbox"])'
    application.write("inbox", write, 'migration.downgrade(op, schema="messaging")')
    run_script(postgres, application.alembic("upgrade", "head", "--sql"))
    assert there(engine, "messaging") == expected("inbox")
    application.alembic("downgrade", "base")
    assert there(engine, "messaging") == set()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA messaging")
    application.alembic("upgrade", "head")
    application.alembic("check")
    assert there(engine, "messaging") == expected("inbox")


@contextmanager
def busy(engine: Engine) -> Iterator[Connection]:
    """A transaction that has read one of the library's tables; on SQLite one that writes."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.execute(select(func.count()).select_from(tables().message))
        yield connection
        connection.rollback()


@not_mysql
def test_a_locked_table_does_not_hold_a_migration_for_ever(
    migrated: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration that cannot lock a table gives up with a transient error, at a revision from which the next
    one can continue. On PostgreSQL other sessions can use the table in between, even if they came after the
    migration."""
    monkeypatch.setattr(one_at_a_time, "LOCK_WAIT", 3)
    monkeypatch.setattr(one_at_a_time, "TABLE_WAIT", 1)
    engine = migrated.engine()
    looks: list[int] = []
    stop = threading.Event()

    def look() -> None:
        other = migrated.engine()
        while not stop.wait(0.1):
            with other.connect() as connection:
                looks.append(
                    connection.execute(select(func.count()).select_from(tables().message)).scalar_one()
                )

    watcher = threading.Thread(target=look)
    with busy(migrated.engine()):
        watcher.start()
        with pytest.raises(TransientError, match=r"a table has been locked for 3|has been running for 3"):
            migration.migrate(engine, "base")
        stop.set()
    watcher.join(30)
    if migrated.name == "postgresql":
        assert looks
    with engine.connect() as connection:
        assert migration.current(connection) == ("0001" if migrated.name == "mariadb" else REVISION)
    migration.migrate(engine, "base")
    assert there(engine) == set()


def test_a_migration_goes_on_once_the_table_is_free(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the table is free again within the time limit, the migration succeeds."""
    monkeypatch.setattr(one_at_a_time, "TABLE_WAIT", 1)
    with busy(postgres.engine()) as holder:
        free = threading.Timer(2, holder.rollback)
        free.start()
        migration.migrate(postgres.engine(), "base")
        free.join()
    assert there(postgres.engine()) == set()


def test_somebody_else_s_migration_is_waited_for_with_a_bound(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL a migration waits only a limited time for another one that hangs."""
    monkeypatch.setattr(one_at_a_time, "LOCK_WAIT", 1)
    with (
        one_at_a_time.turn(postgres.engine()),
        pytest.raises(TransientError, match="another migration has been running for 1"),
    ):
        migration.migrate(postgres.engine())


def test_rows_are_not_deleted_without_a_question(postgres: Database) -> None:
    """`migrate --to base` on tables with rows reports the number of rows in each, and changes nothing without
    `--yes`; so does a downgrade to an older revision, for the tables that it removes."""
    engine = postgres.engine()
    with engine.begin() as connection:
        for key in "abc":
            Inbox("billing").accept(connection, key)
        Outbox().publish(connection, "orders", "a")
    done = inbox_outbox("migrate", "--to", "base", url=postgres.url)
    assert done.returncode == 2
    assert "3 rows of inbox_message" in error(done)
    assert "1 row of outbox_message" in error(done)
    assert "--yes" in error(done)
    done = inbox_outbox("migrate", "--to", "0003", url=postgres.url)
    assert (done.returncode, "outbox_message" in error(done), "inbox_message" in error(done)) == (
        2,
        True,
        False,
    )
    assert there(engine) == ALL
    assert "tables are at revision base" in succeeded(
        inbox_outbox("migrate", "--to", "base", "--yes", url=postgres.url)
    )
    assert there(engine) == set()
    succeeded(inbox_outbox("migrate", "--feature", "inbox", "--feature", "status", url=postgres.url))
    assert there(engine) == expected("inbox", "status")
    succeeded(inbox_outbox("migrate", "--to", "base", url=postgres.url))
