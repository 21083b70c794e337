"""Rows that the target refuses: set aside in a table, or named in the error."""

import json
import math
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import (
    CheckConstraint,
    Column,
    Engine,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

import inbox
from inbox.errors import InvalidOption
from inbox.schema import tables
from spark import Append, PerRow, Statements, Upsert
from spark._executor import filling
from spark._executor.refusing import dividing
from spark.errors import InvalidRow
from tests.spark.test_reconciling import reconcile
from tests.support.database import Database
from tests.support.on_servers import each_on, on
from tests.support.spark.writes import counts, execute, fetched, losing_an_answer, options_of, taken, write

METADATA = MetaData()
# Nothing in it is unique: only the inbox keeps a row from standing here twice.
SMALL = Table(
    "small",
    METADATA,
    Column("id", String(20), nullable=False),
    Column("size", SmallInteger),
    Column("name", String(5)),
    CheckConstraint("size BETWEEN 0 AND 30000", name="small_size"),
)
NEWEST = Table(
    "newest",
    METADATA,
    Column("id", String(20), primary_key=True),
    Column("size", Integer),
    Column("version", Integer),
    CheckConstraint("size >= 0", name="newest_size"),
)
SCHEMA = pa.schema([("id", pa.string()), ("size", pa.int32()), ("name", pa.string())])
REJECTED = tables().rejected
USUAL: dict[str, Any] = {"table": "small", "key": "id", "bad_rows": "table"}


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with the tables."""
    METADATA.create_all(migrated.engine())
    return migrated.engine()


def rows(*values: tuple[str, int | None, str | None]) -> pa.RecordBatch:
    """Rows in the form in which Spark sends them."""
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in values], SCHEMA)


def many(bad: dict[int, int], number: int = 1_000) -> pa.RecordBatch:
    """Rows with keys in the order of their numbers, some with a bad size."""
    return rows(*((f"k{each:05}", bad.get(each, each), "ok") for each in range(number)))


def rejected(engine: Engine) -> list[tuple[Any, ...]]:
    """Key, run, batch and part of each rejected row, sorted."""
    c = REJECTED.c
    return sorted(fetched(engine, select(c.key, c.run, c.batch, c.part)))


def stored(engine: Engine) -> list[str]:
    """The keys in the table, sorted."""
    return sorted(key for (key,) in fetched(engine, select(SMALL.c.id)))


@each_on("postgresql", "ledger", ["verify", "off"])
def test_bad_rows_go_into_the_table(migrated: Database, engine: Engine, ledger: str) -> None:
    """The rows that the target refuses are in `inbox_rejected`, with the column to blame and the row as JSON.
    All others are applied, and only their keys are taken."""
    part = many({0: -1, 500: 31_000, 999: -7})
    report = write(migrated, [part], [rows(("other", 1, None))], run="r", batch=3, ledger=ledger, **USUAL)
    assert counts(report) == {"new": 998, "rejected": 3}
    good = [f"k{each:05}" for each in range(1_000) if each not in (0, 500, 999)]
    assert stored(engine) == taken(engine) == [*good, "other"]
    assert rejected(engine) == [(f"k{each:05}", "r", 3, 0) for each in (0, 500, 999)]
    [(error, content, load)] = fetched(
        engine,
        select(REJECTED.c.error, REJECTED.c.content, REJECTED.c.load).where(REJECTED.c.key == "k00500"),
    )
    assert "column 'size': the database refused a row" in error
    assert "31000" not in error
    assert json.loads(content) == {"id": "k00500", "size": 31_000, "name": "ok"}
    assert (load is None) == (ledger == "off")


def test_the_same_job_again_tries_the_bad_rows_again(migrated: Database, engine: Engine) -> None:
    """A partition with rejected rows is never taken for done: once the table accepts its rows, the same job
    applies them, and their rejected rows are gone. Until then, each key has one rejected row."""
    part = [rows(("a", 1, None), ("b", -1, None), ("c", 2, None), ("b", 5, None))]
    for _ in range(2):
        report = write(migrated, part, run="r", ledger="trust", **USUAL)
        assert counts(report) == {"new": 2, "repeated": 1, "rejected": 1}
        assert report.replayed == 0
        assert rejected(engine) == [("b", "r", 0, 0)]
    if migrated.name == "sqlite":  # it cannot drop the constraint
        return
    execute(engine, "ALTER TABLE small DROP CONSTRAINT small_size")
    assert counts(write(migrated, part, run="r", ledger="trust", **USUAL)) == {"new": 3, "repeated": 1}
    assert rejected(engine) == []
    assert stored(engine) == taken(engine) == ["a", "b", "c"]
    assert write(migrated, part, run="r", ledger="trust", **USUAL).replayed == 1


@on("postgresql")
def test_a_failed_job_goes_on_with_rejected_rows(migrated: Database, engine: Engine) -> None:
    """A job fails because of a bad row, and goes on with bad_rows="table": what has committed is known."""
    parts = [[rows(("a", 1, None))], [rows(("b", 1, None), ("c", -1, None))]]
    with pytest.raises(InvalidRow):
        write(migrated, *parts, run="r", **USUAL | {"bad_rows": "fail"})
    report = write(migrated, *parts, run="r", **USUAL)
    assert (counts(report), report.replayed) == ({"new": 2, "rejected": 1}, 1)
    found = reconcile(migrated, *parts, **USUAL)
    assert (found.present, found.missing) == (2, 1)


@on("postgresql")
def test_a_lost_commit_counts_once(migrated: Database, engine: Engine) -> None:
    """The answer to the COMMIT of a partition with rejected rows is lost: every row is applied once."""
    write(migrated, [], schema=SCHEMA, **USUAL)
    part = [rows(("a", 1, None), ("b", -1, None))]
    with losing_an_answer():
        report = write(migrated, part, outbox=PerRow("told"), **USUAL)
    assert counts(report) == {"new": 1, "rejected": 1}
    assert stored(engine) == taken(engine) == ["a"]
    assert [key for key, *_ in rejected(engine)] == ["b"]
    assert fetched(engine, select(tables().outbox.message.c.key)) == [("a",)]


def test_a_taken_key_ends_its_rejected_row(migrated: Database, engine: Engine) -> None:
    """Another job takes the key with a row that is accepted, whatever its option says; a bad row whose key is
    taken is a duplicate."""
    write(migrated, [rows(("a", -1, None), ("b", -1, None))], **USUAL)
    assert [key for key, *_ in rejected(engine)] == ["a", "b"]
    assert counts(write(migrated, [rows(("a", 1, None))], **USUAL | {"bad_rows": "fail"})) == {"new": 1}
    assert [key for key, *_ in rejected(engine)] == ["b"]
    assert counts(write(migrated, [rows(("a", -1, None))], **USUAL)) == {"duplicate": 1}
    assert [key for key, *_ in rejected(engine)] == ["b"]


@on("postgresql")
def test_several_targets_and_messages(migrated: Database, engine: Engine) -> None:
    """A row that one of several targets refuses is in none of them, and has no message. Newer rows update
    older ones, also if they are applied in different parts."""
    schema = SCHEMA.append(pa.field("version", pa.int32()))
    values = [(f"k{each}", each if each != 3 else -1, "n", each) for each in range(8)]
    part = pa.RecordBatch.from_pylist([dict(zip(schema.names, each, strict=True)) for each in values], schema)
    targets = [
        Append("small", columns=["id", "name"]),
        Upsert("id", "version", "newest", columns=["id", "size", "version"]),
    ]
    options = {"table": None, "results": targets, "outbox": PerRow("told"), "key": ["id", "name"]}
    report = write(migrated, [part], schema=schema, **USUAL | options)
    assert counts(report) == {"new": 7, "rejected": 1}
    others = [f"k{each}" for each in range(8) if each != 3]
    assert stored(engine) == others
    assert sorted(fetched(engine, select(NEWEST.c.id))) == [(each,) for each in others]
    assert len(fetched(engine, select(tables().outbox.message.c.id))) == 7


@on("postgresql")
def test_constraints_that_wait_for_the_commit(migrated: Database, engine: Engine) -> None:
    """A row that a deferred constraint would refuse at the COMMIT is rejected, too."""
    execute(engine, "ALTER TABLE small ADD UNIQUE (name) DEFERRABLE INITIALLY DEFERRED")
    report = write(migrated, [rows(("a", 1, "x"), ("b", 1, "y"), ("c", 1, "x"))], **USUAL)
    assert counts(report) == {"new": 2, "rejected": 1}
    assert rejected(engine)[0][0] == "c"


@on("postgresql")
def test_rows_that_need_each_other(migrated: Database, engine: Engine) -> None:
    """Two rows refer to each other by a deferred constraint: both are applied beside a bad row."""
    execute(
        engine,
        "ALTER TABLE small ADD PRIMARY KEY (id), "
        "ADD FOREIGN KEY (name) REFERENCES small (id) DEFERRABLE INITIALLY DEFERRED",
    )
    part = rows(("a", 1, "d"), ("b", 1, None), ("c", -1, None), ("d", 1, "a"))
    assert counts(write(migrated, [part], **USUAL)) == {"new": 3, "rejected": 1}
    assert [key for key, *_ in rejected(engine)] == ["c"]


TRIGGERS = {
    "postgresql": [
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN IF new.name = 'no' THEN RAISE EXCEPTION 'no'; END IF; RETURN new; END$$""",
        "CREATE TRIGGER refuse BEFORE INSERT ON small FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
    "mariadb": [
        """CREATE TRIGGER refuse BEFORE INSERT ON small FOR EACH ROW
        IF new.name = 'no' THEN SIGNAL SQLSTATE '45000'; END IF"""
    ],
    "sqlite": [
        """CREATE TRIGGER refuse BEFORE INSERT ON small WHEN new.name = 'no'
        BEGIN SELECT RAISE(ABORT, 'no'); END"""
    ],
}


