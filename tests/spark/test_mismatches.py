"""Rows that are repeated with other content: `digest` detects them, and the report counts each once."""

import logging
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from hashlib import blake2b
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, select

from inbox import Inbox, Verdict
from inbox.errors import InvalidOption, PayloadMismatch
from inbox.schema import tables
from outbox.schema import tables as outbox_tables
from spark import PerRow, Statements
from spark._executor.mismatches import digests
from spark._options.settings import checked
from spark.errors import ColumnMismatch
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import each_on, on
from tests.support.spark.writes import (
    CONSUMER,
    attempt,
    batch,
    counts,
    fetched,
    options_of,
    prepared,
    taken,
    with_results,
    write,
    written,
)
from tests.support.together import Task as Thread
from tests.support.together import wait_until_blocked

LEDGER = tables().ledger


def load(database: Database, *partitions: Any, **options: Any) -> tuple[dict[str, int], int]:
    """Run a job that compares amounts. Returns its counts and the number of mismatches."""
    report = write(database, *partitions, **{"digest": "amount", **options})
    return counts(report), report.mismatch


@pytest.mark.mysql
@each_on(
    "postgresql",
    "ledger, level",
    [("verify", "READ_COMMITTED"), ("trust", "REPEATABLE_READ"), ("off", "SERIALIZABLE")],
)
def test_a_key_comes_again_with_other_content(
    migrated: Database, engine: Engine, caplog: pytest.LogCaptureFixture, ledger: str, level: str
) -> None:
    """A key that is repeated with other content counts as a duplicate and as a mismatch, and a warning is
    logged. The stored row does not change."""
    options = {"ledger": ledger, "isolation_level": level}
    assert load(migrated, [batch(("a", 1), ("b", 2), ("c", 3))], run="r", **options) == ({"new": 3}, 0)
    again = [batch(("a", 1), ("b", 9), ("d", 4))]
    with caplog.at_level(logging.WARNING, "spark.inbox"):
        assert load(migrated, again, run="s", **options) == ({"new": 1, "duplicate": 2}, 1)
    assert caplog.messages == [
        "consumer='billing': 1 rows have a key that was taken with other values of ('amount',)"
    ]
    assert written(engine) == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


@pytest.mark.quick("postgresql")
@pytest.mark.mysql
def test_many_keys_come_again(migrated: Database, engine: Engine) -> None:
    """Mismatches among thousands of keys are found, in a partition that does not fit into memory."""
    old = [batch(*((f"key {at:05}", at) for at in range(0, 30_000, 2)))]
    new = [batch(*((f"key {at:05}", -at if at % 6 == 0 else at) for at in range(30_000)))]
    assert load(migrated, old) == ({"new": 15_000}, 0)
    assert load(migrated, new, memory=2**20) == ({"new": 15_000, "duplicate": 15_000}, 4_999)
    assert len(written(engine)) == 30_000


@on("sqlite")
def test_a_key_that_repeats_in_the_job(migrated: Database, engine: Engine) -> None:
    """Rows whose key repeats in a job, in one partition or in several, are compared with the row that was
    applied."""
    first = [batch(("a", 1), ("b", 2), ("a", 5)), batch(("a", 1), ("b", 2), ("a", 5))]
    assert load(migrated, first, [batch(("a", 1), ("b", 7))]) == ({"new": 2, "repeated": 6}, 3)
    assert written(engine) == [("a", 1), ("b", 2)]


@each_on("sqlite", "ledger", ["verify", "trust", "off"])
def test_the_same_job_again_counts_the_same(migrated: Database, engine: Engine, ledger: str) -> None:
    """A job that is submitted again, after it finished or after some of its partitions committed, counts each
    row once."""
    load(migrated, [batch(("a", 1), ("b", 2))], run="before")
    parts = [[batch(("a", 7), ("c", 3), ("c", 4))], [batch(("b", 8), ("d", 5))]]
    task = prepared(migrated, run="r", ledger=ledger, digest="amount")
    assert attempt(task, 1, *parts[1]) is not None
    for _ in range(3):
        found = load(migrated, *parts, run="r", ledger=ledger)
        assert found == ({"new": 2, "duplicate": 2, "repeated": 1}, 3)
    whole = select(LEDGER.c.rows_mismatch).where(LEDGER.c.run == "r", LEDGER.c.part == -1)
    assert fetched(engine, whole) == ([] if ledger == "off" else [(3,)])
    assert written(engine) == [("a", 1), ("b", 2), ("c", 3), ("d", 5)]


