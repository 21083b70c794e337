"""Two versions of this project on one database, while one is rolled out, back and out again."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, text

from inbox import __version__
from inbox.schema import REVISION
from outbox import status
from tests.support import rolling_worker
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.processes import wait_until
from tests.support.rolling_worker import KEYS
from tests.support.wheels import build_wheel, install

pytestmark = pytest.mark.long

ROLES = ("publish", "relay", "consume")
OLDER = os.environ.get("INBOX_OUTBOX_TEST_OLDER")
"""The older version: a wheel, or what pip installs, such as "inbox-outbox==0.1.0". Without it, the working
tree is both versions, under two numbers."""
ARRIVAL = Table(
    "arrival",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("number", Integer),
    Column("version", String(20)),
)


class Machine:
    """A machine with a process of each role, all of one version."""

    def __init__(self, version: Path, database: Database, log: Path) -> None:
        environ = {**os.environ, "PYTHONPATH": str(version)}
        command = [sys.executable, "-P", rolling_worker.__file__]
        url = database.url.render_as_string(hide_password=False)
        self._log = log
        with log.open("a") as errors:
            self._processes = {
                role: subprocess.Popen(
                    [*command, role, url], env=environ, stdout=subprocess.PIPE, stderr=errors, text=True
                )
                for role in ROLES
            }
        self._version = version

    def hear(self) -> tuple[str, str]:
        """Wait until all processes have begun, and return their version and its revision of the tables."""
        for process in self._processes.values():
            assert process.stdout is not None
            with process.stdout as out:
                said = out.readline().split()
            assert said, self._log.read_text()
            number, revision, file = said
            assert file.startswith(str(self._version))
        return number, revision

    def kill(self, *roles: str) -> None:
        """Kill the processes, as a failure of the machine would; one that has ended by itself is an error."""
        for role in roles:
            process = self._processes.pop(role)
            assert process.poll() is None, self._log.read_text()
            process.kill()
            process.wait()

    def close(self) -> None:
        """Kill what is left."""
        for process in self._processes.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders where the older and the newer version are installed."""
    folder = tmp_path_factory.mktemp("versions")
    newer = build_wheel(folder / "build newer", None if OLDER else f"{__version__}.post1")
    older = OLDER or str(build_wheel(folder / "build older"))
    return install(older, folder / "older"), install(str(newer), folder / "newer")


@contextmanager
def machines(database: Database, log: Path) -> Iterator[list[Machine]]:
    """Two places for machines; what is in them at the end is closed."""
    places: list[Machine] = []
    try:
        yield places
    finally:
        for each in places:
            each.close()


@on("postgresql", "mariadb")
def test_a_rolling_restart(versions: tuple[Path, Path], migrated: Database, tmp_path: Path) -> None:
    """Publishers, relays and consumers of both versions work on one database while machines are killed and
    come back with the other version, newer and older. Each sale is billed and shipped once, messages of a key
    arrive in order, and both versions have done some of everything."""
    older, newer = versions
    engine = migrated.engine()
    make_tables(engine)
    log = tmp_path / "errors.log"
    with machines(migrated, log) as running:
        running += [Machine(older, migrated, log), Machine(older, migrated, log)]
        (number, revision), _ = [each.hear() for each in running]
        if revision != REVISION:
            pytest.skip(f"{number} is for revision {revision} of the tables")
        numbers = {number}
        for place, version in ((0, newer), (1, newer), (0, older), (1, older), (0, newer)):
            wait_for_work(engine)
            running[place].kill(*ROLES)
            running[place] = Machine(version, migrated, log)
            numbers.add(running[place].hear()[0])
        wait_for_work(engine)
        for each in running:
            each.kill("publish")
        wait_until(lambda: is_done(engine), timeout=90)
        for each in running:
            each.kill("relay", "consume")
    assert len(numbers) == 2
    for table in ("sale", "arrival", "invoice", "shipment"):
        assert {row.version for row in rows(engine, table)} == numbers, table
    sold = [row.number for row in rows(engine, "sale")]
    assert [row.number for row in rows(engine, "invoice")] == sold
    assert [row.number for row in rows(engine, "shipment")] == sold
    arrived = list(dict.fromkeys(row.number for row in rows(engine, "arrival", order="id")))
    for key in range(KEYS):
        of_key = [number for number in arrived if number % KEYS == key]
        assert of_key == sorted(of_key)
    assert status(engine).dead == 0


def make_tables(engine: Engine) -> None:
    """Make the shop's tables."""
    ARRIVAL.create(engine)
    with engine.begin() as connection:
        for statement in rolling_worker.TABLES:
            connection.execute(text(statement))


def rows(engine: Engine, table: str, order: str = "number") -> list[Any]:
    """The rows of a table of the shop."""
    with engine.connect() as connection:
        return list(connection.execute(text(f"SELECT * FROM {table} ORDER BY {order}")))


def counts(engine: Engine) -> list[int]:
    """How many rows each table of the shop has."""
    return [len(rows(engine, table)) for table in ("sale", "arrival", "invoice", "shipment")]


def wait_for_work(engine: Engine) -> None:
    """Wait until everything has been done ten times more."""
    before = counts(engine)
    wait_until(lambda: all(now >= then + 10 for now, then in zip(counts(engine), before, strict=True)))


def is_done(engine: Engine) -> bool:
    """Whether every sale has been billed and shipped."""
    sold, _, billed, shipped = counts(engine)
    return billed >= sold and shipped >= sold and status(engine).waiting == 0