@on(*TRIGGERS)
def test_a_trigger_that_refuses(migrated: Database, engine: Engine) -> None:
    """A row that a trigger refuses is rejected."""
    execute(engine, *TRIGGERS[migrated.name])
    part = rows(("a", 1, "yes"), ("b", 1, "no"), ("c", 1, "yes"))
    assert counts(write(migrated, [part], **USUAL)) == {"new": 2, "rejected": 1}
    assert "column 'name': " in fetched(engine, select(REJECTED.c.error))[0][0]


FAILING = """CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
IF new.name = 'c' AND nextval('calls') <= {times} THEN {how}; END IF; RETURN new; END$$"""


@on("postgresql")
@pytest.mark.parametrize(
    ("how", "passes"),
    [
        ("RAISE SQLSTATE '40P01'", True),
        ("PERFORM pg_terminate_backend(pg_backend_pid())", True),
        ("RAISE SQLSTATE '53100'", False),
        ("RAISE SQLSTATE '42501'", False),
    ],
    ids=["a deadlock", "a lost connection", "a full disk", "no right"],
)
def test_errors_of_no_row(migrated: Database, engine: Engine, how: str, passes: bool) -> None:
    """While a partition is tried by halves, one of its good rows meets an error that is not about the row: it
    is never rejected. The partition is tried again, or fails."""
    execute(
        engine,
        "CREATE SEQUENCE calls",
        FAILING.format(times=2 if passes else 1_000, how=how),
        "CREATE TRIGGER fail BEFORE INSERT ON small FOR EACH ROW EXECUTE FUNCTION fail()",
    )
    part = [rows(("a", 1, "a"), ("b", -1, "b"), ("c", 1, "c"))]
    if passes:
        assert counts(write(migrated, part, **USUAL)) == {"new": 2, "rejected": 1}
    else:
        with pytest.raises(DBAPIError):
            write(migrated, part, **USUAL)
    assert stored(engine) == taken(engine) == (["a", "c"] if passes else [])
    assert [key for key, *_ in rejected(engine)] == (["b"] if passes else [])


