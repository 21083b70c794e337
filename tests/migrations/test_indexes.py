"""No index of our tables is missing in silence."""

from typing import Any

import pytest
from sqlalchemy import Engine, event, inspect
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import DropIndex

import inbox
import outbox
from inbox import migration
from inbox.schema import FEATURES, metadata_for, tables
from inbox_outbox_base.words.findings import Finding
from tests.support.database import Database
from tests.support.inspection import snapshot
from tests.support.on_servers import BOTH_MYSQL, on
from tests.support.outbox_publishers import Recorder, relay

pytestmark = pytest.mark.mysql


@on(*BOTH_MYSQL)
@pytest.mark.parametrize(
    ("had", "table"), [("outbox", "inbox_message"), ("outbox", "inbox_status"), ("status", "inbox_rejected")]
)
def test_an_index_whose_migration_has_died(database: Database, had: str, table: str) -> None:
    """Where DDL cannot be rolled back, a migration that adds a feature may die between CREATE TABLE and
    CREATE INDEX; the next one makes the index."""
    engine, dying = database.engine(), database.engine()
    migration.migrate(engine)
    whole = snapshot(engine)
    migration.migrate(engine, "base")
    migration.migrate(engine, features=[had])

    @event.listens_for(dying, "after_cursor_execute")
    def die(*given: Any) -> None:
        if given[2].strip().startswith(f"CREATE TABLE {table}"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        migration.migrate(dying)
    assert inspect(engine).get_indexes(table) == []
    migration.migrate(engine)
    assert snapshot(engine) == whole


def said(engine: Engine, schema: str | None = None) -> list[Finding]:
    """What a check says about tables, beside that they are right."""
    reports = inbox.check(engine, schema=schema), outbox.check(engine, schema=schema)
    findings = [each for report in reports for each in report.findings if each.what.startswith("table ")]
    assert all(report.is_safe for report in reports)
    return [each for each in findings if each.result != "right"]


def test_a_check_names_missing_indexes(migrated: Database) -> None:
    """`check` names each index of ours that is missing, with the statement that makes it."""
    engine, whole, declared = migrated.engine(), snapshot(migrated.engine()), metadata_for(*FEATURES)
    assert said(engine) == []
    indexes = [index for table in declared.sorted_tables for index in table.indexes]
    with engine.begin() as connection:
        for index in indexes:
            connection.execute(DropIndex(index))
    found = {each.why: each for each in said(engine)}.values()  # both halves have the table of decisions
    assert {each.result for each in found} == {"said"}
    assert sorted(each.why.split()[1] for each in found) == sorted(str(index.name) for index in indexes)
    with engine.begin() as connection:
        for each in found:
            connection.exec_driver_sql(each.why.split("; run ")[1])
    assert snapshot(engine) == whole


@on("postgresql")
def test_a_check_in_a_schema(database: Database) -> None:
    """The statement names the schema; an index of another name on the same columns will do."""
    engine, schema = database.engine(), "Büro 100%"
    migration.migrate(engine, schema=schema)
    [message_index], [status_index] = tables(schema).message.indexes, tables(schema).status.indexes
    with engine.begin() as connection:
        connection.execute(DropIndex(status_index))
        place = f'"{schema}".inbox_message'.replace("%", "%%")
        connection.exec_driver_sql(f"CREATE INDEX other ON {place} (consumer, accepted_at)")
        connection.execute(DropIndex(message_index))
    [finding] = said(engine, schema)
    statement = f'CREATE INDEX inbox_status_updated_at ON "{schema}".inbox_status'
    assert f"{statement} (status, consumer, updated_at)" in finding.why


@on("postgresql", *BOTH_MYSQL)
def test_an_index_that_the_server_does_not_use(migrated: Database, caplog: pytest.LogCaptureFixture) -> None:
    """`check` names an index that is there and not used, or that is another one than ours, with what to run;
    where migrations look for indexes, they log it."""
    engine, whole = migrated.engine(), snapshot(migrated.engine())
    autocommit = migrated.engine(isolation_level="AUTOCOMMIT")
    is_mysql = engine.dialect.name != "postgresql"
    with autocommit.connect() as connection:
        if not is_mysql:  # as CREATE INDEX CONCURRENTLY leaves it if it fails
            invalid = "'outbox_dead_dead_at'::regclass"
            connection.exec_driver_sql(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = {invalid}")
        else:
            word = "IGNORED" if migrated.name == "mariadb" else "INVISIBLE"
            connection.exec_driver_sql(f"ALTER TABLE outbox_dead ALTER INDEX outbox_dead_dead_at {word}")
        on_table = " ON outbox_sent" if is_mysql else ""
        connection.exec_driver_sql(f"DROP INDEX outbox_sent_sent_at{on_table}")
        connection.exec_driver_sql("CREATE INDEX outbox_sent_sent_at ON outbox_sent (keep_until)")
    unused, other = said(engine)
    assert unused.why.startswith("index outbox_dead_dead_at is ")
    assert other.why.startswith("index outbox_sent_sent_at has other columns")
    if is_mysql:
        migration.migrate(engine)
        assert caplog.messages == [f"{each.what}: {each.why}" for each in (unused, other)]
    with autocommit.connect() as connection:
        for each in (unused, other):
            for statement in each.why.split("; run ")[1].split(", and then "):
                connection.exec_driver_sql(statement)
    assert said(engine) == []
    assert snapshot(engine) == whole


@on(*BOTH_MYSQL)
def test_an_index_that_statements_name(migrated: Database) -> None:
    """A relay cannot read the outbox by an index of another name, and `check` says so."""
    engine = migrated.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE outbox_message RENAME INDEX outbox_message_bucket TO other")
    [finding] = said(engine)
    assert (
        "index outbox_message_bucket is missing, so relays fail, because their statements name it"
        in finding.why
    )
    with pytest.raises(OperationalError, match="1176"):
        relay(engine, Recorder())


@on("postgresql", "sqlite")
def test_an_index_of_some_rows(migrated: Database) -> None:
    """An index with a condition that is not ours leaves rows out, and so it is none."""
    engine = migrated.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX outbox_dead_dead_at")
        connection.exec_driver_sql("CREATE INDEX other ON outbox_dead (dead_at) WHERE topic = 'mail'")
    [finding] = said(engine)
    assert finding.why.startswith("index outbox_dead_dead_at is missing")
