"""`inbox-outbox check` tries the contract on the real tables, and its exit code tells whether it holds."""

import pytest

from inbox import migration
from tests.cli.test_cli_repair import rows
from tests.support.cli import as_json, error, in_this_process, succeeded
from tests.support.database import Database

UNSAFE = 9


def test_check(migrated: Database) -> None:
    """Each part of both halves has a line; as JSON, each is an object."""
    url = migrated.url.render_as_string(hide_password=False)
    found = rows(succeeded(in_this_process("check", url=url)))
    assert {(row[0], row[2]) for row in found if row[1] != "settings"} == {
        ("inbox", "right"),
        ("outbox", "right"),
    }
    as_objects = as_json(in_this_process("check", "--json", url=url))
    assert as_objects["is_safe"]
    assert [each["what"] for each in as_objects["inbox"] + as_objects["outbox"]] == [row[1] for row in found]


def test_check_of_an_unsafe_database(postgres: Database) -> None:
    """What is refused is named with what to do, and the exit code says so."""
    with postgres.engine().begin() as connection:
        connection.exec_driver_sql("ALTER TABLE outbox_message SET UNLOGGED")
    url = postgres.url.render_as_string(hide_password=False)
    done = in_this_process("check", url=url)
    assert (done.returncode, done.stderr) == (UNSAFE, "")
    [line] = [row for row in rows(done.stdout) if row[2] == "refused"]
    assert line[:2] == ["outbox", "table outbox_message"]
    assert "SET LOGGED" in line[3]


@pytest.mark.parametrize("feature", ["status", "outbox"])
def test_check_of_one_half(database: Database, feature: str) -> None:
    """A database may have one feature alone; without any, the command that makes the tables is named."""
    engine, url = database.engine(), database.url.render_as_string(hide_password=False)
    assert "inbox-outbox migrate" in error(in_this_process("check", url=url))
    migration.migrate(engine, features=[feature])
    found = as_json(in_this_process("check", "--json", url=url))
    assert found["is_safe"]
    assert ("outbox" in found) is (feature == "outbox")