def test_a_zombie_counts_nothing(migrated: Database, engine: Engine) -> None:
    """Two attempts at a partition run at the same time: one of them writes, and both report the same."""
    load(migrated, [batch(("a", 1))])
    inside, go_on = Event(), Event()

    def slow(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        for each in rows:
            assert each.column_names == ["id", "amount"]
        inside.set()
        assert go_on.wait(60)

    task = with_results(prepared(migrated, run="r", digest="amount"), slow)
    zombie = Thread(lambda: attempt(task, 0, batch(("a", 7), ("b", 2))))
    assert inside.wait(60)
    copy = Thread(lambda: attempt(task, 0, batch(("a", 7), ("b", 2))))
    if migrated.name != "sqlite":
        wait_until_blocked(engine)
    go_on.set()
    done = [zombie.result(), copy.result()]
    assert [each is not None and each.counts.mismatch for each in done] == [1, 1]
    its = select(LEDGER.c.rows_read, LEDGER.c.rows_mismatch).where(LEDGER.c.run == "r")
    assert fetched(engine, its) == [(2, 1)]


@on("sqlite")
def test_a_job_that_comes_again_with_other_content(migrated: Database, engine: Engine) -> None:
    """A run that is submitted again with the same keys but other content is not taken for finished."""
    assert load(migrated, [batch(("a", 1), ("b", 2))], run="r") == ({"new": 2}, 0)
    for _ in range(2):
        assert load(migrated, [batch(("a", 1), ("b", 3))], run="r") == ({"new": 2}, 1)
    assert written(engine) == [("a", 1), ("b", 2)]


@on("sqlite")
def test_a_mismatch_can_fail_the_job(migrated: Database, engine: Engine) -> None:
    """With `mismatches="error"`, a partition that contains a mismatch writes nothing, whether the key was
    taken before or repeats in the partition. The error says how many there are."""
    load(migrated, [batch(("a", 1))])
    options = {"mismatches": "error", "run": "r"}
    for bad in (batch(("c", 3), ("a", 2)), batch(("c", 3), ("c", 4))):
        with pytest.raises(PayloadMismatch, match=r"1 rows .*'amount',\)$"):
            load(migrated, [batch(("b", 2))], [bad], **options)
    assert written(engine) == [("a", 1), ("b", 2)]
    assert taken(engine) == ["a", "b"]
    assert load(migrated, [batch(("b", 2))], [batch(("c", 3), ("c", 3))], **options) == (
        {"new": 2, "repeated": 1},
        0,
    )


def test_the_inbox_has_the_same_digests(migrated: Database, engine: Engine) -> None:
    """An inbox that is given a tuple of the columns as payload computes the same digest as the writer."""
    box = Inbox(CONSUMER, wait=0)
    with engine.begin() as connection:
        assert box.accept(connection, "a", payload=("a", 1)) is Verdict.NEW
        assert box.accept(connection, "b", payload=("b", 1)) is Verdict.NEW
        assert box.accept(connection, "c") is Verdict.NEW  # no digest: nothing to compare
    rows = [batch(("a", 1), ("b", 2), ("c", 3), ("d", 4))]
    assert load(migrated, rows, digest=["id", "amount"]) == ({"new": 1, "duplicate": 3}, 1)
    load(migrated, [batch(("e", 5))], digest=None)
    assert load(migrated, [batch(("e", 6))]) == ({"duplicate": 1}, 0)
    with engine.begin() as connection:
        assert box.accept(connection, "d", payload=("d", 4.0)) is Verdict.DUPLICATE
        assert box.accept(connection, "d", payload=("d", 5)) is Verdict.MISMATCH
        assert box.accept_many(connection, ["e"], payloads=[(9,)]) == [Verdict.DUPLICATE]


@pytest.mark.mysql
def test_a_key_that_is_taken_meanwhile(migrated: Database, engine: Engine) -> None:
    """A key that another transaction takes while the partition waits for it is compared, too. The partition's
    own keys get their digests."""
    box = Inbox(CONSUMER, wait=0)
    with engine.connect() as connection:
        box.accept(connection, "b", payload=(9,))
        writing = Thread(lambda: load(migrated, [batch(("a", 1), ("b", 2), ("c", 3))]))
        wait_until_blocked(engine)
        connection.commit()
    assert writing.result() == ({"new": 2, "duplicate": 1}, 1)
    with engine.begin() as connection:
        given = [(1,), (7,)]
        verdicts = box.accept_many(connection, ["a", "c"], payloads=given)
    assert verdicts == [Verdict.DUPLICATE, Verdict.MISMATCH]


def test_new_rows_and_messages_have_no_digest(migrated: Database, engine: Engine) -> None:
    """Statements and outbox messages see the DataFrame's columns only, not the digest."""
    copied = Statements("INSERT INTO result SELECT new_rows.*, 'x' FROM new_rows")
    load(migrated, [batch(("a", 1))], results=copied, outbox=PerRow("t"))
    assert written(engine) == [("a", 1)]
    [(payload,)] = fetched(engine, select(outbox_tables().message.c.payload))
    assert bytes(payload) == b'{"id": "a", "amount": 1}'


VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "text": (pa.string(), "é\u20ac\n"),
    "nothing": (pa.string(), None),
    "flag": (pa.bool_(), True),
    "int": (pa.int32(), -5),
    "long": (pa.int64(), 2**60),
    "double": (pa.float64(), 0.1),
    "whole": (pa.float64(), 7.0),
    "nan": (pa.float64(), float("nan")),
    "price": (pa.decimal128(38, 18), Decimal("12345678901234567890.5")),
    "round": (pa.decimal128(10, 2), Decimal("100.00")),
    "day": (pa.date32(), date(2026, 1, 2)),
    "at": (pa.timestamp("us", "UTC"), datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
    "local": (pa.timestamp("us"), datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001 - that is its point
    "hour": (pa.time64("us"), time(3, 4, 5)),
    "raw": (pa.binary(), b"\x00\xff"),
}
JSON = (
    rb'["\u00e9\u20ac\n",null,true,-5,1152921504606846976,0.1,7,"nan","12345678901234567890.5",100,'
    rb'"2026-01-02","2026-01-02 03:04:05.000006Z","2026-01-02 03:04:05.000000","03:04:05.000000","00ff"]'
)
"""What is digested."""


def rows_of(values: dict[str, tuple[pa.DataType, Any]]) -> pa.RecordBatch:
    """One row with these values."""
    return pa.record_batch({name: pa.array([value], kind) for name, (kind, value) in values.items()})


def digest_of(values: dict[str, tuple[pa.DataType, Any]]) -> str:
    """The digest of a row."""
    settings = checked(url="sqlite:///x", table="t", key="k", consumer="c", digest=list(values))
    found: bytes = digests(settings, rows_of(values))[0].as_py()
    return found.hex()


def test_a_digest_never_changes() -> None:
    """Digests stay in databases for a long time, so each value has a single form, whatever the versions of
    Python and Arrow, the session's time zone, and the type's width or scale."""
    assert digest_of(VALUES) == blake2b(JSON, digest_size=16).hexdigest()
    same = {
        "int": (pa.int64(), -5),
        "text": (pa.large_string(), "é\u20ac\n"),
        "price": (pa.decimal128(38, 1), Decimal("12345678901234567890.5")),
        "round": (pa.decimal128(38, 0), Decimal(100)),
        "at": (pa.timestamp("us", "Asia/Tokyo"), datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
    }
    assert digest_of(VALUES | same) == digest_of(VALUES)
    for name, (kind, value) in VALUES.items():
        other = None if value is not None else ""
        with case(name):
            assert digest_of(VALUES | {name: (kind, other)}) != digest_of(VALUES)


@on("sqlite")
def test_what_cannot_be_compared_is_refused(migrated: Database, engine: Engine) -> None:
    """A digest that cannot be computed is rejected before any row is read, by an error that names the option
    and its value."""
    refused: list[tuple[type[Exception], dict[str, Any], str]] = [
        (ColumnMismatch, {"digest": ["amount", "x"], "results": print}, "digest='x'"),
        (ColumnMismatch, {"digest": "items", "results": print}, "digest='items'.*to_json"),
        (InvalidOption, {"digest": "amount", "inbox": "table"}, "digest='amount', inbox='table'"),
        (InvalidOption, {"mismatches": "error"}, "mismatches='error': needs digest"),
    ]
    schema = pa.schema({"id": pa.string(), "amount": pa.int64(), "items": pa.list_(pa.int64())})
    for error, options, said in refused:
        with case(said), pytest.raises(error, match=said):
            prepared(migrated, schema=schema, **options)
    assert options_of(migrated, digest="amount").digest == ("amount",)
    assert taken(engine) == []