@on("postgresql")
def test_a_message_that_the_outbox_refuses(migrated: Database, engine: Engine) -> None:
    """A row whose message is too long is rejected. An error of the outbox's own table is not about a row."""
    long = PerRow("told", key="name", payload=["id"])
    schema = pa.schema([*SCHEMA][:2]).append(pa.field("name", pa.string()))
    execute(engine, "ALTER TABLE small ALTER name TYPE text")
    part = pa.record_batch([["a", "b"], pa.array([1, 1], pa.int32()), ["ok", "x" * 999]], schema=schema)
    report = write(migrated, [part], outbox=long, **USUAL)
    assert counts(report) == {"new": 1, "rejected": 1}
    execute(engine, "ALTER TABLE outbox_message ADD CHECK (key <> 'no')")
    with pytest.raises(DBAPIError, match="outbox_message"):
        write(migrated, [rows(("c", 1, "no"), ("d", 1, "ok"))], outbox=long, **USUAL)
    assert stored(engine) == ["a"]
    assert [key for key, *_ in rejected(engine)] == ["b"]


def test_only_bad_rows(migrated: Database, engine: Engine) -> None:
    """All rows of a partition are bad, more than are written at once. When some come again and the table
    accepts them, their rejected rows go, and no others."""
    keys = [f"k{each:02}" for each in range(12)]
    report = write(migrated, [rows(*((key, -1, "x" * 200_000) for key in keys))], **USUAL)
    assert counts(report) == {"rejected": 12}
    assert [key for key, *_ in rejected(engine)] == keys
    assert stored(engine) == taken(engine) == []
    assert counts(write(migrated, [rows(*((key, 1, None) for key in keys[::5]))], **USUAL)) == {"new": 3}
    assert [key for key, *_ in rejected(engine)] == sorted({*keys} - {*keys[::5]})


