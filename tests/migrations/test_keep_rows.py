"""A migration that is to keep rows drops no table that has some, whenever they were committed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, event, func, insert, inspect, select
from sqlalchemy.exc import DBAPIError

from inbox import migration
from inbox.errors import InvalidOption
from inbox.schema import REVISION, tables
from inbox_outbox_base.errors import codes
from outbox import Outbox
from tests.support.cli import error, inbox_outbox, succeeded
from tests.support.database import Database
from tests.support.on_servers import on

pytestmark = pytest.mark.mysql

OURS = tables()
FIRST = ("BEGIN IMMEDIATE", "LOCK TABLE", "DROP TABLE")
"""The first statements for which a migration may have to wait for others."""
IMPATIENT = {
    "postgresql": "SET lock_timeout = '100ms'",
    "mariadb": "SET SESSION lock_wait_timeout = 1",
    "mysql": "SET SESSION lock_wait_timeout = 1",
    "sqlite": "PRAGMA busy_timeout = 100",
}


def once_before(engine: Engine, beginnings: tuple[str, ...], act: Callable[[], object]) -> None:
    """Call `act` before this engine's first statement that begins like one of these."""
    acts = [act]

    def before(*given: Any) -> None:
        if acts and given[2].strip().startswith(beginnings):
            acts.pop()()

    event.listen(engine, "before_cursor_execute", before)


def messages(engine: Engine) -> int:
    """How many messages wait in the outbox."""
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(OURS.outbox.message)).scalar_one()


def test_rows_that_are_committed_meanwhile(migrated: Database) -> None:
    """A message that is committed while the migration waits for the table's lock is named and kept."""
    publishing, migrating = migrated.engine(), migrated.engine()
    with publishing.connect() as connection:
        connection.begin()
        Outbox().publish(connection, "orders", b"", "a")
        once_before(migrating, FIRST, connection.commit)
        with pytest.raises(InvalidOption, match="revision='0003': this deletes 1 row of outbox_message"):
            migration.migrate(migrating, "0003", keep_rows=True)
    assert messages(publishing) == 1
    with publishing.connect() as connection:
        assert migration.current(connection) == REVISION


def test_nobody_adds_rows_before_the_tables_are_dropped(migrated: Database) -> None:
    """From the count to the DROP, others wait for the tables."""
    publishing, migrating, met = migrated.engine(), migrated.engine(), list[bool]()

    def publish() -> None:
        with publishing.connect() as connection:
            connection.exec_driver_sql(IMPATIENT[migrated.name])
            with pytest.raises(DBAPIError) as raised:
                connection.execute(insert(OURS.message), {"consumer": "a", "key": "b", "claim": bytes(16)})
            met.append(codes.ends_wait(raised.value))

    once_before(migrating, ("DROP TABLE",), publish)
    migration.migrate(migrating, "base", keep_rows=True)
    assert met == [True]
    assert inspect(migrating).get_table_names() == []


def down(connection: Connection, **options: Any) -> None:
    """`downgrade` in a revision of the application's own history."""
    context = MigrationContext.configure(connection)
    with Operations.context(context) as op:
        migration.downgrade(op, **options)


def test_in_an_own_history(migrated: Database) -> None:
    """`downgrade` in an application's own revision keeps rows, too, and leaves no lock behind."""
    engine, others = migrated.engine(), migrated.engine()
    with engine.begin() as connection:
        connection.execute(insert(OURS.message), {"consumer": "a", "key": "b", "claim": bytes(16)})
    with engine.connect() as connection:
        once_before(engine, FIRST, partial(publish_by, others))
        with pytest.raises(InvalidOption, match="1 row of outbox_message"):
            down(connection, features=["outbox"], keep_rows=True)
        connection.rollback()
        assert connection.execute(select(OURS.message.c.key)).scalars().all() == ["b"]
    with others.begin() as connection:
        connection.execute(OURS.outbox.message.delete())
    with engine.begin() as connection:
        down(connection, features=["outbox"], keep_rows=True)
        assert connection.execute(select(OURS.message.c.key)).scalars().all() == ["b"]
    assert not inspect(engine).has_table("outbox_message")


def publish_by(engine: Engine) -> None:
    """Commit a message."""
    with engine.begin() as connection:
        Outbox().publish(connection, "orders", b"", "a")


@on("postgresql")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_is_refused(migrated: Database, level: str) -> None:
    """A transaction that does not see what others commit meanwhile is refused, and nothing is dropped."""
    engine = migrated.engine(isolation_level=level)
    with engine.connect() as connection, pytest.raises(InvalidOption, match=f"at {level}, rows that others"):
        down(connection, keep_rows=True)
    assert inspect(engine).has_table("outbox_message")


@on("sqlite")
def test_a_script_counts_no_rows(migrated: Database) -> None:
    """`alembic downgrade --sql` cannot keep rows, and says so."""
    context = MigrationContext.configure(dialect_name="sqlite", opts={"as_sql": True})
    with (
        Operations.context(context) as op,
        pytest.raises(InvalidOption, match="keep_rows=True: a script cannot count rows"),
    ):
        migration.downgrade(op, keep_rows=True)


@pytest.mark.quick("sqlite", "mariadb")
def test_the_command_asks_for_yes(migrated: Database) -> None:
    """`migrate --to` counts what it would delete, and needs --yes for it."""
    engine = migrated.engine()
    publish_by(engine)
    refused = inbox_outbox("migrate", "--to", "0003", url=migrated.url)
    assert refused.returncode == 2
    assert "this deletes 1 row of outbox_message; if that is what you want, add --yes" in error(refused)
    assert messages(engine) == 1
    done = inbox_outbox("migrate", "--to", "0003", "--yes", url=migrated.url)
    assert succeeded(done) == "tables are at revision 0003\n"
    assert not inspect(engine).has_table("outbox_message")
