"""The cells of docs/check.md that need servers which `make test` does not start: `make matrix` does."""

import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, select, text

import inbox
import outbox
from examples.embedded_postgres import EmbeddedPostgres
from inbox import Inbox, SqlStore, StatusInbox, Verdict, migration
from inbox.errors import UnsafeDatabase
from inbox.schema import metadata
from outbox import Outbox, Relay
from tests.servers import Missing, galera
from tests.support.database import make_tables
from tests.support.outbox_publishers import Recorder
from tests.support.present import present
from tests.support.program import ROOT

matrix = pytest.mark.matrix
KEYS = [f"key-{number}" for number in range(40)]


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
            for name in ("inbox_ledger_id_seq", "outbox_message_sequence_seq"):
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


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Engine]]:
    """An engine for each node of a cluster, which has the tables."""
    running = present("galera", galera.find())
    engines: list[Engine] = []
    try:
        with create_engine(running[0].url).begin() as connection:
            connection.exec_driver_sql("CREATE DATABASE shop CHARACTER SET utf8mb4")
        engines = [create_engine(node.url.set(database="shop")) for node in running]
        migration.migrate(engines[0])
        with engines[0].begin() as connection:
            connection.exec_driver_sql(
                "CREATE TABLE effect (id int AUTO_INCREMENT PRIMARY KEY, message varchar(40))"
            )
        yield engines
    finally:
        for engine in engines:
            engine.dispose()
        for node in running:
            node.stop()


@matrix
def test_galera_takes_each_key_once(nodes: list[Engine]) -> None:
    """Every node passes the check; keys that are delivered to all nodes at once take effect once each."""
    for engine in nodes:
        assert inbox.check(engine).is_safe
        assert outbox.check(engine).is_safe
    verdicts: Counter[Verdict] = Counter()
    lock = threading.Lock()

    def body(connection: Connection, message: str) -> None:
        connection.execute(text("INSERT INTO effect (message) VALUES (:message)"), {"message": message})

    def work(engine: Engine) -> None:
        handle = Inbox("billing").handler(engine, key=str)(body)
        for key in KEYS:
            outcome = handle(key)
            with lock:
                verdicts[outcome.verdict] += 1

    threads = [threading.Thread(target=work, args=[engine]) for engine in nodes for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts[Verdict.NEW] == len(KEYS)
    with nodes[0].connect() as connection:
        connection.exec_driver_sql("SET SESSION wsrep_sync_wait = 7")
        assert sorted(connection.exec_driver_sql("SELECT message FROM effect").scalars()) == sorted(KEYS)


@matrix
def test_galera_says_that_order_is_not_kept(nodes: list[Engine], caplog: pytest.LogCaptureFixture) -> None:
    """A relay sends every message, and its start warns that a key needs one node."""
    for number in range(30):
        with nodes[number % len(nodes)].begin() as connection:
            Outbox().publish(connection, "orders", str(number), key="k")
    publisher = Recorder()
    with caplog.at_level(logging.WARNING, "outbox.relay"):
        relay = Relay(nodes[1], publisher)
        with nodes[1].connect() as connection:
            connection.exec_driver_sql("SET SESSION wsrep_sync_wait = 7")
            connection.exec_driver_sql("SELECT count(*) FROM outbox_message")
        relay.run_once()
    assert sorted(int(message.payload) for message in publisher.accepted) == [*range(30)]
    assert "Galera: wsrep_on=ON" in caplog.text
    assert "said" in {each.result for each in outbox.check(nodes[0]).findings if each.what == "Galera"}


def test_the_page_names_tests_that_exist() -> None:
    """Each row of the matrix is shown by a file of tests, and none is silently wrong."""
    page = (ROOT / "docs" / "check.md").read_text().split("## The matrix\n")[1]
    table = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(table) > len(KEYS) // 2
    for _, *cells, shown in table:
        assert all(re.match(r"right|refused|a relay that|$", cell.strip()) for cell in cells), cells
        for name in re.findall(r"(\w+\.py)`", shown):
            assert (ROOT / "tests" / "deployment" / name).is_file(), name
