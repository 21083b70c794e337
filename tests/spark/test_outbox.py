"""Messages that a partition publishes: they leave if and only if the partition commits."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from sqlalchemy import Connection, insert

from outbox import Accepted, Envelope, Message, Outbox, Outcome, Relay
from tests.support.database import Database
from tests.support.spark_writes import RESULT, batch, counts, make_result, write, written

TEN = [(f"k{number}", number) for number in range(10)]


class Recorder:
    """Accepts everything, and keeps it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str | None, bytes]] = []

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Keep a batch."""
        self.sent += [(message.key, message.payload) for message in batch]
        return [Accepted() for _ in batch]


def bill(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
    """A result and a message for every new row."""
    for each in rows:
        found = each.to_pylist()
        connection.execute(insert(RESULT), found)
        Outbox().publish_many(connection, [Message("billed", row, key=row["id"]) for row in found])


def relayed(database: Database) -> list[tuple[str | None, bytes]]:
    """What leaves, sorted."""
    recorder = Recorder()
    Relay(database.engine(), recorder).run_once()
    return sorted(recorder.sent, key=str)


@pytest.mark.parametrize("ledger", ["verify", "trust", "off"])
def test_new_rows_are_told_once(migrated: Database, ledger: str) -> None:
    """Each new row's message leaves once, though the job comes again and brings some rows twice."""
    engine = make_result(migrated)
    options = {"run": "r", "ledger": ledger, "results": bill}
    assert counts(write(migrated, [batch(*TEN[:7])], **options)) == {"new": 7}
    write(migrated, [batch(*TEN[:7])], **options)
    assert counts(write(migrated, [batch(*TEN[5:])], **options | {"run": "s"})) == {"new": 3, "duplicate": 2}
    assert written(engine) == TEN
    expected = [(key, f'{{"id":"{key}","amount":{amount}}}'.encode()) for key, amount in TEN]
    assert relayed(migrated) == sorted(expected, key=str)


def test_a_partition_that_fails_says_nothing(migrated: Database) -> None:
    """What a function has published is gone with everything else when it raises."""

    def fail(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        bill(connection, rows)
        raise RuntimeError("no")

    engine = make_result(migrated)
    with pytest.raises(RuntimeError, match="no"):
        write(migrated, [batch(*TEN)], run="r", results=fail)
    assert written(engine) == []
    assert relayed(migrated) == []
