"""Purging during live traffic, on every database."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, event, insert, select

from inbox import AsyncInbox, Inbox, Purged, Retention, Verdict, purge, set_policy, show, status
from inbox._operating.purging import PurgeRun
from inbox.errors import InvalidOption, TablesMissing
from inbox.schema import tables
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on
from tests.support.purge_clock import Clock

pytestmark = pytest.mark.mysql

MESSAGE, LEDGER = tables().message, tables().ledger
WEEK = timedelta(days=7)
DAY = timedelta(days=1)


def fill(engine: Engine, ages: Sequence[timedelta], consumer: str = "billing") -> list[str]:
    """Insert one row for each age, and return the keys."""
    now = datetime.now(UTC)
    keys = [f"{consumer}-{number:05}" for number in range(len(ages))]
    rows = [
        {"consumer": consumer, "key": key, "claim": bytes(16), "accepted_at": now - age}
        for key, age in zip(keys, ages, strict=True)
    ]
    with engine.begin() as connection:
        connection.execute(insert(MESSAGE), rows)
    return keys


def left(engine: Engine, consumer: str = "billing") -> list[str]:
    """The keys that still exist."""
    with engine.connect() as connection:
        found = select(MESSAGE.c.key).where(MESSAGE.c.consumer == consumer).order_by(MESSAGE.c.key)
        return list(connection.execute(found).scalars())


def test_only_old_rows_are_deleted(migrated: Database) -> None:
    """Rows that exceed the retention and its margin by 30 seconds are deleted; rows that fall short of it by
    30 seconds are kept."""
    engine, second = migrated.engine(), timedelta(seconds=1)
    margin = timedelta(minutes=1)
    ages = [WEEK + margin + 30 * second, WEEK + margin - 30 * second, WEEK, 2 * WEEK, DAY]
    keys = fill(engine, ages)
    done = purge(engine)
    assert left(engine) == sorted([keys[1], keys[2], keys[4]])
    assert (done.rows, done.finished) == (2, True)
    assert purge(engine).rows == 0


@on("mariadb")
def test_a_clock_that_is_far_off(migrated: Database) -> None:
    """If the clocks of the database and of this machine differ by more than a day, nothing is deleted."""
    fill(migrated.engine(), [timedelta(days=1)])
    for days in (10, -10):
        engine = migrated.engine()
        event.listen(
            engine,
            "connect",
            lambda driver, _, days=days: driver.cursor().execute(
                f"SET timestamp = UNIX_TIMESTAMP() + {days * 86_400}"
            ),
        )
        with pytest.raises(InvalidOption, match="the database's clock says"):
            purge(engine)
    assert len(left(migrated.engine())) == 1


def test_batches_oldest_first(engine: Engine) -> None:
    """No transaction deletes more than `batch` rows; the oldest are deleted first; `progress` is called after
    each batch."""
    keys = fill(engine, [WEEK + timedelta(hours=25 - hour) for hour in range(25)])
    seen: list[Purged] = []
    remaining: list[list[str]] = []

    def progress(done: Purged) -> None:
        seen.append(done)
        remaining.append(left(engine))

    done = purge(engine, batch=10, progress=progress)
    assert [each.rows for each in seen] == [10, 20, done.rows]
    assert remaining[:2] == [keys[10:], keys[20:]]
    assert not any(each.finished for each in seen)
    assert (done.rows, done.batches, done.finished) == (25, 3, True)


def test_rows_of_the_same_instant(engine: Engine) -> None:
    """Rows accepted at exactly the same time are all found, whatever the batch size."""
    fill(engine, [2 * WEEK] * 37)
    assert purge(engine, batch=5).rows == 37


@on("sqlite")
def test_one_consumer_or_all(engine: Engine) -> None:
    """A purge of one consumer does not touch the others; by default every consumer is purged."""
    for consumer in ("a", "b", "c"):
        fill(engine, [2 * WEEK, DAY], consumer)
    assert Inbox("b").purge(engine).rows == 1
    assert [len(left(engine, consumer)) for consumer in "abc"] == [2, 1, 2]
    assert Inbox("a", retention=3600).purge(engine).rows == 2
    assert purge(engine).rows == 1
    assert [len(left(engine, consumer)) for consumer in "abc"] == [0, 1, 1]


@on("sqlite")
def test_the_oldest_unconsumed_message_decides(engine: Engine) -> None:
    """If the broker reports its oldest unconsumed message, older rows are deleted even if the retention is
    longer."""
    fill(engine, [DAY, timedelta(hours=3), timedelta(hours=1)])
    oldest = datetime.now(UTC) - timedelta(hours=2)
    kept = Retention(broker=WEEK, producer=timedelta(minutes=30))
    assert purge(engine, retention=kept, oldest_unconsumed=oldest).rows == 2


@on("sqlite")
def test_a_budget_ends_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the budget is used up, the purge stops between two batches and reports that it has not
    finished."""
    keys = fill(engine, [2 * WEEK] * 20)
    assert purge(engine, budget=0).finished is False
    assert left(engine) == keys
    clock = Clock(engine, monkeypatch)
    stopped = purge(engine, batch=5, budget=33, sleep=clock.sleep)
    assert not stopped.finished
    assert 0 < stopped.rows == 20 - len(left(engine)) < 20
    assert purge(engine, batch=5, budget=1_000, sleep=clock.sleep).finished
    assert left(engine) == []


