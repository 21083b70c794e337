"""The revisions for rows written in bulk, on tables that have rows and are in use."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError

from inbox import Inbox, Verdict, migration, purge
from inbox.schema import tables
from inbox_outbox_base.databases.postgresql import migrating
from tests.support.database import Database
from tests.support.inspection import snapshot

pytestmark = pytest.mark.mysql

MESSAGE, LEDGER = tables().message, tables().ledger
COUNTS = {"rows_read": 1, "rows_new": 1, "rows_duplicate": 0, "rows_repeated": 0, "rows_dropped": 0}
OLD = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def partition(run: str) -> dict[str, Any]:
    """A row of the ledger."""
    entry = {"consumer": "a", "run": run, "batch": 0, "part": 0, "parts": 0, "fingerprint": bytes(16)}
    return entry | COUNTS | {"committed_at": OLD}


def fill(engine: Engine) -> None:
    """Insert rows as an inbox and a job of revision 0009 write them."""
    row = {"consumer": "a", "claim": b"x" * 16, "accepted_at": OLD}
    with engine.begin() as connection:
        connection.execute(insert(MESSAGE), [row | {"key": f"k{number:04}"} for number in range(1_000)])
        connection.execute(insert(LEDGER).inline(), [partition("first"), partition("second")])


def rows(engine: Engine, *columns: str) -> list[Any]:
    """The messages, ordered by key."""
    found = select(*(MESSAGE.c[name] for name in ("key", *columns))).order_by(MESSAGE.c.key)
    with engine.connect() as connection:
        return list(connection.execute(found))


@pytest.fixture(params=["small", "large"])
def _size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use PostgreSQL's way for small tables, or the one for large tables."""
    if request.param == "large":
        monkeypatch.setattr(migrating, "_LARGE", 1)


def test_up_and_down_with_rows(database: Database) -> None:
    """Rows of the earlier version stay unchanged, up and down; ledger rows get ids in commit order, and ids
    are never reused."""
    up_and_down(database.engine())


