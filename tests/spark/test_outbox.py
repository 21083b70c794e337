"""Messages that a partition publishes: they are sent if and only if the partition commits."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, insert

from inbox.errors import InvalidOption, TablesMissing
from outbox import Accepted, Envelope, Message, Outbox, Outcome, Relay
from spark import InboxWriter, PerPartition, PerRow, Statements
from spark._options.names import from_strings
from spark._options.settings import checked
from spark.errors import ColumnMismatch, InvalidRow
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import each_on, on
from tests.support.spark.writes import (
    RESULT,
    SCHEMA,
    attempt,
    batch,
    counts,
    execute,
    losing_an_answer,
    make_result,
    prepared,
    write,
    written,
)

TEN = [(f"k{number}", number) for number in range(10)]


class Recorder:
    """Accepts and records every message."""

    def __init__(self) -> None:
        self.sent: list[tuple[str | None, bytes]] = []

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Record a batch."""
        self.sent += [(message.key, message.payload) for message in batch]
        return [Accepted() for _ in batch]


def bill(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
    """Write a result and publish a message for every new row."""
    for each in rows:
        found = each.to_pylist()
        connection.execute(insert(RESULT), found)
        Outbox().publish_many(connection, [Message("billed", row, key=row["id"]) for row in found])


def relayed(database: Database) -> list[tuple[str | None, bytes]]:
    """Relay everything. Returns the messages sent, sorted."""
    recorder = Recorder()
    Relay(database.engine(), recorder).run_once()
    return sorted(recorder.sent, key=str)


@each_on("sqlite", "ledger, how", product(["verify", "trust", "off"], ["outbox", "results"]), others=2)
def test_new_rows_are_told_once(migrated: Database, ledger: str, how: str) -> None:
    """Each new row's message is sent once, even if its key or the job is repeated and another job has some of
    the same rows. Either the writer publishes it or a function."""
    engine = make_result(migrated)
    ways: dict[str, Any] = {"outbox": PerRow("billed"), "results": bill}
    options = {"run": "r", "ledger": ledger, how: ways[how]}
    assert counts(write(migrated, [batch(*TEN[:7], ("k0", 9))], **options)) == {"new": 7, "repeated": 1}
    write(migrated, [batch(*TEN[:7], ("k0", 9))], **options)
    assert counts(write(migrated, [batch(*TEN[5:])], **options | {"run": "s"})) == {"new": 3, "duplicate": 2}
    assert written(engine) == TEN
    assert objects(migrated) == [(key, {"id": key, "amount": amount}) for key, amount in TEN]


@on("sqlite")
def test_a_partition_that_fails_says_nothing(migrated: Database) -> None:
    """When a function raises, the messages that it has published are rolled back with everything else."""

    def fail(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        bill(connection, rows)
        raise RuntimeError("no")

    engine = make_result(migrated)
    with pytest.raises(RuntimeError, match="no"):
        write(migrated, [batch(*TEN)], run="r", results=fail)
    assert written(engine) == []
    assert relayed(migrated) == []


def objects(database: Database) -> list[tuple[str | None, Any]]:
    """Relay everything. Returns the keys and the decoded JSON of the messages sent, sorted."""
    return sorted(((key, json.loads(payload)) for key, payload in relayed(database)), key=str)


def test_what_a_message_says(migrated: Database) -> None:
    """A payload consists of the chosen columns, with every digit, or of one column's own text or bytes. The
    key can be another column."""
    make_result(migrated)
    rows = pa.record_batch(
        {
            "id": ["a", "b"],
            "shop": pa.array([7, None], pa.int32()),
            "total": pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)),
            "at": pa.array([datetime(2026, 1, 2, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            "items": [[{"sku": "ü"}], []],
            "body": [b"\x00", b"1"],
            "text": ["x", "ü"],
        }
    )
    known = {"table": None, "results": Statements("DELETE FROM result")}
    ways: list[tuple[PerRow, list[tuple[str | None, Any]]]] = [
        (
            PerRow("t", key="shop", payload=["total", "at", "items"]),
            [
                ("7", {"total": "1.10", "at": "2026-01-02T00:00:00+00:00", "items": [{"sku": "ü"}]}),
                (None, {"total": None, "at": None, "items": []}),
            ],
        ),
        (PerRow("t", payload="body"), [("a", b"\x00"), ("b", b"1")]),
        (PerRow("t", payload="text"), [("a", b"x"), ("b", "ü".encode())]),
    ]
    for number, (how, expected) in enumerate(ways):
        with case(how):
            write(migrated, [rows], consumer=f"c{number}", outbox=how, **known)
            found: list[Any] = objects(migrated) if number == 0 else relayed(migrated)
            assert found == sorted(expected, key=str)


def test_a_message_for_each_partition(migrated: Database) -> None:
    """Each partition with new rows publishes one message with its counts, also with inbox="table". A replay
    publishes none."""
    engine = make_result(migrated)
    execute(engine, "CREATE UNIQUE INDEX own ON result (id)")
    for inbox in ("rows", "table"):
        options = {
            "outbox": PerPartition("loaded", key=inbox),
            "run": inbox,
            "consumer": inbox,
            "inbox": inbox,
        }
        for _ in range(2):
            write(migrated, [batch(*TEN[:3], TEN[0])], [batch(*TEN[3:])], [batch(TEN[0])], **options)
        sums = {"duplicate": 0, "repeated": 0, "dropped": 0, "mismatch": 0, "rejected": 0, "updated": 0}
        first = {"consumer": inbox, "run": inbox, "batch": 0, "part": 0, "rows": 4, "new": 3} | sums
        second = first | {"part": 1, "rows": 7, "new": 7}
        assert objects(migrated) == [(inbox, first | {"repeated": 1}), (inbox, second)]
        execute(engine, RESULT.delete())


@each_on("sqlite", "how", {"row": PerRow("billed"), "partition": PerPartition("loaded")})
def test_a_lost_answer_to_a_commit_publishes_once(migrated: Database, how: PerRow | PerPartition) -> None:
    """When the answer to a COMMIT is lost, the transaction is retried, and its messages are sent once."""
    make_result(migrated)
    task = prepared(migrated, schema=SCHEMA, outbox=how)
    with losing_an_answer():
        attempt(task, 0, batch(*TEN))
    assert len(relayed(migrated)) == (10 if isinstance(how, PerRow) else 1)


@on("sqlite")
def test_messages_that_cannot_be_published(migrated: Database) -> None:
    """Columns that are missing or have the wrong type are rejected on the driver. A row without a payload
    raises an error, and so does a database without the outbox tables."""
    engine = make_result(migrated)
    wrong = {
        PerRow("t", payload=["id", "sum"]): "no column 'sum'",
        PerRow("t", key="sum"): "no column 'sum'",
        PerRow("t", payload="amount"): "type int64, expected a string or bytes",
    }
    for how, said in wrong.items():
        with case(how), pytest.raises(ColumnMismatch, match=said):
            prepared(migrated, outbox=how)
    note = pa.record_batch({"id": ["a", "b"], "note": ["n", None]})
    with pytest.raises(InvalidRow, match="1 rows have no payload"):
        write(migrated, [note], outbox=PerRow("t", payload="note"))
    assert written(engine) == []
    execute(engine, "DROP TABLE outbox_message")
    with pytest.raises(TablesMissing, match="outbox_message"):
        prepared(migrated, outbox=PerRow("t"))


def test_wrong_options_for_messages() -> None:
    """Each wrong option is rejected by name, before a connection is made. Options given as text mean the
    same."""
    usual: dict[str, Any] = {"url": "postgresql://h/d", "table": "t", "key": "k", "consumer": "c"}
    for options, said in (
        ({"outbox": "topic"}, "outbox='topic'"),
        ({"outbox": PerRow("t"), "inbox": "table"}, "inbox='table'"),
        ({"outbox": PerPartition("t"), "ledger": "off"}, "ledger='off'"),
    ):
        with case(options), pytest.raises(InvalidOption, match=said):
            InboxWriter(**usual, **options)
    wrong: list[Any] = [
        lambda: PerRow(""),
        lambda: PerRow("t", key=""),
        lambda: PerRow("t", payload=[]),
        lambda: PerRow("t", payload=["a", "a"]),
        lambda: PerPartition("t", key=""),
        lambda: from_strings({"outboxKey": "a"}),
        lambda: from_strings({"outboxTopic": "t", "outboxPer": "table"}),
        lambda: from_strings({"outboxTopic": "t", "outboxPer": "partition", "outboxPayload": "a"}),
    ]
    for make in wrong:
        with pytest.raises(InvalidOption):
            make()
    for given, means in (
        ({"outboxTopic": "t"}, PerRow("t")),
        ({"outboxTopic": "t", "outboxKey": "a", "outboxPayload": "b, c"}, PerRow("t", "a", ["b", "c"])),
        ({"outboxTopic": "t", "outboxPayload": "b"}, PerRow("t", payload="b")),
        ({"outboxTopic": "t", "outboxPer": "partition", "outboxKey": "a"}, PerPartition("t", "a")),
    ):
        assert checked(**usual, **from_strings(given)).outbox == means
