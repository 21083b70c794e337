"""The cells of docs/check.md that need servers which `make test` does not start: `make matrix` does."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, select

import inbox
import outbox
from examples.embedded_postgres import EmbeddedPostgres
from inbox import Inbox, SqlStore, StatusInbox
from inbox.errors import UnsafeDatabase
from inbox.schema import metadata
from outbox import Outbox, Relay
from tests.servers import Missing
from tests.support.database import make_tables
from tests.support.outbox_publishers import Recorder
from tests.support.present import present
from tests.support.program import ROOT

matrix = pytest.mark.matrix


class DebianPostgres(EmbeddedPostgres):
    """Debian's PostgreSQL, whose contrib modules the wheel lacks."""

    def _usable_binaries(self) -> Path:
        return present("debian", debian())


def debian() -> Path | Missing:
    """The folder with its newest programs."""
    found = max(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: int(each.parent.name), default=None
    )
    return found or Missing("Debian's postgresql is not installed")


@pytest.fixture(scope="module")
def far() -> Iterator[tuple[Engine, Engine]]:
    """A database, and another one with foreign tables for the tables of the first."""
    with DebianPostgres() as server:
        make_tables(server.url)
        here, there = create_engine(server.database("far")), create_engine(server.url)
        with here.begin() as connection:
            connection.exec_driver_sql("CREATE EXTENSION postgres_fdw")
            address = f"host '127.0.0.1', port '{server.port}', dbname 'postgres'"
            connection.exec_driver_sql(
                f"CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({address})"
            )
            connection.exec_driver_sql(
                "CREATE USER MAPPING FOR CURRENT_USER SERVER far OPTIONS (user 'postgres')"
            )
            names = ("inbox_ledger_id_seq", "outbox_message_sequence_seq", "outbox_delayed_sequence_seq")
            for name in names:
                connection.exec_driver_sql(f"CREATE SEQUENCE {name}")
            imported = "IMPORT FOREIGN SCHEMA public FROM SERVER far INTO public"
            connection.exec_driver_sql(f"{imported} OPTIONS (import_default 'true')")
        yield here, there
        here.dispose()
        there.dispose()


@matrix
def test_foreign_tables(far: tuple[Engine, Engine]) -> None:
    """Nothing is taken, claimed or published through foreign tables: they commit by themselves."""
    here, there = far
    handle = Inbox("billing").handler(here, key=str)(lambda *_: None)
    for _ in range(2):
        with pytest.raises(UnsafeDatabase, match="it is a foreign table"):
            handle("a")
    with pytest.raises(UnsafeDatabase), StatusInbox("orders", store=SqlStore(here)).claim("a"):
        pytest.fail("claimed")
    with pytest.raises(outbox.errors.UnsafeDatabase), here.begin() as connection:
        Outbox().publish(connection, "orders", "a")
    with pytest.raises(outbox.errors.UnsafeDatabase):
        Relay(here, Recorder()).run_once()
    assert not inbox.check(here).is_safe
    assert not outbox.check(here).is_safe
    assert inbox.check(there).is_safe
    with there.connect() as connection:
        for table in metadata.sorted_tables:
            if table.name not in ("outbox_bucket", "inbox_outbox_version"):
                assert connection.execute(select(table)).all() == []


@matrix
def test_a_foreign_partition(far: tuple[Engine, Engine]) -> None:
    """One foreign partition is enough."""
    here, _ = far
    with here.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA split")
        connection.exec_driver_sql(
            "CREATE TABLE split.inbox_message (consumer text, key text, accepted_at timestamptz DEFAULT now()"
            ", claim bytea, digest bytea, result text, load bigint) PARTITION BY LIST (consumer)"
        )
        connection.exec_driver_sql(
            "CREATE FOREIGN TABLE split.part PARTITION OF split.inbox_message FOR VALUES IN ('billing')"
            " SERVER far OPTIONS (schema_name 'public', table_name 'inbox_message')"
        )
    with pytest.raises(UnsafeDatabase, match=r"partition split\.part is a foreign table"):
        Inbox("billing", schema="split").handler(here, key=str)(lambda *_: None)("a")


def test_the_page_names_tests_that_exist() -> None:
    """Each row of the matrix is shown by a file of tests, and none is silently wrong."""
    page = (ROOT / "docs" / "check.md").read_text().split("## The matrix\n")[1]
    table = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(table) > 20
    for _, *cells, shown in table:
        assert all(re.match(r"right|refused|a relay that|$", cell.strip()) for cell in cells), cells
        for name in re.findall(r"(\w+\.py)`", shown):
            assert (ROOT / "tests" / "deployment" / name).is_file(), name