@on("postgresql")
def test_rows_that_an_upsert_has_updated(migrated: Database, engine: Engine) -> None:
    """A partition that is tried by halves counts each updated row once. A row without a key is dropped, not
    rejected."""
    options = USUAL | {"table": "newest", "results": Upsert("id", "version"), "key": ["id", "version"]}
    schema = pa.schema([("id", pa.string()), ("size", pa.int32()), ("version", pa.int32())])

    def versions(version: int, bad: int = 1) -> pa.RecordBatch:
        values = [("a", 1), ("b", bad), ("c", 1), (None, 1)]
        whole = [{"id": key, "size": size, "version": version} for key, size in values]
        return pa.RecordBatch.from_pylist(whole, schema)

    with pytest.raises(InvalidRow, match="1 rows have no key"):
        write(migrated, [versions(1)], **options)
    write(migrated, [versions(1)], null_keys="drop", **options)
    report = write(migrated, [versions(2, bad=-1)], null_keys="drop", **options)
    assert counts(report) == {"new": 2, "dropped": 1, "rejected": 1}
    assert report.updated == 2


@on("postgresql")
def test_bad_rows_hold_few_locks(migrated: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows are bad, the transaction holds few locks, which all sessions of a server share. The
    temporary table stays, and is emptied; and savepoints are rolled back once there are many."""
    monkeypatch.setattr(filling, "_MANY", 50)
    monkeypatch.setattr(dividing, "_MOST_PARTS", 5)
    script = """
        CREATE TABLE held (locks bigint);
        CREATE FUNCTION count_locks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO held SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid(); RETURN NULL; END $$;
        CREATE TRIGGER counts AFTER INSERT ON inbox_rejected EXECUTE FUNCTION count_locks()"""
    execute(engine, *script.split(";\n        "))
    options = USUAL | {"table": "newest", "results": Upsert("id", "version")}
    schema = pa.schema([("id", pa.string()), ("size", pa.int32()), ("version", pa.int32())])
    held = []
    for every in (30, 3):
        sizes = [-1 if number % every == 0 else 1 for number in range(90)]
        values = [{"id": f"{every}-{n}", "size": size, "version": 1} for n, size in enumerate(sizes)]
        report = write(migrated, [pa.RecordBatch.from_pylist(values, schema)], **options)
        assert counts(report) == {"new": sizes.count(1), "rejected": sizes.count(-1)}
        held += fetched(engine, "SELECT max(locks) FROM held")
    [(few,), (more,)] = held
    assert more <= few + 10


@on("sqlite")
def test_rows_that_are_accepted_only_one_after_the_other(
    migrated: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are applied also if one makes room for another, however many parts were accepted before."""
    monkeypatch.setattr(dividing, "_MOST_PARTS", 3)
    execute(engine, "CREATE UNIQUE INDEX newest_size_once ON newest (size)")
    execute(engine, insert(NEWEST).values(id="b", size=0, version=1))
    options = USUAL | {"table": "newest", "results": Upsert("id", "version"), "key": "version"}
    schema = pa.schema([("id", pa.string()), ("size", pa.int32()), ("version", pa.int32())])
    given = [("b", 100), ("a", 0), ("c", -1), ("d", 1), ("e", -1), ("f", 2), ("g", -1), ("h", 3)]
    values = [{"id": key, "size": size, "version": n} for n, (key, size) in enumerate(given, 2)]
    report = write(migrated, [pa.RecordBatch.from_pylist(values, schema)], **options)
    assert counts(report) == {"new": 5, "rejected": 3}
    assert sorted(fetched(engine, select(NEWEST.c.id, NEWEST.c.size))) == sorted(
        (key, size) for key, size in given if size >= 0
    )


@each_on("postgresql", "inbox_kind", ["rows", "table"])
def test_the_error_names_row_and_column(migrated: Database, engine: Engine, inbox_kind: str) -> None:
    """By default a partition with a bad row fails and writes nothing. Its error names the row's number and
    the column, and no value."""
    execute(engine, "CREATE UNIQUE INDEX small_id ON small (id)")
    options = USUAL | {"bad_rows": "fail", "inbox": inbox_kind}
    place = r"partition 0, row 501 in the order of the keys: column 'size': the database refused a row: "
    with pytest.raises(InvalidRow, match=place) as raised:
        write(migrated, [many({500: 99_999})], **options)
    assert "99999" not in str(raised.value)
    assert "k00500" not in str(raised.value)
    if migrated.name != "sqlite":  # it stores text of any length
        with pytest.raises(InvalidRow, match=r"row 2 in the order of the keys: column 'name': "):
            write(migrated, [rows(("a", 1, "ok"), ("b", 1, "much too long"))], **options)
    assert stored(engine) == taken(engine) == []
    assert rejected(engine) == []


@on("postgresql")
def test_the_database_names_the_column(migrated: Database, engine: Engine) -> None:
    """No other column is blamed."""
    execute(engine, "ALTER TABLE small ALTER name SET NOT NULL")
    write(migrated, [rows(("a", 1, None))], **USUAL)
    [(error,)] = fetched(engine, select(REJECTED.c.error))
    assert error.startswith("the database refused a row: NotNullViolation")
    assert error.endswith(", column name")


@on("postgresql")
def test_more_than_memory_holds(migrated: Database, engine: Engine) -> None:
    """Bad rows of a partition that is larger than memory are found, and named by their place in it."""
    parts = [many({29_999: -1}, 30_000)]
    with pytest.raises(InvalidRow, match="row 30000 in the order of the keys"):
        write(migrated, parts, memory=2**20, **USUAL | {"bad_rows": "fail"})
    assert counts(write(migrated, parts, memory=2**20, **USUAL)) == {"new": 29_999, "rejected": 1}
    assert rejected(engine)[0][0] == "k29999"


@on("postgresql")
def test_values_that_cannot_be_sent(migrated: Database, engine: Engine) -> None:
    """Rows that cannot be converted or sent are rejected, too: text with a NUL or that is not UTF-8. Their
    JSON has what can be read of it."""
    bad = pa.array([b"ok", b"\xff\xfe", b"a\0b"], pa.binary()).view(pa.string())
    part = pa.record_batch([pa.array(["a", "b", "c"]), pa.array([1, 2, 3], pa.int32()), bad], schema=SCHEMA)
    assert counts(write(migrated, [part], **USUAL)) == {"new": 1, "rejected": 2}
    found = dict(fetched(engine, select(REJECTED.c.key, REJECTED.c.content)))
    assert {key: json.loads(text)["name"] for key, text in found.items()} == {
        "b": "\ufffd\ufffd",
        "c": "a\0b",
    }


@on("mariadb")
def test_rows_of_any_form(migrated: Database, engine: Engine) -> None:
    """Values of any type are in the JSON of a rejected row. It stays small enough for a statement: the values
    of a very large row are cut."""
    row = {
        "id": "a",
        "size": 40_000,  # more than the column holds
        "name": "x" * 3_000_000,
        "far": datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - the column has no zone
        "number": Decimal("1.10"),
        "nan": math.nan,
        "bytes": b"\0\xff",
    }
    types = [pa.timestamp("us"), pa.decimal128(9, 2), pa.float64(), pa.binary()]
    fields = zip(("far", "number", "nan", "bytes"), types, strict=True)
    execute(
        engine,
        "ALTER TABLE small MODIFY name longtext, ADD far datetime(6), ADD number decimal(9, 2), "
        "ADD nan double, ADD bytes blob",
    )
    part = pa.RecordBatch.from_pylist([row], schema=pa.schema([*SCHEMA, *fields]))
    assert counts(write(migrated, [part], **USUAL)) == {"rejected": 1}
    found = json.loads(fetched(engine, select(REJECTED.c.content))[0][0])
    assert len(found.pop("name")) < 1_000_000
    assert found == {
        "id": "a",
        "size": 40_000,
        "far": "9999-12-31T23:59:59.999999",
        "number": "1.10",
        "nan": "nan",
        "bytes": "00ff",
    }


def test_a_purge_ends_rejected_rows(migrated: Database, engine: Engine) -> None:
    """Rejected rows are purged after the dead retention."""
    write(migrated, [rows(("a", -1, None), ("b", -1, None))], **USUAL)
    now = fetched(engine, select(REJECTED.c.rejected_at))[0][0]
    aged = update(REJECTED).where(REJECTED.c.key == "a").values(rejected_at=now - timedelta(days=31))
    execute(engine, aged)
    assert inbox.purge(engine).rows == 1
    assert [key for key, *_ in rejected(engine)] == ["b"]


@on("sqlite")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"bad_rows": "drop"}, "bad_rows='drop': expected one of fail, table"),
        ({"results": Statements("SELECT 1")}, "bad_rows='table': only for Append and Upsert"),
        ({"inbox": "table"}, "bad_rows='table', inbox='table': "),
    ],
)
def test_what_bad_rows_refuses(migrated: Database, options: dict[str, Any], named: str) -> None:
    """Where rows cannot be set aside, the option is refused."""
    with pytest.raises(InvalidOption, match=named):
        options_of(migrated, **USUAL | options)
