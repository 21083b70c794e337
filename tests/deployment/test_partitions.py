"""On PostgreSQL, an `inbox_message` that a user has partitioned works like the plain table."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text, update

import inbox
from inbox import Inbox, Verdict
from inbox.schema import tables
from tests.support.database import Database
from tests.support.spark.writes import batch, make_result, taken, write

MESSAGE, LEDGER = tables().message, tables().ledger
LAYOUTS = {
    "hash": ("HASH (key)", [f"WITH (MODULUS 4, REMAINDER {number})" for number in range(4)]),
    "list": ("LIST (consumer)", ["IN ('mail')", "IN ('payments')"]),
    "range": ("RANGE (key)", ["FROM (MINVALUE) TO ('m')", "FROM ('m') TO (MAXVALUE)"]),
}
LONG_AGO = datetime.now(UTC) - timedelta(days=100)
KEYS = sorted(f"{'az'[number % 2]}{number}" for number in range(40))
"""Some for each partition of every layout."""
mail, payments = Inbox("mail"), Inbox("payments", retention=timedelta(days=365))


@pytest.fixture(params=LAYOUTS)
def engine(request: pytest.FixtureRequest, postgres: Database) -> Engine:
    """A database with such a table."""
    by, partitions = LAYOUTS[request.param]
    engine = make_result(postgres)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE inbox_message RENAME TO plain"))
        connection.execute(text(f"CREATE TABLE inbox_message (LIKE plain INCLUDING ALL) PARTITION BY {by}"))
        connection.execute(text("DROP TABLE plain"))
        for number, values in enumerate(partitions):
            part = f"CREATE TABLE part{number} PARTITION OF inbox_message"
            connection.execute(text(f"{part} FOR VALUES {values}"))
    return engine


def test_a_key_is_taken_once(engine: Engine) -> None:
    """Duplicates are found by single messages and by batches."""
    for expected in (Verdict.NEW, Verdict.DUPLICATE):
        with engine.begin() as connection:
            assert {mail.accept(connection, key) for key in KEYS} == {expected}
            assert {*payments.accept_many(connection, KEYS)} == {expected}


def test_a_purge_deletes_what_is_old(engine: Engine) -> None:
    """Partitions have rows at the same places: those of another consumer, or of another age, stay."""
    old = KEYS[::2]
    with engine.begin() as connection:
        payments.accept_many(connection, KEYS)
        mail.accept_many(connection, KEYS)
        its = MESSAGE.c.consumer == "mail", MESSAGE.c.key.in_(old)
        connection.execute(update(MESSAGE).where(*its).values(accepted_at=LONG_AGO))
    assert inbox.purge(engine, batch=7).rows == len(old)
    assert (taken(engine, "mail"), taken(engine, "payments")) == (KEYS[1::2], KEYS)


def test_a_purge_deletes_old_loads(engine: Engine, postgres: Database) -> None:
    """The same for rows that Spark has written in bulk."""
    for consumer in ("payments", "mail"):
        for run, keys in (("old", KEYS[::2]), ("young", KEYS[1::2])):
            write(postgres, [batch(*((key, 1) for key in keys))], consumer=consumer, run=run)
    with engine.begin() as connection:
        its = LEDGER.c.consumer == "mail", LEDGER.c.run == "old"
        connection.execute(update(LEDGER).where(*its).values(committed_at=LONG_AGO))
    assert inbox.purge(engine, batch=7).rows == len(KEYS[::2])
    assert (taken(engine, "mail"), taken(engine, "payments")) == (KEYS[1::2], KEYS)


def test_the_size_has_the_partitions(engine: Engine) -> None:
    """`status` counts the bytes of all partitions and their indexes."""
    with engine.begin() as connection:
        mail.accept_many(connection, KEYS)
        size = text("SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'part_'")
        expected = connection.execute(size).scalar_one()
    assert [each.bytes for each in inbox.status(engine)] == [expected]
    assert expected > 0