def test_up_and_down_beside_writers(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows also stay unchanged in PostgreSQL's way for large tables."""
    monkeypatch.setattr(migrating, "_LARGE", 1)
    up_and_down(postgres.engine())


@pytest.mark.parametrize(("revision", "features"), [("0001", None), ("head", ["inbox"])])
def test_a_large_inbox_without_a_ledger(
    postgres: Database, monkeypatch: pytest.MonkeyPatch, revision: str, features: list[str] | None
) -> None:
    """A large inbox of the first revision, or one that was made without a ledger, gets one."""
    monkeypatch.setattr(migrating, "_LARGE", 1)
    engine = postgres.engine()
    migration.migrate(engine, "base")
    migration.migrate(engine, revision, features=features)
    row = {"consumer": "a", "claim": b"x" * 16, "accepted_at": OLD}
    with engine.begin() as connection:
        connection.execute(insert(MESSAGE), [row | {"key": f"k{number:04}"} for number in range(1_000)])
    migration.migrate(engine)
    with engine.begin() as connection:
        assert connection.execute(insert(LEDGER), partition("first")).inserted_primary_key == (1,)
        assert Inbox("a").accept(connection, "k0000") is Verdict.DUPLICATE


def up_and_down(engine: Engine) -> None:
    """Migrate up from the previous revision and back, twice."""
    migration.migrate(engine, "0009")
    before = snapshot(engine)
    fill(engine)
    content = rows(engine, "accepted_at", "claim", "digest", "result")
    for _ in range(2):
        migration.migrate(engine)
        assert rows(engine, "accepted_at", "claim", "digest", "result") == content
        with engine.connect() as connection:
            assert [*connection.scalars(select(LEDGER.c.id).order_by(LEDGER.c.id))] == [1, 2]
            assert connection.execute(insert(LEDGER), partition("third")).inserted_primary_key == (3,)
            assert Inbox("a").accept(connection, "k0000") is Verdict.DUPLICATE
        made = snapshot(engine)
        migration.migrate(engine, "0009")
        assert snapshot(engine) == before
        assert rows(engine, "accepted_at", "claim", "digest", "result") == content
    migration.migrate(engine)
    assert snapshot(engine) == made
    assert purge(engine).rows == 1_000


@pytest.mark.usefixtures("_size")
def test_down_with_loads(postgres: Database) -> None:
    """On a downgrade each row of a load gets the load's time, or the current time if the ledger no longer has
    the load."""
    engine = postgres.engine()
    lean = {"consumer": "a", "accepted_at": None, "claim": None}
    with engine.begin() as connection:
        connection.execute(insert(LEDGER), partition("first"))
        load = connection.execute(select(LEDGER.c.id)).scalar_one()
        loads = [load] * 1_000 + [load + 1]
        given = [lean | {"key": f"k{number:04}", "load": load} for number, load in enumerate(loads)]
        connection.execute(insert(MESSAGE), given)
    before = datetime.now(UTC) - timedelta(minutes=1)
    migration.migrate(engine, "0009")
    *of_the_load, lost = rows(engine, "accepted_at")
    assert {row.accepted_at for row in of_the_load} == {OLD}
    assert lost.accepted_at > before
    with engine.begin() as connection:
        assert Inbox("a").accept(connection, "k0000") is Verdict.DUPLICATE


def test_writers_go_on_beside_it(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large table is migrated while a transaction has uncommitted rows in it: only the last step waits, and
    no writer is blocked by it for longer than its limit."""
    monkeypatch.setattr(migrating, "_LARGE", 1)
    engine = postgres.engine()
    for revision in ("0009", "head"):
        with engine.begin() as connection:
            Inbox("a").accept_many(connection, [f"{revision}-{number}" for number in range(1_000)])
        stop, taken = threading.Event(), list[Verdict]()

        def accept(revision: str = revision, stop: threading.Event = stop) -> None:
            while not stop.wait(0.005):
                with postgres.engine().begin() as connection:
                    taken.append(Inbox("a").accept(connection, f"{revision}-beside-{len(taken)}"))  # noqa: B023

        writer = threading.Thread(target=accept)
        writer.start()
        try:
            migration.migrate(engine, revision)
        finally:
            stop.set()
            writer.join(30)
        assert set(taken) == {Verdict.NEW}


def test_an_interrupted_migration_goes_on(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interrupted migration has committed, even an unfinished index, disturbs neither the inbox nor
    the next migration."""
    engine = postgres.engine()
    migration.migrate(engine, "0009")
    fill(engine)
    for large in (1, 2_000):
        monkeypatch.setattr(migrating, "_LARGE", large)
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE inbox_message ADD COLUMN IF NOT EXISTS load BIGINT"))
            connection.execute(text("CREATE INDEX inbox_message_new ON inbox_message (key)"))
            Inbox("a").accept(connection, f"new {large}")
        migration.migrate(engine)
        assert {index["name"] for index in inspect(engine).get_indexes("inbox_message")} == {
            "inbox_message_accepted_at"
        }
        migration.migrate(engine, "0009")
    assert len(rows(engine)) == 1_002


def test_a_migration_that_cannot_end_leaves_the_inbox_usable(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a later step fails, what was committed before does not disturb the inbox of the earlier version."""
    monkeypatch.setattr(migrating, "_LARGE", 1)
    engine = postgres.engine()
    migration.migrate(engine, "0009")
    fill(engine)
    with engine.begin() as connection:
        # The migration drops this index at its end, and fails because it is missing.
        connection.execute(text("DROP INDEX inbox_message_accepted_at"))
    with pytest.raises(DBAPIError, match="inbox_message_accepted_at"):
        migration.migrate(engine)
    with engine.begin() as connection:
        assert Inbox("a").accept(connection, "new") is Verdict.NEW
        connection.execute(
            text("CREATE INDEX inbox_message_accepted_at ON inbox_message (consumer, accepted_at)")
        )
    migration.migrate(engine)
    assert len(rows(engine, "load")) == 1_001
