"""The commands name the database that they have asked, and say what an empty answer does not contain."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

from inbox import migration
from tests.support.cases import case
from tests.support.cli import as_json, in_this_process, succeeded
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.status_mode.stores import Place

AUDIT = "audit", "--topic", "orders", "--consumer", "billing"
OBJECTS = (["outbox", "status"], ["inbox", "purge"], ["check"], [*AUDIT])
LISTS = (["inbox", "status"], ["inbox", "list"], ["outbox", "peek"], ["decisions"])


def text(url: URL) -> str:
    """A URL as `--url` takes it."""
    return url.render_as_string(hide_password=False)


def lines(*arguments: str, url: str) -> list[str]:
    """The lines that a command prints."""
    return succeeded(in_this_process(*arguments, url=url)).splitlines()


def place(url: URL, schema: str | None = None) -> dict[str, Any]:
    """The place of a server's database as JSON has it."""
    dialect = url.get_backend_name()
    return {"dialect": dialect, "host": url.host, "port": url.port, "name": url.database, "schema": schema}


@on("postgresql", "mariadb", "mysql")
def test_servers(migrated: Database) -> None:
    """The first line, or the key `database` of JSON, has the server's host and port and the database's name;
    no answer has the user or the password."""
    url = migrated.url
    first = f"database: {url.database} on {url.host}:{url.port} ({url.get_backend_name()})"
    for command in (*OBJECTS, *LISTS):
        with case(command):
            assert lines(*command, url=text(url))[0] == first
    for command in OBJECTS:
        with case(command):
            assert as_json(in_this_process(*command, "--json", url=text(url)))["database"] == place(url)
    for command in LISTS:
        with case(command):
            assert as_json(in_this_process(*command, "--json", url=text(url))) == []


@on("sqlite")
def test_a_file(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole path of a file is named, wherever the command was started."""
    path = Path(str(migrated.url.database)).resolve()
    monkeypatch.chdir(path.parent)
    relative = f"sqlite:///{path.name}"
    assert lines("outbox", "status", url=relative)[0] == f"database: {path} (sqlite)"
    found = as_json(in_this_process("outbox", "status", "--json", url=relative))
    assert found["database"]["name"] == str(path)


def test_what_the_url_leaves_open(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host, a port or a name that the driver takes from its environment, or chooses from several, is named
    as well."""
    url = postgres.url
    expected = place(url)
    monkeypatch.setenv("PGHOST", str(url.host))
    monkeypatch.setenv("PGPORT", str(url.port))
    monkeypatch.setenv("PGDATABASE", str(url.database))
    bare = text(url.set(host=None, port=None, database=None))
    several = text(
        url.set(host=None, port=None).update_query_dict({"host": ["127.0.0.1:1", f"{url.host}:{url.port}"]})
    )
    for each in (bare, several):
        with case(each):
            assert as_json(in_this_process("outbox", "status", "--json", url=each))["database"] == expected


def test_a_schema(postgres: Database) -> None:
    """A schema that was asked for is named, too."""
    migration.migrate(postgres.engine(), schema="my app")
    url, options = text(postgres.url), ["--schema", "my app"]
    for command in (*OBJECTS, *LISTS):
        with case(command):
            assert lines(*command, *options, url=url)[0].endswith(", schema my app (postgresql)")
    found = as_json(in_this_process("outbox", "status", *options, "--json", url=url))
    assert found["database"] == place(postgres.url, "my app")


@on("sqlite")
def test_an_inbox_elsewhere(migrated: Database, tmp_path: Path) -> None:
    """An audit of two databases names both."""
    elsewhere = f"sqlite:///{tmp_path / 'inbox.db'}"
    succeeded(in_this_process("migrate", url=elsewhere))
    arguments = *AUDIT, "--inbox-url", elsewhere
    printed = lines(*arguments, url=text(migrated.url))
    assert printed[0].startswith("database: ")
    assert printed[1] == f"inbox: {tmp_path / 'inbox.db'} (sqlite)"
    found = as_json(in_this_process(*arguments, "--json", url=text(migrated.url)))
    assert found["inbox_database"]["name"] == str(tmp_path / "inbox.db")
    assert found["database"]["name"] == migrated.url.database
    assert printed[-1] == "No committed message of topic 'orders' was found."


@on("redis", fixture="place")
def test_redis(place: Place) -> None:
    """A Redis is named by its host, port, number and prefix."""
    first, second = lines("inbox", "list", "--prefix", place.prefix, url=place.url)
    assert first == f"database: 0 on {place.url.removeprefix('redis://')} (redis), prefix {place.prefix}"
    assert second == "no messages of status-table mode"


@on("sqlite")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("inbox status", "no messages, neither of the exactly-once path nor of status-table mode"),
        ("inbox list", "no messages of status-table mode; `inbox-outbox inbox status` counts those of the "),
        ("inbox list --error a", "no such messages of status-table mode; `inbox-outbox inbox"),
        ("inbox list --status dead", "no such messages of status-table mode; `inbox-outbox inbox"),
        (
            "outbox peek",
            "no messages wait for a relay; for delayed and dead ones, add --state delayed or --dead",
        ),
        ("outbox peek --topic a", "no such messages wait for a relay; for delayed and dead ones, add"),
        ("outbox peek --dead", "no messages are dead"),
        ("outbox peek --dead --error a", "no such messages are dead"),
        ("decisions", "no decisions within the last year"),
        ("outbox peek --state held --key a", "no such messages are held"),
    ],
)
def test_empty_answers(migrated: Database, command: str, said: str) -> None:
    """An empty answer has no table, but says what it does not contain; as JSON it is an empty list."""
    _, *rest = lines(*command.split(), url=text(migrated.url))
    [only] = rest
    assert only.startswith(said)
    assert as_json(in_this_process(*command.split(), "--json", url=text(migrated.url))) == []
