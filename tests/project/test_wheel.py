"""The wheel, built and installed in an empty environment."""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import URL, insert, inspect

from inbox.schema import REVISION, metadata, tables
from tests.support.database import Database
from tests.support.inspection import snapshot
from tests.support.program import ROOT
from tests.support.wheels import build_wheel

pytestmark = pytest.mark.long(but_on="postgresql")

ONLY_THESE = {"inbox-outbox", "sqlalchemy", "psycopg", "alembic", "mako", "markupsafe", "typing-extensions"}
NOT_OURS_TO_TAKE = ("migrations", "tests", "examples", "benchmarks", "docs")


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with the wheel installed; its programs run in an empty folder."""

    wheel: Path
    folder: Path
    nowhere: Path

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with nothing of the repository visible."""
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "INBOX"))}
        command = [str(self.folder / "bin" / program), *arguments]
        return subprocess.run(
            command, cwd=self.nowhere, env=keep, capture_output=True, text=True, check=False, timeout=120
        )

    def succeed(self, program: str, *arguments: str) -> str:
        """Run a program that must succeed, and return its output."""
        done = self.run(program, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, what: str) -> None:
        """Install a package."""
        self._pip("install", "--quiet", what)

    @property
    def packages(self) -> set[str]:
        """The names of all installed packages."""
        listed = json.loads(self._pip("list", "--format=json"))
        return {each["name"].lower().replace("_", "-") for each in listed}

    def _pip(self, *arguments: str) -> str:
        """Run this interpreter's pip on the environment: installing pip there would take longer than
        everything else."""
        python = str(self.folder / "bin" / "python")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of its sources."""
    return build_wheel(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with a plain install."""
    folder = tmp_path_factory.mktemp("plain")
    venv.create(folder)
    environment = Installed(wheel, folder, tmp_path_factory.mktemp("nowhere"))
    environment.install(str(wheel))
    return environment


@pytest.fixture(scope="session")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the extras that the command line needs for every database."""
    folder = tmp_path_factory.mktemp("full")
    venv.create(folder)
    environment = Installed(wheel, folder, tmp_path_factory.mktemp("nowhere"))
    environment.install(f"{wheel}[cli,binary,mysql]")
    return environment


def test_its_description_reads_elsewhere(wheel: Path) -> None:
    """A package index shows README: its links and pictures are absolute."""
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", archive.read(metadata).decode())
    assert len(links) > 20
    for picture, link in links:
        assert link.startswith("https://"), link
        assert ("/raw/" in link) == bool(picture), link


def test_what_is_in_it(wheel: Path) -> None:
    """The wheel has the packages, their type markers, the migrations inside `inbox`, and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "inbox",
        "inbox_outbox",
        "inbox_outbox_base",
        "outbox",
        "spark",
    }
    versions = {f"inbox/migrations/versions/{path.name}" for path in _revision_files()}
    assert {
        "inbox/py.typed",
        "inbox_outbox/py.typed",
        "inbox_outbox_base/py.typed",
        "outbox/py.typed",
        "spark/py.typed",
        "inbox/migrations/env.py",
        "inbox_outbox/web/static/live.js",
        "inbox_outbox/web/templates/layout.html",
        *versions,
    } <= set(names)
    assert not [name for name in names if name.endswith(".pyc") or "__pycache__" in name]
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def _revision_files() -> list[Path]:
    return list((ROOT / "migrations" / "versions").glob("*.py"))


def test_a_plain_install_is_small(plain: Installed) -> None:
    """Without extras, exactly SQLAlchemy, psycopg, Alembic and their dependencies are installed."""
    assert plain.packages - {"greenlet"} == ONLY_THESE  # SQLAlchemy 2.0 brings greenlet, 2.1 does not


def test_it_takes_no_names_of_others(plain: Installed) -> None:
    """Site-packages gets no top-level `migrations`, nor any other name that applications use."""
    site = next(plain.folder.glob("lib/python*/site-packages"))
    assert (site / "inbox").is_dir()
    assert [name for name in NOT_OURS_TO_TAKE if list(site.glob(f"{name}*"))] == []


