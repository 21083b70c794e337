"""Purging messages of status-table mode, on every database."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, insert, select, update

import inbox
from inbox import Claim, Inbox, Purged, SqlStore, Status, StatusInbox, Verdict, migration, purge
from inbox.errors import InvalidOption, LeaseLost, TablesMissing
from inbox.schema import tables
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on, spread

STATUS = tables().status
DAY = timedelta(days=1)
WEEK = 7 * DAY
MONTH = 30 * DAY
MARGIN = timedelta(minutes=1)


def fill(
    engine: Engine,
    status: Status,
    *ages: timedelta,
    consumer: str = "orders",
    lease_ages: tuple[timedelta, ...] = (),
) -> list[str]:
    """Insert a message with this status for each age, and return the keys. A lease is as old as its message
    unless given."""
    now = datetime.now(UTC)
    keys = [f"{consumer}-{status}-{number:05}" for number in range(len(ages))]
    rows = [
        {
            "consumer": consumer,
            "key": key,
            "status": status.value,
            "token": 1,
            "claim": bytes(16),
            "owner": "worker",
            "lease_until": now - lease_age if status is Status.CONSUMING else None,
            "attempts_started": 1,
            "attempts_finished": 0,
            "error": "no" if status in (Status.DEAD, Status.HALTED) else None,
            "pending_step": "charge" if status is Status.HALTED else None,
            "created_at": now - 2 * age,
            "updated_at": now - age,
        }
        for key, age, lease_age in zip(keys, ages, lease_ages or ages, strict=True)
    ]
    with engine.begin() as connection:
        connection.execute(insert(STATUS), rows)
    return keys


def left(engine: Engine) -> list[str]:
    """The keys of every consumer that still exist."""
    with engine.connect() as connection:
        return list(connection.execute(select(STATUS.c.key).order_by(STATUS.c.key)).scalars())


def grow_old(engine: Engine, age: timedelta) -> None:
    """Make every row and lease this much older."""
    then = datetime.now(UTC) - age
    with engine.begin() as connection:
        changed = update(STATUS).values(updated_at=then)
        connection.execute(changed)
        connection.execute(update(STATUS).where(STATUS.c.lease_until.is_not(None)).values(lease_until=then))


@spread("status", Status)
def test_only_old_rows_are_deleted(migrated: Database, status: Status) -> None:
    """Dead and halted messages are deleted after their own retention, the others after the common one, each
    with a margin of a minute."""
    engine, second = migrated.engine(), timedelta(seconds=1)
    kept = MONTH if status in (Status.DEAD, Status.HALTED) else WEEK
    keys = fill(engine, status, kept + MARGIN + 30 * second, kept + MARGIN - 30 * second, kept, DAY)
    done = purge(engine)
    assert left(engine) == keys[1:]
    assert (done.rows, done.batches, done.finished) == (1, 1, True)


@on("sqlite")
def test_retentions_of_ones_own(engine: Engine) -> None:
    """`retention` and `dead_retention` are independent of one another."""
    for status in Status:
        fill(engine, status, 3 * DAY)
    purge(engine, dead_retention=2 * DAY)
    assert [key.split("-")[1] for key in left(engine)] == ["consumed", "consuming", "failed"]
    assert purge(engine, retention=(2 * DAY).total_seconds()).rows == 3
    with pytest.raises(InvalidOption, match="dead_retention=-1"):
        purge(engine, dead_retention=-1)


def test_a_message_with_a_lease_stays(engine: Engine) -> None:
    """However long ago a message was claimed, it is kept while its lease is renewed, and for the retention
    after that."""
    keys = fill(
        engine, Status.CONSUMING, MONTH, MONTH, MONTH, lease_ages=(-timedelta(minutes=10), WEEK, WEEK + DAY)
    )
    assert purge(engine).rows == 1
    assert left(engine) == keys[:2]


@on("sqlite")
def test_the_oldest_unconsumed_message_decides(engine: Engine) -> None:
    """If the broker reports its oldest unconsumed message, older rows are deleted even if the retention is
    longer; dead and halted ones keep their own retention."""
    for status in Status:
        fill(engine, status, timedelta(hours=3), timedelta(hours=1))
    assert purge(engine, oldest_unconsumed=datetime.now(UTC) - timedelta(hours=2)).rows == 3
    assert len(left(engine)) == 7


@on("sqlite")
def test_one_consumer_or_all(engine: Engine) -> None:
    """A purge of one consumer does not touch the others, in both modes; by default all are purged and counted
    together."""
    for consumer in ("a", "b"):
        fill(engine, Status.CONSUMED, 2 * WEEK, DAY, consumer=consumer)
        with engine.begin() as connection:
            Inbox(consumer).accept(connection, "1")
            old = update(tables().message).values(accepted_at=datetime.now(UTC) - 2 * WEEK)
            connection.execute(old)
    done = purge(engine, consumer="b")
    assert (done.rows, done.batches) == (2, 2)
    assert left(engine) == ["a-consumed-00000", "a-consumed-00001", "b-consumed-00001"]
    assert purge(engine).rows == 2
    assert left(engine) == ["a-consumed-00001", "b-consumed-00001"]


def test_batches_oldest_first(engine: Engine) -> None:
    """No transaction deletes more than `batch` rows; the oldest are deleted first, and a purge with no budget
    deletes nothing."""
    keys = fill(engine, Status.FAILED, *(WEEK + timedelta(hours=25 - hour) for hour in range(25)))
    remaining: list[list[str]] = []
    stopped = purge(engine, batch=10, budget=0)
    assert (stopped.rows, stopped.finished) == (0, False)

    def progress(done: Purged) -> None:
        remaining.append(left(engine))

    done = purge(engine, batch=10, progress=progress)
    assert remaining == [keys[10:], keys[20:], []]
    assert (done.rows, done.batches, done.finished) == (25, 3, True)


@on(*WITH_WRITERS)
def test_rows_that_somebody_holds_are_passed_over(engine: Engine) -> None:
    """A message whose step is in a transaction neither blocks a purge nor makes it fail, however old its
    lease is."""
    fill(engine, Status.CONSUMED, 2 * WEEK, 2 * WEEK)
    purged: list[int] = []

    def body(connection: Connection) -> None:
        purged.append(purge(engine, retention=0, override=True, batch=1).rows)

    orders = StatusInbox("orders", store=SqlStore(engine), heartbeat=False)
    with orders.claim("a") as claim:
        grow_old(engine, DAY)
        claim.transact("write", body)
    assert purged == [2]
    assert left(engine) == ["a"]


def test_a_zombie_whose_record_was_purged(engine: Engine) -> None:
    """If a handler goes on after its record was purged, all its writes are rejected, even if the message has
    been claimed again since: a token is never reused. The successor's record is unchanged."""
    orders = StatusInbox("orders", store=SqlStore(engine), heartbeat=False)

    def goes_on(zombie: Claim, step: str) -> None:
        with pytest.raises(LeaseLost):
            zombie.heartbeat()
        with pytest.raises(LeaseLost):
            zombie.step(step, lambda: None)

    def is_purged(zombie: Claim) -> None:
        grow_old(engine, 2 * WEEK)
        assert purge(engine).rows == 1
        goes_on(zombie, "first")
        with orders.claim("a") as successor:
            assert (successor.is_new, successor.attempt) == (True, 1)
            assert successor.token > zombie.token
            goes_on(zombie, "second")
            successor.result = "successor's"

    with pytest.raises(LeaseLost), orders.claim("a") as zombie:
        is_purged(zombie)
    with orders.claim("a") as duplicate:
        assert (duplicate.verdict, duplicate.result) == (Verdict.DUPLICATE, "successor's")


