"""Keys that name their time: the writer takes none that its consumer has forgotten."""

import json
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import select, update

import inbox
from inbox import Inbox, Verdict, purge, timed_key
from inbox.errors import InvalidOption, PolicyConflict, TransientError
from inbox.schema import tables
from inbox_outbox.testing import age
from spark._executor import connect
from spark.errors import InvalidRow
from tests.operating.test_partitions import begun, settle, states
from tests.support.database import Database
from tests.support.on_servers import each_on, on
from tests.support.spark.writes import batch, counts, execute, fetched, make_result, taken, write, written
from tests.support.timed_keys import ago, forget, key_of

FORMS = ["uuid7", "ulid", "timed"]
REJECTED, HORIZON = tables().rejected, tables().horizon
TIMED: dict[str, Any] = {"key_time": "timed", "bad_rows": "table"}


def rows(*keys: str) -> list[pa.RecordBatch]:
    """A partition with these keys."""
    return [batch(*((key, 1) for key in keys))]


@each_on("postgresql", "form", FORMS)
def test_forgotten_keys_are_set_aside(migrated: Database, form: Any) -> None:
    """A key that a purge has forgotten is never new again: its row goes into `inbox_rejected`, or fails the
    job. A late one that no purge has reached is taken. `Inbox` and the writer agree."""
    engine = make_result(migrated)
    options = {"key_time": form, "bad_rows": "table"}
    old, never, young = ago(days=9, form=form), ago(days=8, form=form), ago(days=1, form=form)
    assert counts(write(migrated, rows(old, young), **options)) == {"new": 2}
    forget(engine)
    assert taken(engine) == [young]
    part = rows(old, never, young, ago(hours=1, form=form))
    with pytest.raises(InvalidRow, match=r"partition 0, row 1 .*: too_old: .* bad_rows='table' sets"):
        write(migrated, part, **options | {"bad_rows": "fail"})
    report = write(migrated, part, **options)
    assert counts(report) == {"new": 1, "duplicate": 1, "rejected": 2}
    assert len(written(engine)) == 3
    c = REJECTED.c
    found = fetched(engine, select(c.key, c.error, c.content).order_by(c.key))
    assert [key for key, *_ in found] == sorted([old, never])
    assert {error for _, error, _ in found} == {"too_old: its consumer has forgotten the keys of this time"}
    assert json.loads(found[0][2]) == {"id": old, "amount": 1}
    assert counts(write(migrated, rows(old), **options)) == {"rejected": 1}
    with engine.begin() as connection:
        box = Inbox("billing", key_time=form)
        verdicts = box.accept_many(connection, [old, young])
    assert verdicts == [Verdict.TOO_OLD, Verdict.DUPLICATE]


@on("postgresql")
def test_other_keys_are_refused(migrated: Database) -> None:
    """Keys of another form, of days that do not exist, or of the future; and consumers with another form."""
    make_result(migrated)
    made = datetime.now(UTC)
    good = timed_key(made, "order", 1)
    wrong = [
        "order-1",
        f"{good} ",
        good.replace("Z", "+"),
        f"2026-02-30{good[10:]}",
        f"0000-01-01{good[10:]}",
    ]
    for key in wrong:
        with pytest.raises(InvalidRow, match=r"key=\('id',\): 1 keys are none that key_time='timed' expects"):
            write(migrated, rows(good, key), **TIMED)
    with pytest.raises(InvalidRow, match="more than a day ahead of the database's clock"):
        write(migrated, rows(good, timed_key(made + timedelta(days=1.1), "a")), **TIMED)
    assert taken(migrated.engine()) == []
    assert counts(write(migrated, rows(good, timed_key(made + timedelta(days=0.9), "a")), **TIMED)) == {
        "new": 2
    }
    with pytest.raises(PolicyConflict, match="key_time='ulid', but inbox_consumer says 'timed'"):
        write(migrated, rows(good), key_time="ulid")
    with pytest.raises(PolicyConflict, match="key_time=None, but inbox_consumer says 'timed'"):
        write(migrated, rows(good))
    with pytest.raises(InvalidOption, match="key_time='timed', inbox='table': no purge forgets"):
        write(migrated, rows(good), key_time="timed", inbox="table")


