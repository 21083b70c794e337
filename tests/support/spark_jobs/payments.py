"""The business rows of the Spark tests: payments, in a table that shows it if one is applied twice."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Column, Engine, MetaData, String, Table, func, select, text

from inbox.schema import tables
from tests.support.database import Database

TABLE = "payment"
KEY = "id"
CONSUMER = "bookkeeping"
METADATA = MetaData()
# Without a primary key, so that the database does not forbid what the inbox has to prevent.
PAYMENT = Table(
    TABLE,
    METADATA,
    Column("id", String(64), nullable=False),
    Column("amount", BigInteger, nullable=False),
)
COUNTS = ("new", "duplicate", "repeated", "dropped")


class Target:
    """An empty table of payments in a database that has the inbox. `inbox` is the writer's option; with
    "table" the table has a primary key."""

    def __init__(self, database: Database, inbox: str = "rows") -> None:
        self.database = database
        self.inbox = inbox
        self.engine: Engine = database.engine()
        METADATA.create_all(self.engine)
        if inbox == "table":
            with self.engine.begin() as connection:
                connection.execute(text(f"ALTER TABLE {TABLE} ADD PRIMARY KEY (id)"))

    @property
    def job(self) -> dict[str, str]:
        """The address and `inbox`, as arguments of a job."""
        return {"url": self.url, "inbox": self.inbox}

    @property
    def url(self) -> str:
        """The address in the form that a user of the writer gives."""
        return self.database.url.render_as_string(hide_password=False)

    @property
    def options(self) -> dict[str, str]:
        """The address and more, as options of the data source."""
        return {"url": self.url, "dbtable": TABLE, "key": KEY, "consumer": CONSUMER}

    def check(self, numbers: Iterable[int]) -> None:
        """Check that each of these payments is applied once with its amount, and no other; and that the inbox
        has their keys, if it has any."""
        expected = sorted(set(numbers))
        applied = self.applied()
        assert applied == [(name(number), number) for number in expected], _differences(expected, applied)
        keys = [name(number) for number in expected] if self.inbox == "rows" else []
        assert self.taken() == keys, f"{len(self.taken())} keys are taken"

    def applied(self) -> list[tuple[str, int]]:
        """All rows of the table, sorted."""
        with self.engine.connect() as connection:
            return sorted((row.id, row.amount) for row in connection.execute(select(PAYMENT)))

    def taken(self) -> list[str]:
        """All keys of the inbox, sorted."""
        message = tables().message
        with self.engine.connect() as connection:
            keys = connection.scalars(select(message.c.key).where(message.c.consumer == CONSUMER))
            return sorted(str(key) for key in keys)

    def counted(self) -> tuple[int, int]:
        """How many rows were read, and how many were new, according to the ledger."""
        ledger = tables().ledger
        sums = select(func.sum(ledger.c.rows_read), func.sum(ledger.c.rows_new))
        ours = ledger.c.consumer == CONSUMER, ledger.c.part >= 0
        with self.engine.connect() as connection:
            read, new = connection.execute(sums.where(*ours)).one()
        return int(read or 0), int(new or 0)

    def deadlocks(self) -> int:
        """The number of deadlocks that the server has counted in this database; 0 if it does not count
        them."""
        if self.database.name != "postgresql":
            return 0
        count = select(text("deadlocks FROM pg_stat_database WHERE datname = current_database()"))
        with self.engine.connect() as connection:
            return int(connection.execute(count).scalar_one())


def name(number: int) -> str:
    """The key of a payment."""
    return f"payment-{number:06d}"


def number(name: str) -> int:
    """The payment that has this key."""
    return int(name.removeprefix("payment-"))


def check_report(report: Mapping[str, Any], **counts: int) -> None:
    """Check that the report has these counts, and zero for all others, and that its rows are their sum."""
    expected = dict.fromkeys(COUNTS, 0) | counts
    counted = {each: report[each] for each in COUNTS}
    assert counted == expected, f"reported {counted}, expected {expected}"
    assert report["rows"] == sum(expected.values()), f"{report['rows']} rows in {counted}"


def _differences(expected: list[int], applied: list[tuple[str, int]]) -> str:
    counts = Counter(key for key, _ in applied)
    missing = [number for number in expected if name(number) not in counts]
    twice = [key for key, count in counts.items() if count > 1]
    strange = counts.keys() - {name(number) for number in expected}
    return f"{len(missing)} are missing, {len(twice)} are there twice, {len(strange)} should not be there"


def write_file(folder: Path, number: int, payments: Iterable[int]) -> Path:
    """Write a file of a stream; files are read in the order of their numbers."""
    file = folder / f"{number:03d}.json"
    lines = [json.dumps({"id": name(each), "amount": each}) for each in payments]
    file.write_text("".join(f"{line}\n" for line in lines))
    os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    return file
