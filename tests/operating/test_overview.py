"""The inbox on an operator's first page."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, delete, insert, select, update

import inbox
from inbox import Claim, ConsumerOverview, Count, Inbox, InboxOverview, SqlStore, StatusInbox
from inbox.errors import GiveUp, TablesMissing
from inbox.schema import metadata_for, tables
from tests.support.database import Database
from tests.support.filling import fill_inbox
from tests.support.on_servers import on
from tests.support.reads import recorded, rows_read, scans

TABLES = tables()
DAY = timedelta(days=1)


def by_name(found: InboxOverview) -> dict[str, ConsumerOverview]:
    return {each.consumer: each for each in found.consumers}


def take(engine: Engine, *keys: str, consumer: str = "billing", **options: object) -> None:
    for key in keys:
        with engine.begin() as connection:
            Inbox(consumer, **options).accept(connection, key)  # type: ignore[arg-type]


def test_an_empty_inbox(engine: Engine) -> None:
    """There are no consumers."""
    found = inbox.overview(engine)
    assert (found.consumers, found.has_more_consumers) == ((), False)
    assert found.database.bytes > 0


def test_a_consumer_of_the_exactly_once_path(engine: Engine) -> None:
    """What was taken within the last hour, the oldest key, and by how much it is past its retention."""
    take(engine, "a", "b", "c", retention=2 * DAY)
    old = datetime.now(UTC) - 5 * DAY
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).where(TABLES.message.c.key == "a").values(accepted_at=old))
    (found,) = inbox.overview(engine).consumers
    assert (found.consumer, found.taken, found.dead, found.loads) == ("billing", Count(2), Count(0), Count(0))
    assert found.policy is not None
    assert found.policy.retention == 2 * DAY
    assert found.oldest is not None
    assert abs(found.oldest - old) < timedelta(seconds=1)
    assert found.overdue == pytest.approx((3 * DAY).total_seconds(), abs=300)
    assert inbox.purge(engine).rows == 1
    assert inbox.overview(engine).consumers[0].overdue == 0


def test_the_last_purge(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """A purge is recorded with what it has deleted; one that dies has no end, and a dry run is none."""
    take(engine, "a", "b", retention=60)
    inbox.purge(engine, dry_run=True)
    assert inbox.overview(engine).consumers[0].last_purge is None
    old = datetime.now(UTC) - DAY
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).where(TABLES.message.c.key == "a").values(accepted_at=old))
    assert inbox.purge(engine).rows == 1
    (found,) = inbox.overview(engine).consumers
    assert found.last_purge is not None
    assert (found.last_purge.rows, found.last_purge.finished) == (1, True)
    assert found.last_purge.ended_at is not None
    assert found.last_purge.begun_at <= found.last_purge.ended_at

    def die(_: object) -> None:
        raise ZeroDivisionError

    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(accepted_at=old))
    with pytest.raises(ZeroDivisionError):
        inbox.purge(engine, progress=die)
    (found,) = inbox.overview(engine).consumers
    assert found.last_purge is not None
    assert (found.last_purge.ended_at, found.last_purge.finished) == (None, False)
    TABLES.purge.drop(engine)
    take(engine, "c")
    assert inbox.purge(engine).finished
    assert "purges are not recorded" in caplog.text
    assert inbox.overview(engine).consumers[0].last_purge is None


def test_a_consumer_without_keys(engine: Engine) -> None:
    """A consumer of which only the policy is stored is not overdue, and its purges are recorded."""
    take(engine, "a")
    with engine.begin() as connection:
        connection.execute(delete(TABLES.message))
    inbox.purge(engine)
    (found,) = inbox.overview(engine).consumers
    assert (found.consumer, found.taken, found.oldest, found.overdue) == ("billing", Count(0), None, 0.0)
    assert found.last_purge is not None
    assert found.last_purge.finished


def test_a_consumer_of_status_table_mode(engine: Engine) -> None:
    """Messages are counted in each status, and so are those whose handler is gone: among those that were
    looked at."""
    orders = StatusInbox("orders", store=SqlStore(engine), max_attempts=3)

    @orders.handler(key=str)
    def handle(claim: Claim, key: str) -> None:
        if key == "dead":
            raise GiveUp
        if key == "halted":
            claim.step("charge", fail, on_unknown="halt")
        if key == "failed":
            fail()
        if key in ("running", "gone"):
            raise KeyboardInterrupt

    for key in ("done", "dead", "halted", "failed", "running", "gone"):
        with suppress(Exception, KeyboardInterrupt):  # the record says how it ended
            handle(key)
    c = TABLES.status.c
    now = datetime.now(UTC)
    leases = {"running": now + DAY, "gone": now - DAY}
    with engine.begin() as connection:
        for key, lease in leases.items():
            given = {"status": "consuming", "lease_until": lease, "attempts_started": 1}
            connection.execute(update(TABLES.status).where(c.key == key).values(given))
        connection.execute(update(TABLES.status).where(c.key == "dead").values(updated_at=now - 40 * DAY))
    (found,) = inbox.overview(engine).consumers
    counts = {each: getattr(found, each) for each in ("consuming", "lost", "failed", "dead", "halted")}
    assert counts == {
        "consuming": Count(2),
        "lost": Count(1),
        "failed": Count(1),
        "dead": Count(1),
        "halted": Count(1),
    }
    assert found.overdue == pytest.approx((10 * DAY).total_seconds(), abs=300)
    assert found.taken == Count(1)

    with engine.begin() as connection:
        running = connection.execute(select(TABLES.status).where(c.key == "running")).one()._asdict()
        connection.execute(insert(TABLES.status), [running | {"key": f"{each}"} for each in range(1_000)])
    (found,) = inbox.overview(engine).consumers
    assert (found.consuming, found.lost.precision) == (Count(1_000, "at least"), "at least")


def fail() -> None:
    raise ValueError("no")


@on("sqlite")
def test_more_consumers_than_are_shown(engine: Engine) -> None:
    """The first hundred are shown, those with a message that waits for somebody before others, and it is said
    that there are more."""
    for number in range(101):
        take(engine, "a", consumer=f"consumer-{number:03}")
    names = [f"consumer-{number:03}" for number in range(100)]
    found = inbox.overview(engine)
    assert [each.consumer for each in found.consumers] == names
    assert {each.taken for each in found.consumers} == {Count(1)}
    assert found.has_more_consumers

    with (
        pytest.raises(ValueError, match="bad"),
        StatusInbox("zz", store=SqlStore(engine), max_attempts=1).claim("a"),
    ):
        raise ValueError("bad")
    found = inbox.overview(engine)
    assert [each.consumer for each in found.consumers] == [*names[:-1], "zz"]
    assert found.consumers[-1].dead == Count(1)


@pytest.mark.parametrize("feature", ["inbox", "status", "ledger"])
@on("sqlite")
def test_tables_of_one_feature(database: Database, feature: str) -> None:
    """An application may have made the tables of some features only."""
    engine = database.engine()
    with pytest.raises(TablesMissing, match="inbox_message"):
        inbox.overview(engine)
    metadata_for(feature).create_all(engine)
    assert inbox.overview(engine).consumers == ()


@pytest.mark.quick("postgresql")
@pytest.mark.long(but_on="many")
@pytest.mark.parametrize("rows", [100_000, 1_000_000], ids=["many", "a million"])
@on("postgresql", "mariadb")
def test_very_many_keys(engine: Engine, rows: int) -> None:
    """It reads some ten thousand rows of each mode, by indexes, and says what is a lower bound."""
    fill_inbox(engine, rows)
    with recorded(engine) as statements:
        found = by_name(inbox.overview(engine))
    assert found["billing"].taken == Count(10_000, "at least")
    assert found["orders"].dead == Count(1_000, "at least")
    if engine.dialect.name == "postgresql":
        read = [scan for each in statements for scan in scans(engine, *each)]
        assert not [scan for scan in read if scan[0] == "Seq Scan" and scan[2] > 1_000]
        assert sum(rows for _, _, rows, _ in read) < 30_000
    else:
        assert rows_read(engine, inbox.overview) < 40_000