def test_it_imports_without_greenlet_and_libpq(plain: Installed) -> None:
    """`import inbox` and `import outbox`, including their asynchronous parts, need neither greenlet nor libpq
    nor a driver of a database or broker."""
    code = """
import ctypes.util, sys
gone = ["greenlet", "psycopg_c", "psycopg_binary", "pymysql", "aiormq", "confluent_kafka", "opentelemetry"]
sys.modules.update(dict.fromkeys(gone))
ctypes.util.find_library = lambda name: None
import inbox, outbox
print(inbox.AsyncInbox.__name__, outbox.AsyncRelay.__name__)
"""
    assert plain.succeed("python", "-c", code) == "AsyncInbox AsyncRelay\n"


def test_migrate_from_a_plain_install(plain: Installed, tmp_path: Path) -> None:
    """A plain install can create the tables, take a message and publish one."""
    code = """
import sys, sqlalchemy
from inbox import Inbox, migration
from outbox import Outbox, schema
engine = sqlalchemy.create_engine(sys.argv[1])
migration.migrate(engine)
with engine.begin() as connection:
    print(Inbox("billing").accept(connection, "order-1").name)
    Outbox().publish(connection, "orders", {"order": 1})
    print(connection.execute(sqlalchemy.select(schema.tables().message.c.payload)).scalar_one())
"""
    assert (
        plain.succeed("python", "-c", code, f"sqlite:///{tmp_path / 'shop.db'}") == "NEW\nb'{\"order\":1}'\n"
    )


def test_the_command_says_which_extra_it_needs(plain: Installed) -> None:
    """Without the extra `cli` the command fails with one line that says so."""
    for arguments in (("inbox-outbox", "--help"), ("python", "-m", "inbox_outbox", "migrate")):
        done = plain.run(*arguments)
        assert done.returncode == 1
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("inbox-outbox: ")
        assert line.endswith("the command line needs inbox-outbox[cli]")


def test_a_missing_driver_names_the_extra(full: Installed) -> None:
    """If the driver is missing, the error names the extra to install."""
    hidden = "import sys; sys.modules['pymysql'] = None; from inbox_outbox.__main__ import main; main()"
    done = full.run("python", "-c", hidden, "migrate", "--url", "mysql://user@127.0.0.1/shop")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "cannot load the driver of mysql+pymysql; install inbox-outbox[mysql]" in line


def test_every_command(full: Installed, database: Database) -> None:
    """With the extras, all commands work from an empty environment on each database, and the tables are the
    same as the repository's."""
    engine, url = database.engine(), _plain_url(database.url)
    said = full.succeed("inbox-outbox", "migrate", "--url", url)
    assert said == f"tables are at revision {REVISION}\n"
    made = snapshot(engine)
    assert set(made) == set(metadata.tables)
    with engine.begin() as connection:
        row = {"consumer": "billing", "key": "order-1", "claim": bytes(16)}
        connection.execute(insert(tables().message), row)
    (status,) = json.loads(full.succeed("inbox-outbox", "inbox", "status", "--json", "--url", url))
    assert (status["consumer"], status["rows"]) == ("billing", 1)
    full.succeed("inbox-outbox", "inbox", "show", "billing", "order-1", "--url", url)
    done = full.succeed("inbox-outbox", "inbox", "purge", "--older-than", "0s", "--json", "--url", url)
    assert json.loads(done)["finished"] is True
    assert "CREATE TABLE" in full.succeed("inbox-outbox", "migrate", "--sql", "--url", url)
    full.succeed("inbox-outbox", "migrate", "--to", "base", "--yes", "--url", url)
    assert inspect(engine).get_table_names() == []


def _plain_url(url: URL) -> str:
    """The URL without a driver, as users write it."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=False)