@each_on("postgresql", "ledger", ["verify", "off"])
def test_loads_are_as_old_as_their_keys(migrated: Database, ledger: str) -> None:
    """A key may be a day later than its load: it is kept for as long as its own time says."""
    engine = make_result(migrated)
    tomorrow, today = ago(days=-0.9, form="timed"), ago(minutes=1, form="timed", name="b")
    write(migrated, rows(today, tomorrow), ledger=ledger, **TIMED)
    with engine.begin() as connection:
        age(connection, by=timedelta(days=30))
    purge(engine)
    assert purge(engine, dry_run=True).rows == 0
    assert taken(engine) == [today, tomorrow]
    old = key_of("timed", datetime.now(UTC) - timedelta(days=9))
    execute(engine, update(tables().message).where(tables().message.c.key == today).values(key=old))
    forget(engine)
    assert taken(engine) == [tomorrow]


@on("postgresql")
def test_a_consumer_with_partitions(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go into the partitions of their days; those of days that were dropped are set aside, and those of
    which there is no partition yet are written later."""
    engine = make_result(migrated)
    begun(engine, until=2)
    old, young = ago(days=9, form="timed"), ago(days=1, form="timed")
    assert counts(write(migrated, rows(old, young), **TIMED)) == {"new": 2}
    inbox.partitions(engine)
    settle(engine)
    assert states(inbox.partitions(engine))["dropped"] > 0
    assert counts(write(migrated, rows(old, young), **TIMED)) == {"duplicate": 1, "rejected": 1}
    monkeypatch.setattr(connect, "TRIES", 1)
    execute(engine, update(HORIZON).values(keys_until=ago(days=0.5, form="timed")[:27]))
    with pytest.raises(TransientError, match=r"'billing': its partitions end at '2.*Z'; make more with"):
        write(migrated, rows(old, ago(hours=1, form="timed")), **TIMED)
    assert len(written(engine)) == 2


@on("postgresql")
def test_days_are_dropped_beside_writers(migrated: Database) -> None:
    """While days are closed and dropped, and a purge runs, writers write the same keys again and again: none
    is new twice."""
    engine = make_result(migrated)
    begun(engine)
    all_keys = [ago(days=days, form="timed", name=str(n)) for days in (9, 8.2, 7.1, 1) for n in range(50)]
    news: list[int] = []
    stop = threading.Event()
    errors: list[BaseException] = []

    def load(level: str) -> None:
        while not stop.is_set():
            try:
                news.append(write(migrated, rows(*all_keys), isolation_level=level, **TIMED).new)
            except BaseException as error:  # noqa: BLE001 - shown at the end
                errors.append(error)
                return

    threads = [threading.Thread(target=load, args=(each,)) for each in ("READ_COMMITTED", "REPEATABLE_READ")]
    for each in threads:
        each.start()
    try:
        for _ in range(3):
            inbox.partitions(engine)
            settle(engine)
            purge(engine)
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert errors == []
    number = Counter(written(engine))
    assert (sum(news), max(number.values())) == (len(number), 1)


@on("postgresql")
def test_a_partitioned_target_is_the_inbox(migrated: Database) -> None:
    """With inbox="table", the target may have partitions by ranges of its key. A row for which there is none
    is an error of its partition, and nothing of it is written."""
    engine = migrated.engine()
    execute(
        engine,
        "CREATE TABLE sale (id varchar(60) PRIMARY KEY, amount bigint) PARTITION BY RANGE (id)",
        "CREATE TABLE sale_1 PARTITION OF sale FOR VALUES FROM ('2026-11-01') TO ('2026-11-02')",
        "CREATE TABLE sale_2 PARTITION OF sale FOR VALUES FROM ('2026-11-02') TO ('2026-11-03')",
    )
    first, second, third = (f"2026-11-0{day}T10" for day in (1, 2, 3))
    options = {"table": "sale", "inbox": "table"}
    assert counts(write(migrated, rows(first), **options)) == {"new": 1}
    assert counts(write(migrated, rows(first, second), **options)) == {"new": 1, "duplicate": 1}
    with pytest.raises(InvalidRow):
        write(migrated, rows(second, third), **options)
    assert fetched(engine, "SELECT tableoid::regclass::text, id FROM sale ORDER BY id") == [
        ("sale_1", first),
        ("sale_2", second),
    ]