def test_live_traffic_goes_through(migrated: Database) -> None:
    """While two purgers delete old failed messages, workers claim the same ones: no worker fails, each
    message runs once, and no new record is purged."""
    engine = migrated.engine(pool_size=12)
    keys = fill(engine, Status.FAILED, *[2 * WEEK] * 200)
    stop = threading.Event()

    def purger() -> None:
        while not stop.is_set():
            purge(engine, batch=5)

    def worker(number: int) -> list[Verdict]:
        orders, verdicts = StatusInbox("orders", store=SqlStore(engine)), []
        for key in keys[number::4]:
            with orders.claim(key) as claim:
                verdicts.append(claim.verdict)
        return verdicts

    with ThreadPoolExecutor(6) as pool:
        purgers = [pool.submit(purger) for _ in range(2)]
        workers = [pool.submit(worker, number) for number in range(4)]
        try:
            assert [each.result(120) for each in workers] == [[Verdict.NEW] * 50] * 4
        finally:
            stop.set()
        for each in purgers:
            each.result(60)
    purge(engine)
    assert left(engine) == keys


@on("sqlite")
def test_tables_of_an_older_revision(database: Database) -> None:
    """If a table does not exist yet, the error names it, and nothing is purged."""
    engine = database.engine()
    migration.migrate(engine, "0002")
    row = {"consumer": "billing", "key": "1", "claim": bytes(16), "accepted_at": datetime.now(UTC) - 2 * WEEK}
    with engine.begin() as connection:
        connection.execute(insert(tables().message), row)
    seen: list[Purged] = []
    with pytest.raises(TablesMissing, match="table inbox_consumer is not in this database"):
        purge(engine, progress=seen.append)
    assert seen == []
    with pytest.raises(TablesMissing, match="table inbox_consumer is not in this database"):
        inbox.status(engine)


@spread("features", [("inbox",), ("status",), ("inbox", "ledger"), ("status", "outbox")])
def test_tables_of_some_features(database: Database, features: tuple[str, ...]) -> None:
    """A purge needs only the tables of the features that an application has made."""
    engine = database.engine()
    migration.migrate(engine, features=features)
    old = datetime.now(UTC) - 2 * WEEK
    if "inbox" in features:
        row = {"consumer": "billing", "key": "1", "claim": bytes(16), "accepted_at": old}
        with engine.begin() as connection:
            connection.execute(insert(tables().message), row)
    else:
        fill(engine, Status.CONSUMED, 2 * WEEK)
    done = purge(engine)
    assert (done.rows, done.finished) == (1, True)
    assert purge(engine, consumer="billing").rows == 0


def test_each_batch_reads_only_its_own_rows(postgres: Database) -> None:
    """On PostgreSQL every batch of every status is found by the index and deleted by row address, without a
    sequential scan, and without a sort unless leases are compared."""
    engine = postgres.engine()
    for status in Status:
        age = 2 * MONTH if status in (Status.DEAD, Status.HALTED) else 2 * WEEK
        fill(engine, status, *[age] * 2_000)
        fill(engine, status, *[DAY] * 2_000, consumer="other")
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append((args[2], args[3])))
    with engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE inbox_status")
    assert purge(engine, batch=100).rows == 2_000 * len(Status)
    batches = [each for each in statements if each[0].startswith("DELETE FROM inbox_status")]
    assert len(batches) >= 20 * len(Status)
    with engine.begin() as connection:
        for sql, parameters in batches[10::20]:
            plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {sql}", parameters).scalars())
            assert "inbox_status_updated_at" in plan
            assert "Sort" not in plan or "lease_until" in sql
            assert "Tid Scan on inbox_status" in plan
            assert "Seq Scan" not in plan
