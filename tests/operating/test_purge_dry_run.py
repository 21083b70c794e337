"""What a purge would delete, counted on every database."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select

from inbox import AsyncInbox, Inbox, Purged, Status, purge, set_policy
from inbox.errors import InvalidOption
from inbox.schema import tables
from tests.support.database import Database
from tests.support.on_servers import on

TABLES = tables()
WEEK = timedelta(days=7)


def fill(engine: Engine) -> None:
    """Rows of every kind, of each an old and a young one; and a policy in two rows."""
    now, ages = datetime.now(UTC), (9 * WEEK, timedelta(0))
    message: dict[str, Any] = {"consumer": "billing", "claim": bytes(16)}
    ended: dict[str, Any] = {"token": 1, "claim": bytes(16), "owner": "w", "attempts_started": 1}
    ended |= {"attempts_finished": 0, "consumer": "orders"}
    rejected: dict[str, Any] = {"consumer": "flights", "error": "e", "content": "{}", "run": "r"}
    with engine.begin() as connection:
        for number, age in enumerate(ages):
            key, then = {"key": str(number)}, now - age
            connection.execute(insert(TABLES.message), message | key | {"accepted_at": then})
            connection.execute(
                insert(TABLES.rejected), rejected | key | {"batch": 0, "part": 0, "rejected_at": then}
            )
            for status in Status:
                row = ended | {"key": f"{status.value}-{number}", "status": status.value, "updated_at": then}
                row |= {"lease_until": then} if status is Status.CONSUMING else {}
                row |= {"error": "no"} if status in (Status.DEAD, Status.HALTED) else {}
                row |= {"pending_step": "charge"} if status is Status.HALTED else {}
                connection.execute(insert(TABLES.status), row)
        for number in range(2):
            policy = {
                "consumer": "billing",
                "id": bytes([number]),
                "mode": "exactly-once",
                "retention": 3_600,
            }
            connection.execute(insert(TABLES.consumer), policy | {"margin": 0, "digest_format": 1})


def contents(engine: Engine) -> list[Any]:
    """All rows of the inbox."""
    every = (TABLES.message, TABLES.status, TABLES.rejected, TABLES.ledger, TABLES.consumer)
    with engine.connect() as connection:
        return [connection.execute(select(table)).all() for table in every]


def test_it_counts_what_a_purge_deletes(engine: Engine) -> None:
    """A dry run says how many rows a purge would delete, of all consumers or of one, by the stored times or
    by those of the call. It deletes nothing, not even a superseded row of a policy."""
    fill(engine)
    before = contents(engine)
    told: list[Purged] = []
    counted = purge(engine, dry_run=True, progress=told.append)
    assert (counted.rows, counted.batches, counted.finished, told) == (7, 0, True, [])
    assert counted.assumed == ("orders",)
    assert purge(engine, consumer="orders", dry_run=True).rows == 5
    assert purge(engine, dead_retention=20 * WEEK, dry_run=True).rows == 4
    assert Inbox("billing").purge(engine, dry_run=True).rows == 1
    assert contents(engine) == before
    assert purge(engine).rows == 7


@on("postgresql")
def test_rows_of_loads(engine: Engine) -> None:
    """Rows that were written in bulk are counted by their loads."""
    counts = {"rows_read": 6, "rows_new": 6, "rows_duplicate": 0, "rows_repeated": 0, "rows_dropped": 0}
    row: dict[str, Any] = {"consumer": "billing", "run": "r", "part": 0, "parts": 1, **counts}
    with engine.begin() as connection:
        for batch, age in enumerate((2 * WEEK, timedelta(0))):
            its = row | {"batch": batch, "committed_at": datetime.now(UTC) - age, "fingerprint": bytes(16)}
            load = connection.execute(insert(TABLES.ledger).values(its).returning(TABLES.ledger.c.id))
            of_load = {"consumer": "billing", "load": load.scalar_one(), "accepted_at": None, "claim": None}
            keys = [of_load | {"key": f"{batch}-{number}"} for number in range(6)]
            connection.execute(insert(TABLES.message), keys)
    before = contents(engine)
    assert purge(engine, dry_run=True).rows == 6
    assert contents(engine) == before
    assert purge(engine).rows == 6


@on("sqlite")
def test_a_shorter_time_is_refused_as_well(engine: Engine) -> None:
    """A dry run with a shorter time than the stored one needs `override`, as the purge does; a budget stops
    it."""
    set_policy(engine, "billing", mode="exactly-once", retention=20 * WEEK)
    fill(engine)
    with pytest.raises(InvalidOption, match="consumer 'billing' has asked for 140d"):
        purge(engine, retention=WEEK, dry_run=True)
    assert purge(engine, retention=WEEK, override=True, consumer="billing", dry_run=True).rows == 1
    assert not purge(engine, budget=0, dry_run=True).finished
    with pytest.raises(InvalidOption, match="dry_run=1"):
        purge(engine, dry_run=1)  # type: ignore[arg-type]


@on("postgresql")
def test_an_asynchronous_dry_run(migrated: Database) -> None:
    """`AsyncInbox.purge` has the option, too."""

    async def count() -> Purged:
        engine = migrated.async_engine()
        counted = await AsyncInbox("billing").purge(engine, dry_run=True)
        await engine.dispose()
        return counted

    fill(migrated.engine())
    assert asyncio.run(count()).rows == 1
