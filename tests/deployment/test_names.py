"""A schema may have any name, and so may a database."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, delete, inspect
from sqlalchemy.schema import CreateSchema, DropSchema

import inbox
import outbox
from inbox import Inbox, SqlStore, StatusInbox, Verdict, migration, purge
from inbox.errors import InvalidOption
from inbox.schema import FEATURES, REVISION, VERSION_TABLE, metadata_for, tables
from outbox import Message, Outbox, Relay
from tests.support.database import Database
from tests.support.outbox_publishers import Recorder
from tests.support.script import run_script

NAMES = ["none", "Büro 100% :a\"b'c-%s"]
"""The first is a keyword of PostgreSQL that SQLAlchemy does not know."""
MONTH = timedelta(days=30)


@contextmanager
def named(database: Database, name: str) -> Iterator[tuple[Engine, str | None]]:
    """An engine, and a schema with this name. Where there are no schemas, the engine's database has it."""
    if database.name == "postgresql":
        yield database.engine(), name
    elif database.name == "sqlite":
        file = Path(database.url.database or "").with_name(name)
        yield database.engine_at(database.url.set(database=str(file))), None
        database.dispose()
        file.unlink()
    else:
        with database.engine().begin() as connection:
            connection.execute(CreateSchema(name))
        yield database.engine_at(database.url.set(database=name)), None
        with database.engine().begin() as connection:
            connection.execute(DropSchema(name))


@pytest.mark.parametrize("name", NAMES)
def test_everything_works(database: Database, name: str) -> None:
    """Migrations, both modes of the inbox, the outbox with a relay, and the functions for operators work."""
    with named(database, name) as (engine, schema):
        migration.migrate(engine, schema=schema)
        box, publisher = Inbox("orders", schema=schema), Recorder()
        with engine.begin() as connection:
            Outbox(schema=schema).publish(connection, "orders", b"a", "a")
            Outbox(schema=schema).publish_many(connection, [Message("orders", b"b", "b")] * 2)
            assert box.accept(connection, "a") is Verdict.NEW
            assert box.accept_many(connection, ["a", "b"]) == [Verdict.DUPLICATE, Verdict.NEW]
        assert Relay(engine, publisher, schema=schema).run_once() == len(publisher.accepted) == 3
        with StatusInbox("calls", store=SqlStore(engine, schema=schema)).claim("a") as claim:
            assert claim.transact("work", lambda _: 1) == 1
        purged = purge(engine, consumer="orders", retention=MONTH, schema=schema)
        assert (purged.rows, purged.finished) == (0, True)
        found = {each.consumer: each for each in inbox.status(engine, schema=schema)}
        assert set(found) == {"calls", "orders"}
        assert outbox.status(engine, schema=schema).pending == 0
        with engine.connect() as connection:
            assert "inbox_message" in migration.lost_rows(connection, "base", schema=schema)
        with pytest.raises(InvalidOption, match=r"deletes .* of inbox_message"):
            migration.migrate(engine, "base", schema=schema, keep_rows=True)
        with engine.begin() as connection:
            for table in metadata_for(*FEATURES, schema=schema).sorted_tables:
                if table.name != VERSION_TABLE:
                    connection.execute(delete(table))
        migration.migrate(engine, "base", schema=schema, keep_rows=True)
        assert not inspect(engine).get_table_names(schema)


@pytest.mark.parametrize("name", NAMES)
def test_other_ways_to_make_the_tables(postgres: Database, name: str) -> None:
    """`create_all` makes the tables in the schema, and so does the script."""
    engine = postgres.engine()
    with engine.begin() as connection:
        connection.execute(CreateSchema(name))
    declared, script = tables(name).metadata, migration.script("postgresql", schema=name)
    for make in partial(declared.create_all, engine), partial(run_script, postgres, script):
        make()
        with engine.connect() as connection:
            assert migration.current(connection, name) == REVISION
        migration.migrate(engine, "base", schema=name)
