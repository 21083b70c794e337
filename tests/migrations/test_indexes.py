"""No index of our tables is missing in silence."""

from typing import Any

import pytest
from sqlalchemy import Engine, event, inspect
from sqlalchemy.schema import DropIndex

import inbox
import outbox
from inbox import migration
from inbox.schema import FEATURES, metadata_for, tables
from inbox_outbox_base.words.findings import Finding
from tests.support.database import Database
from tests.support.inspection import snapshot
from tests.support.on_servers import BOTH_MYSQL, on

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
