"""`reconcile` compares a DataFrame with the inbox and the table, and names what is missing."""

from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Engine, delete, insert, update

from inbox import Inbox
from inbox.schema import tables
from spark import Reconciliation, Statements, Upsert
from spark._driver.comparison import check, summary
from spark._executor.compare_partition import compared
from spark.errors import ColumnMismatch, InvalidRow
from tests.spark.test_own_key import APPEND, BALANCE, UPSERT, balances, events
from tests.spark.test_own_key import METADATA as OWN_KEY
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.spark.writes import RESULT, batch, execute, make_result, options_of, write

LEDGER, MESSAGE = tables().ledger, tables().message


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with the result tables."""
    OWN_KEY.create_all(migrated.engine())
    return make_result(migrated)


def reconcile(database: Database, *partitions: list[pa.RecordBatch], **options: Any) -> Reconciliation:
    """What `InboxWriter.reconcile` does on the driver and in its tasks."""
    settings = options_of(database, **options)
    compares_table = check(settings, partitions[0][0].schema)
    parts = [compared(settings, number, iter(batches)) for number, batches in enumerate(partitions)]
    return summary(settings, compares_table, [part for part in parts if part is not None])


def counts(found: Reconciliation) -> dict[str, int]:
    """The counts that are not zero; checks that they add up."""
    names = ("present", "missing", "unapplied", "untaken")
    kinds = {name: getattr(found, name) for name in names}
    assert found.keys == sum(kinds.values()), found
    differing = {
        name: sum(each.keys for each in found.differences if each.what == name) for name in names[1:]
    }
    assert differing == {name: kinds[name] for name in names[1:]}
    return {name: count for name, count in kinds.items() if count}


@on("sqlite")
def test_a_digest_does_not_matter(migrated: Database, engine: Engine) -> None:
    """A writer with a digest compares only the keys: its tasks do not even receive the other columns."""
    write(migrated, [batch(("a", 1))], digest="amount")
    rows = batch(("a", 2), ("b", 1)).select(["id"])
    assert counts(reconcile(migrated, [rows], digest="amount")) == {"present": 1, "missing": 1}


def test_what_is_missing_is_named(migrated: Database, engine: Engine) -> None:
    """`reconcile` names keys that were never written, rows that were deleted later, with the job that wrote
    them, and rows that are in the table but not in the inbox. They are grouped by partition, with the first
    keys as a sample."""
    rows = [batch(*((f"k{number:02}", number) for number in range(part, 40, 2))) for part in range(2)]
    write(migrated, [rows[0].slice(0, 15)], [rows[1]], run="r", batch=5)
    assert counts(reconcile(migrated, [rows[1], rows[1]])) == {"present": 20}
    with engine.begin() as connection:
        connection.execute(delete(RESULT).where(RESULT.c.id.in_(["k01", "k03", "k00"])))
        connection.execute(delete(MESSAGE).where(MESSAGE.c.key == "k02"))
        connection.execute(insert(RESULT), [{"id": "k38", "amount": 1}])
        Inbox("billing").accept(connection, "k36")
        Inbox("other").accept(connection, "k34")
    found = reconcile(migrated, [rows[0]], [rows[1], batch(("k00", 0))])
    assert counts(found) == {"present": 31, "missing": 3, "unapplied": 5, "untaken": 2}
    assert (found.rows, found.dropped, found.compares_inbox, found.compares_table) == (41, 0, True, True)
    assert not found.is_complete
    named = [(each.what, each.partition, each.sample, each.run, each.part) for each in found.differences]
    assert sorted(named, key=str) == [
        ("missing", 0, ("k30", "k32", "k34"), None, None),
        ("unapplied", 0, ("k00",), "r", 0),
        ("unapplied", 0, ("k36",), None, None),
        ("unapplied", 1, ("k00",), "r", 0),
        ("unapplied", 1, ("k01", "k03"), "r", 1),
        ("untaken", 0, ("k02", "k38"), None, None),
    ]
    by_job = [each for each in found.differences if each.run]
    assert all(each.batch == 5 and each.committed_at is not None for each in by_job)


@on("postgresql", "sqlite")
def test_a_partition_larger_than_memory(migrated: Database, engine: Engine) -> None:
    """A partition larger than memory is reported as one partition, with its first keys as a sample."""
    rows = [
        batch(*((f"k{number:06}" * 9, 1) for number in range(at, at + 4_000))) for at in (0, 4_000, 8_000)
    ]
    write(migrated, [rows[1]])
    found = reconcile(migrated, [*rows], memory=2**20)
    assert counts(found) == {"present": 4_000, "missing": 8_000}
    [difference] = found.differences
    assert difference.sample == tuple(f"k{number:06}" * 9 for number in range(10))


@on("sqlite")
def test_rows_without_a_key(migrated: Database, engine: Engine) -> None:
    """Rows without a key raise an error, or are counted with null_keys="drop"."""
    rows = [batch(("a", 1), (None, 2), ("a", 3))]
    with pytest.raises(InvalidRow, match="have no key"):
        reconcile(migrated, rows)
    found = reconcile(migrated, rows, null_keys="drop")
    assert (found.rows, found.dropped, found.keys, found.missing) == (3, 1, 1, 1)


def test_an_upsert_compares_versions(migrated: Database, engine: Engine) -> None:
    """A row is present if the table has that version of it, or a newer one."""
    options = {**UPSERT, "inbox": "rows"}
    rows = [balances(("a", 1, 10), ("a", 3, 30), ("b", 2, 20)), balances(("c", 1, 1), ("d", 1, 1))]
    write(migrated, rows, **options)
    for account, version in (("a", 2), ("b", 5), ("c", None)):
        execute(engine, update(BALANCE).where(BALANCE.c.account == account).values(version=version))
    found = reconcile(migrated, [*rows, balances(("e", 1, 1))], **options)
    assert counts(found) == {"present": 3, "unapplied": 2, "missing": 1}
    samples = {each.what: each.sample for each in found.differences}
    assert samples == {"unapplied": ('["a",3]', '["c",1]'), "missing": ('["e",1]',)}


def test_with_the_tables_own_key(migrated: Database, engine: Engine) -> None:
    """With inbox="table", only the table is compared, for Append and for Upsert."""
    write(migrated, [events(1, 2)], **APPEND)
    found = reconcile(migrated, [events(1, 2, 3)], **APPEND)
    assert (counts(found), found.compares_inbox) == ({"present": 2, "missing": 1}, False)
    write(migrated, [balances(("a", 2, 1))], **UPSERT)
    found = reconcile(migrated, [balances(("a", 1, 1), ("a", 3, 3))], **UPSERT)
    assert counts(found) == {"present": 1, "missing": 1}


def test_a_generated_key(postgres: Database) -> None:
    """A key that the database generates in the table, where a job cannot write it, can still be compared."""
    execute(
        postgres.engine(),
        "CREATE TABLE counted (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, amount bigint)",
        "INSERT INTO counted (amount) VALUES (7)",
    )
    settings = options_of(postgres, table="counted")
    rows = pa.record_batch({"id": [1, 2], "amount": [7, 8]})
    assert check(settings, rows.schema)
    part = compared(settings, 0, iter([rows]))
    assert part is not None
    assert [(each.what, each.sample) for each in part.differences] == [
        ("missing", ("2",)),
        ("untaken", ("1",)),
    ]


@on("sqlite")
def test_only_the_inbox_is_compared(migrated: Database, engine: Engine) -> None:
    """Only the inbox is compared if the results are statements, or if the table has no column for the key."""
    keyed = pa.record_batch({"event": ["e1", "e2"], "id": ["a", "b"]})
    for options in ({"key": "event"}, {"key": "event", "table": None, "results": Statements("SELECT 1")}):
        write(migrated, [keyed.slice(0, 1)], consumer=f"c{len(options)}", **options)
        found = reconcile(migrated, [keyed], consumer=f"c{len(options)}", **options)
        assert (counts(found), found.compares_table) == ({"present": 1, "missing": 1}, False)


@on("sqlite")
def test_what_cannot_be_compared(migrated: Database, engine: Engine) -> None:
    """A target that cannot be compared is rejected on the driver."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"table": "nowhere"}, "table='nowhere': there is no such table"),
        ({"key": "event"}, "key='event'"),
        ({"results": Upsert("note", "amount")}, "no column 'note'"),
    ]
    for options, said in wrong:
        with pytest.raises(ColumnMismatch, match=said):
            reconcile(migrated, [batch(("a", 1))], **options)