@on("sqlite")
def test_it_does_not_rest_after_its_budget(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the budget is used up by a batch, the purge stops without a rest."""
    clock = Clock(engine, monkeypatch)
    for budget in range(30, 39):
        fill(engine, [2 * WEEK] * 20)
        clock.rested_at.clear()
        began = clock.now
        stopped = purge(engine, batch=5, budget=budget, sleep=clock.sleep)
        assert all(at - began < budget for at in clock.rested_at)
        with engine.begin() as connection:
            connection.execute(delete(MESSAGE))
        assert stopped.finished is False
    assert clock.rests


@on("sqlite")
def test_it_rests_as_long_as_it_works(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each full batch the purge sleeps for as long as the batch took."""
    fill(engine, [2 * WEEK] * 20)
    clock = Clock(engine, monkeypatch)
    purge(engine, batch=5, sleep=clock.sleep)
    assert clock.rests == [3] * 4


def test_a_retention_that_becomes_longer(engine: Engine) -> None:
    """A purge that is running keeps what the new retention keeps, and ends if it was asked for less."""
    keys = fill(engine, [3 * WEEK - hours * timedelta(hours=1) for hours in range(6)])
    for retention in (None, WEEK):
        set_policy(engine, "billing", mode="exactly-once", retention=WEEK)

        def lengthen(_: Purged) -> None:
            set_policy(engine, "billing", mode="exactly-once", retention=4 * WEEK)

        with nullcontext() if retention is None else pytest.raises(InvalidOption, match="has asked for 28d"):
            purge(engine, batch=2, retention=retention, progress=lengthen)
        keys = keys[2:]
        assert left(engine) == keys


@on("sqlite")
def test_a_retention_that_becomes_longer_for_batches(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for loads without rows, such as the ends of batches."""
    monkeypatch.setattr("inbox._operating.purging._LOADS", 2)
    row: dict[str, Any] = {
        "consumer": "billing",
        "run": "r",
        "batch": 0,
        "parts": 0,
        "fingerprint": bytes(16),
    }
    row |= dict.fromkeys(("rows_read", "rows_new", "rows_duplicate", "rows_repeated", "rows_dropped"), 0)
    with engine.begin() as connection:
        old = {"committed_at": datetime.now(UTC) - 2 * WEEK}
        connection.execute(insert(LEDGER), [row | old | {"part": part} for part in range(6)])
    set_policy(engine, "billing", mode="exactly-once", retention=WEEK)

    has_moved, looks = PurgeRun.has_moved, list[object]()

    def lengthen(run: PurgeRun, old: dict[str, Any]) -> bool:
        looks.append(old)
        if len(looks) == 3:  # the first two loads are gone
            set_policy(engine, "billing", retention=4 * WEEK)
        return has_moved(run, old)

    monkeypatch.setattr(PurgeRun, "has_moved", lengthen)
    purge(engine)
    with engine.connect() as connection:
        assert len(connection.execute(select(LEDGER.c.id)).all()) == 4


@on("postgresql")
def test_a_retention_that_becomes_longer_for_loads(engine: Engine) -> None:
    """The same for rows written in bulk, whose load stays in the ledger."""
    counts = {"rows_read": 6, "rows_new": 6, "rows_duplicate": 0, "rows_repeated": 0, "rows_dropped": 0}
    row: dict[str, Any] = {"consumer": "billing", "run": "r", "batch": 0, "part": 0, "parts": 1, **counts}
    row |= {"committed_at": datetime.now(UTC) - 2 * WEEK, "fingerprint": bytes(16)}
    with engine.begin() as connection:
        load = connection.execute(insert(LEDGER).values(row).returning(LEDGER.c.id)).scalar_one()
        keys = [{"consumer": "billing", "key": f"{number}", "load": load} for number in range(6)]
        connection.execute(insert(MESSAGE).values({"accepted_at": None, "claim": None}), keys)
    set_policy(engine, "billing", mode="exactly-once", retention=WEEK)
    purge(
        engine,
        batch=2,
        progress=lambda _: set_policy(engine, "billing", mode="exactly-once", retention=4 * WEEK),
    )
    assert len(left(engine)) == 4
    with engine.connect() as connection:
        assert connection.execute(select(LEDGER.c.id)).scalars().all() == [load]


def test_several_purgers_share_the_work(engine: Engine) -> None:
    """Four purgers at the same time delete each row once between them, and none fails."""
    fill(engine, [2 * WEEK] * 2_000)
    start = threading.Barrier(4)

    def one(_: int) -> int:
        start.wait(30)
        return purge(engine, batch=50, sleep=lambda _: None).rows

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(one, range(4))) == 2_000
    assert left(engine) == []


@on(*WITH_WRITERS)
def test_rows_that_somebody_holds_are_passed_over(engine: Engine) -> None:
    """A row locked by an open transaction neither blocks a purge nor makes it fail."""
    keys = fill(engine, [2 * WEEK] * 5)
    with engine.connect() as connection:
        connection.execute(delete(MESSAGE).where(MESSAGE.c.consumer == "billing", MESSAGE.c.key == keys[2]))
        assert purge(engine, batch=2).rows == 4
        connection.rollback()
    assert left(engine) == [keys[2]]
    assert purge(engine).rows == 1


@pytest.mark.quick("postgresql", "mariadb")
def test_live_traffic_goes_through(migrated: Database) -> None:
    """While four purgers delete, workers accept new, recent and purged keys: no worker fails, and every key
    within the retention is still known."""
    engine = migrated.engine(pool_size=12)
    old = fill(engine, [2 * WEEK] * 1_500)
    recent = fill(engine, [DAY] * 50, "recent")
    stop = threading.Event()

    def purger() -> int:
        rows = 0
        while not stop.is_set():
            rows += purge(engine, batch=20).rows
        return rows

    def worker(number: int) -> set[Verdict]:
        verdicts = set()
        for turn in range(60):
            with engine.begin() as connection:
                assert Inbox("live").accept(connection, f"{number}-{turn}") is Verdict.NEW
                verdicts.add(Inbox("recent").accept(connection, recent[turn % len(recent)]))
            with engine.begin() as connection:
                Inbox("billing").accept_many(connection, old[turn::60])
        return verdicts

    with ThreadPoolExecutor(6) as pool:
        purgers = [pool.submit(purger) for _ in range(2)]
        workers = [pool.submit(worker, number) for number in range(4)]
        try:
            assert [each.result(120) for each in workers] == [{Verdict.DUPLICATE}] * 4
        finally:
            stop.set()
        assert sum(each.result(60) for each in purgers) <= len(old)
    assert len(left(engine, "recent")) == 50
    assert len(left(engine, "live")) == 240


async def asynchronously(database: Database) -> Purged:
    """Run the same purge through an asynchronous engine."""
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(database.async_url)
    try:
        return await AsyncInbox("billing").purge(engine, batch=5)
    finally:
        await engine.dispose()


def test_asynchronously(migrated: Database) -> None:
    """`AsyncInbox.purge` deletes the same rows."""
    import asyncio

    fill(migrated.engine(), [2 * WEEK] * 12 + [DAY])
    assert asyncio.run(asynchronously(migrated)).rows == 12


@on("sqlite")
@pytest.mark.parametrize("call", [purge, status, lambda engine: show(engine, "billing", "a")])
def test_without_tables(database: Database, call: Callable[[Engine], object]) -> None:
    """If the tables are missing, the error names the command that creates them."""
    with pytest.raises(TablesMissing, match="inbox-outbox migrate"):
        call(database.engine())


def test_a_purge_that_hangs_lets_go(postgres: Database) -> None:
    """On PostgreSQL a purge sets a limit on how long its own transaction can be idle with deleted rows
    in it."""
    engine, limits = postgres.engine(), list[str]()
    fill(engine, [2 * WEEK] * 3)

    def look(connection: Connection, *_: object) -> None:
        limits.append(connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one())

    event.listen(engine, "commit", look)
    purge(engine)
    assert "10s" in limits


def test_each_batch_reads_only_its_own_rows(postgres: Database) -> None:
    """On PostgreSQL every batch is found by the index, begins where the last one ended, and is deleted by row
    address: the plan has no sequential scan and no sort."""
    engine = postgres.engine()
    fill(engine, [2 * WEEK] * 3_000)
    fill(engine, [DAY] * 3_000, "other")
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append((args[2], args[3])))
    with engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE inbox_message")
    purge(engine, batch=100)
    batches = [each for each in statements if each[0].startswith("DELETE")]
    assert len(batches) >= 30
    with engine.begin() as connection:
        sql, parameters = batches[len(batches) // 2]
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {sql}", parameters).scalars())
    assert "Index Scan using inbox_message_accepted_at" in plan
    assert "Tid Scan on inbox_message" in plan
    assert "Seq Scan" not in plan
    assert "Sort" not in plan


def test_keys_are_looked_up_by_the_primary_key(postgres: Database) -> None:
    """Looking up one key or many uses the index of the primary key, however large the table is."""
    inbox, engine = Inbox("billing"), postgres.engine()
    keys = fill(engine, [DAY] * 3_000)
    statements: list[tuple[str, Any]] = []
    with engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE inbox_message")
        event.listen(engine, "before_cursor_execute", lambda *args: statements.append((args[2], args[3])))
        inbox.accept(connection, keys[7])
        inbox.accept_many(connection, keys[:100])
        lookups = [each for each in statements if each[0].startswith("SELECT inbox_message")]
        assert len(lookups) == 2
        for sql, parameters in lookups:
            plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {sql}", parameters).scalars())
            assert "inbox_message_pkey" in plan
            assert "Seq Scan" not in plan


def test_the_ledger_goes_too(migrated: Database) -> None:
    """Ledger rows are purged after the retention too, for one consumer or for all."""
    engine, ledger = migrated.engine(), tables().ledger
    counts = dict.fromkeys(("rows_read", "rows_new", "rows_duplicate", "rows_repeated", "rows_dropped"), 0)
    rows = [
        {"consumer": consumer, "run": "r", "batch": 0, "part": part, "parts": 0, "fingerprint": bytes(16)}
        | {"committed_at": datetime.now(UTC) - age}
        | counts
        for consumer in ("billing", "shipping")
        for part, age in enumerate((2 * WEEK, DAY))
    ]
    with engine.begin() as connection:
        connection.execute(insert(ledger), rows)

    def ages() -> list[tuple[str, int]]:
        with engine.connect() as connection:
            found = connection.execute(select(ledger.c.consumer, ledger.c.part).order_by(*ledger.primary_key))
            return [(row.consumer, row.part) for row in found]

    purge(engine, consumer="billing")
    assert ages() == [("billing", 1), ("shipping", 0), ("shipping", 1)]
    purge(engine)
    assert ages() == [("billing", 1), ("shipping", 1)]
