"""Inbox rows that Spark writes in bulk refer to their load, a ledger row that records when and by which job
they were written."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError

import inbox
from inbox import Inbox, Purged, Verdict, purge, show
from inbox.schema import tables
from inbox_outbox_base.databases.postgresql import taking as postgresql
from outbox import Outbox, audit
from tests.support.cli import in_this_process, succeeded
from tests.support.database import Database
from tests.support.purge_clock import Clock
from tests.support.spark.writes import CONSUMER, batch, counts, execute, make_result, taken, write, written
from tests.support.together import Task

MESSAGE, LEDGER = tables().message, tables().ledger
MONTH = timedelta(days=30)
MANY = 3_000


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """A database with the result table."""
    return make_result(postgres)


def load(database: Database, prefix: str, rows: int = 3, **options: Any) -> list[str]:
    """Run a job with one partition. Returns its keys."""
    keys = [f"{prefix}{number:05}" for number in range(rows)]
    write(database, [batch(*((key, 1) for key in keys))], run=prefix, **options)
    return keys


def age(engine: Engine, run: str, by: timedelta = MONTH) -> None:
    """Date the job's commit back by `by`."""
    with engine.begin() as connection:
        mine = update(LEDGER).where(LEDGER.c.run == run)
        connection.execute(mine.values(committed_at=datetime.now(UTC) - by))


def runs(engine: Engine) -> list[str]:
    """The jobs in the ledger."""
    with engine.connect() as connection:
        return list(connection.scalars(select(LEDGER.c.run).distinct().order_by(LEDGER.c.run)))


def orphans(engine: Engine) -> int:
    """Rows whose load is not in the ledger."""
    lost = select(func.count()).select_from(MESSAGE).where(MESSAGE.c.load.not_in(select(LEDGER.c.id)))
    with engine.connect() as connection:
        return connection.execute(lost).scalar_one()


@contextmanager
def statements(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    """Collects the statements that this engine sends."""
    sent: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        sent.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    yield sent
    event.remove(engine, "before_cursor_execute", note)


def test_what_a_load_shares_is_stored_once(postgres: Database, engine: Engine) -> None:
    """A row of a load has no time and no claim, and is not in the purge's index. `show`, `status` and `audit`
    get its time from the ledger."""
    [key, *_] = load(postgres, "a")
    age(engine, "a", timedelta(hours=3))
    with engine.begin() as connection:
        assert Inbox(CONSUMER).accept(connection, "single") is Verdict.NEW
        own = connection.execute(select(LEDGER.c.id, LEDGER.c.committed_at).where(LEDGER.c.part == 0)).one()
        found = select(MESSAGE.c.accepted_at, MESSAGE.c.claim, MESSAGE.c.load).where(MESSAGE.c.key == key)
        assert connection.execute(found).one() == (None, None, own.id)
        Outbox().publish(connection, "orders", "a", key=key)
    shown = show(engine, CONSUMER, key)
    assert shown is not None
    assert (shown.accepted_at, shown.claim, shown.load) == (own.committed_at, None, own.id)
    [status] = inbox.status(engine)
    assert (status.rows, status.rows_last_hour, status.rows_without_load) == (4, 1, 0)
    assert status.oldest == own.committed_at
    assert status.newest is not None
    assert status.newest > own.committed_at
    assert audit(engine, "orders", CONSUMER).taken_since == own.committed_at


def test_a_key_that_a_job_has_taken(postgres: Database, engine: Engine) -> None:
    """A key that a job has taken is a duplicate for an inbox, however old the message is: one by one, in
    batches and from memory. It is a duplicate for another job, too, with a ledger and without."""
    [key, *_] = load(postgres, "a")
    box = Inbox(CONSUMER, remember=10)
    for _ in range(3):
        with engine.begin() as connection:
            assert box.accept(connection, key) is Verdict.DUPLICATE
            assert box.accept(connection, key, message_time=datetime.now(UTC) - MONTH) is Verdict.DUPLICATE
            assert box.accept_many(connection, [key, "new"])[0] is Verdict.DUPLICATE
        with box.transaction(engine, key) as work:
            assert (work.verdict, work.result) == (Verdict.DUPLICATE, None)
    again = [batch((key, 2), ("b", 1))]
    assert counts(write(postgres, again, run="b")) == {"new": 1, "duplicate": 1}
    assert counts(write(postgres, again, run="c", ledger="off")) == {"duplicate": 2}
    assert written(engine).count((key, 1)) == 1


def test_a_job_knows_its_own_loads(postgres: Database) -> None:
    """Keys that the same job has taken in another partition count as repeated. Without a ledger, keys from an
    earlier attempt at the partition count as its own."""
    make_result(postgres)
    ab, bc = [batch(("a", 1), ("b", 1))], [batch(("b", 1), ("c", 1))]
    assert counts(write(postgres, ab, bc, run="r")) == {"new": 3, "repeated": 1}
    assert counts(write(postgres, ab, bc, run="r", ledger="off")) == {"new": 3, "repeated": 1}
    assert counts(write(postgres, bc, run="other", ledger="off")) == {"duplicate": 2}


def test_without_a_ledger_rows_are_single(postgres: Database, engine: Engine) -> None:
    """With `ledger="off"` there is no ledger row for a time, so each row stores its own."""
    load(postgres, "a", ledger="off")
    with engine.begin() as connection:
        assert connection.execute(select(func.count(MESSAGE.c.load), func.count(MESSAGE.c.claim))).one() == (
            0,
            3,
        )
        connection.execute(update(MESSAGE).values(accepted_at=datetime.now(UTC) - MONTH))
    assert purge(engine).rows == 3


def test_if_nothing_is_due_only_the_ledger_is_read(postgres: Database, engine: Engine) -> None:
    """A purge searches for rows of loads only if a load is old enough."""
    load(postgres, "a")
    with statements(engine) as sent:
        assert purge(engine).finished
    assert any("inbox_ledger.committed_at <" in statement for statement, _ in sent)
    assert not any("inbox_message.load" in statement for statement, _ in sent)


def test_old_loads_are_purged(postgres: Database, engine: Engine) -> None:
    """Rows of old loads are deleted in short transactions, then their ledger rows. Other loads, other
    consumers' rows and single messages stay. Progress reports count the rows."""
    load(postgres, "a", 250)
    load(postgres, "b", 50)
    young = load(postgres, "c", 50)
    load(postgres, "d", 20, consumer="other")
    with engine.begin() as connection:
        Inbox(CONSUMER).accept(connection, "single")
    for run in ("a", "b", "d"):
        age(engine, run)
    seen: list[Purged] = []
    done = purge(engine, batch=100, consumer=CONSUMER, progress=seen.append)
    assert ([each.rows for each in seen], done.finished) == ([100, 200, 300], True)
    assert taken(engine) == [*young, "single"]
    assert runs(engine) == ["c", "d"]
    assert purge(engine).rows == 20
    assert runs(engine) == ["c"]


def test_loads_that_are_far_apart(
    postgres: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old rows on both sides of young ones are found, block by block, in one purge."""
    monkeypatch.setattr(postgresql, "_BLOCKS", 3)
    load(postgres, "a", 700)
    young = load(postgres, "b", 700)
    load(postgres, "c", 700)
    for run in ("a", "c"):
        age(engine, run)
    assert purge(engine, batch=100, sleep=lambda _: None).rows == 1_400
    assert (taken(engine), runs(engine)) == (young, ["b"])


def test_a_budget_ends_it(postgres: Database, engine: Engine) -> None:
    """When the time budget is used up, the remaining rows and their ledger rows stay for the next purge."""
    load(postgres, "a", 300)
    age(engine, "a")
    assert not purge(engine, budget=0).finished
    assert (len(taken(engine)), runs(engine)) == (300, ["a"])
    assert purge(engine).rows == 300


def test_it_rests_twice_as_long_as_it_works(
    postgres: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each batch of a load the purge sleeps for twice as long as the batch took; after one that found
    nothing to delete, as long as it took."""
    monkeypatch.setattr(postgresql, "_BLOCKS", 1)
    for run, rows in (("a", 100), ("b", 1_000), ("c", 100)):
        load(postgres, run, rows)
    for run in ("a", "c"):
        age(engine, run)
    clock = Clock(engine, monkeypatch)
    told: list[Any] = []

    def sleep(seconds: float) -> None:
        told.append(seconds)
        clock.sleep(seconds)

    purge(engine, sleep=sleep, on_event=lambda _: told.append("deleted"))
    rests = [(before, each) for before, each in pairwise(told) if each != "deleted"]
    assert {*rests} == {("deleted", 6), (6, 3), (3, 3)}


class Killed(BaseException):
    """Ends a purge between two statements."""


@pytest.mark.quick("postgresql")
def test_a_purge_killed_at_any_point(migrated: Database) -> None:
    """Wherever a purge is killed, no row is left without its load, and a repeated job finds either the ledger
    row of a partition or none of its keys. The next purge deletes everything, and the next job writes each
    row once."""
    engine, kills, is_over = make_result(migrated), 0, False
    parts = [[batch(*((f"{name}{number}", 1) for number in range(30)))] for name in "ab"]
    while not is_over:
        write(migrated, *parts, run="r")
        before = Counter(key for key, _ in written(engine))
        date_back(engine)
        with killed_after(engine, kills):
            purge(engine, batch=20, sleep=lambda _: None)
            is_over = True
        assert orphans(engine) == 0
        assert counts(write(migrated, *parts, run="r")) == {"new": 60}
        rows = Counter(key for key, _ in written(engine))
        rows.subtract(before)
        assert [len({rows[f"{name}{number}"] for number in range(30)}) for name in "ab"] == [1, 1]
        assert orphans(engine) == 0
        date_back(engine)
        assert purge(engine, sleep=lambda _: None).finished
        assert (taken(engine), runs(engine)) == ([], [])
        kills += 1
    assert kills > 10


def date_back(engine: Engine) -> None:
    """Date everything back by a month."""
    long_ago = datetime.now(UTC) - MONTH
    with engine.begin() as connection:
        connection.execute(update(LEDGER).values(committed_at=long_ago))
        single = update(MESSAGE).where(MESSAGE.c.accepted_at.is_not(None))
        connection.execute(single.values(accepted_at=long_ago))


@contextmanager
def killed_after(engine: Engine, count: int) -> Iterator[None]:
    """The code inside is interrupted after `count` statements and COMMITs."""
    left = count

    def visit(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    event.listen(engine, "before_cursor_execute", visit)
    event.listen(engine, "commit", visit)
    try:
        with suppress(Killed):  # as a killed process would end
            yield
    finally:
        event.remove(engine, "before_cursor_execute", visit)
        event.remove(engine, "commit", visit)


def rewrite(engine: Engine) -> None:
    """Move every row to another place, as a dump and a restore do."""
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE dumped AS SELECT * FROM inbox_message",
            "TRUNCATE inbox_message",
            "INSERT INTO inbox_message SELECT * FROM dumped ORDER BY md5(key)",
            "DROP TABLE dumped",
        ):
            connection.exec_driver_sql(statement)


def alone(statement: str) -> Callable[[Engine], None]:
    """Run a statement outside any transaction."""

    def run(engine: Engine) -> None:
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(text(statement))

    return run


@pytest.mark.parametrize(
    "move",
    [alone("VACUUM FULL inbox_message"), alone("CLUSTER inbox_message USING inbox_message_pkey"), rewrite],
    ids=["vacuum full", "cluster", "restore"],
)
@pytest.mark.parametrize("when", ["before", "during"])
def test_rows_that_have_moved(
    postgres: Database, engine: Engine, move: Callable[[Engine], None], when: str
) -> None:
    """VACUUM FULL, CLUSTER and a restore move rows to other places. Before a purge that makes no difference.
    During a purge, some rows may be missed; their load then stays for the next purge."""
    load(postgres, "z", MANY // 2)
    load(postgres, "a", MANY)
    for run in ("z", "a"):
        age(engine, run)
    if when == "before":
        move(engine)
    moved: list[Purged] = []

    def progress(done: Purged) -> None:
        if when == "during" and not moved:
            moved.append(done)
            move(engine)

    rows = purge(engine, progress=progress, sleep=lambda _: None).rows
    assert orphans(engine) == 0
    assert bool(taken(engine)) <= bool(runs(engine))
    assert rows + purge(engine, sleep=lambda _: None).rows == MANY + MANY // 2
    assert (taken(engine), runs(engine)) == ([], [])


def test_two_purges_share_the_work(postgres: Database, engine: Engine) -> None:
    """Two purges at the same time delete each row once."""
    load(postgres, "a", MANY)
    age(engine, "a")
    tasks = [Task(lambda: purge(engine, batch=50, sleep=lambda _: None).rows) for _ in range(2)]
    assert sum(task.result() for task in tasks) == MANY
    purge(engine)
    assert (taken(engine), runs(engine)) == ([], [])


def test_a_locked_row_keeps_its_load(postgres: Database, engine: Engine) -> None:
    """A purge skips a row that another transaction has locked, and its load stays until the row is
    deleted."""
    keys = load(postgres, "a", 50)
    age(engine, "a")
    with engine.connect() as connection:
        connection.execute(select(MESSAGE).where(MESSAGE.c.key == keys[7]).with_for_update())
        assert purge(engine, batch=20).rows == 49
    assert (taken(engine), runs(engine)) == ([keys[7]], ["a"])
    assert purge(engine).rows == 1
    assert runs(engine) == []


def test_a_replay_while_its_load_is_purged(postgres: Database, engine: Engine) -> None:
    """A job that is repeated between two batches of the purge finds its ledger row, and writes nothing. The
    same rows in different partitions get a new load, which that purge leaves alone."""
    keys = load(postgres, "a", 300)
    age(engine, "a")
    reports: list[dict[str, int]] = []

    def progress(_: Purged) -> None:
        if not reports:
            reports.append(counts(write(postgres, [batch(*((key, 1) for key in keys))], run="a")))
            halves = [batch(*((key, 1) for key in half)) for half in (keys[:150], keys[150:])]
            write(postgres, *([half] for half in halves), run="a")

    assert purge(engine, batch=100, progress=progress).rows == 300
    assert reports == [{"new": 300}]
    # The 100 keys that were already purged are written again, as after any purge.
    assert (len(taken(engine)), len(written(engine))) == (100, 400)
    assert orphans(engine) == 0
    assert inbox.status(engine)[0].rows == 100
    age(engine, "a")
    assert purge(engine).rows == 100


def test_a_load_that_the_ledger_has_lost(postgres: Database, engine: Engine) -> None:
    """If a load's ledger row is lost, its keys stay taken, no purge deletes them, and `status` counts
    them."""
    [key, *_] = load(postgres, "a")
    load(postgres, "b")
    age(engine, "b")
    execute(engine, delete(LEDGER).where(LEDGER.c.run == "a"))
    assert purge(engine).rows == 3
    assert len(taken(engine)) == 3
    shown = show(engine, CONSUMER, key)
    assert shown is not None
    assert shown.accepted_at is None
    assert inbox.status(engine)[0].rows_without_load == 3
    url = postgres.url.render_as_string(hide_password=False)
    said = succeeded(in_this_process("inbox", "status", url=url))
    assert f"{CONSUMER}: 3 rows without a load in inbox_ledger; no purge deletes them" in said
    succeeded(in_this_process("inbox", "show", CONSUMER, key, url=url))
    with engine.begin() as connection:
        assert Inbox(CONSUMER).accept(connection, key) is Verdict.DUPLICATE
    assert counts(write(postgres, [batch((key, 1))], run="a")) == {"duplicate": 1}


def test_half_states_are_refused(migrated: Database) -> None:
    """The database rejects a row unless it has either a time and a claim of its own, or a load, but not
    both."""
    own: dict[str, object] = {"accepted_at": datetime.now(UTC), "claim": bytes(16), "load": None}
    lean: dict[str, object] = {"accepted_at": None, "claim": None, "load": 1}
    halves = [own | {"accepted_at": None}, own | {"claim": None}, own | {"load": 1}]
    halves += [lean | {name: own[name]} for name in ("accepted_at", "claim")]
    name: dict[str, object] = {"consumer": CONSUMER}
    with migrated.engine().begin() as connection:
        connection.execute(insert(MESSAGE), name | own | {"key": "own"})
        connection.execute(insert(MESSAGE), name | lean | {"key": "lean"})
    for half in halves:
        with migrated.engine().connect() as connection, pytest.raises(DBAPIError, match="inbox_message_load"):
            connection.execute(insert(MESSAGE), name | half | {"key": "half"})


def test_each_batch_reads_only_a_part_of_the_table(postgres: Database, engine: Engine) -> None:
    """Each batch of a purge reads a range of places (ctid) and deletes by place, without scanning the table
    from its beginning."""
    load(postgres, "a", MANY)
    age(engine, "a")
    alone("VACUUM ANALYZE inbox_message")(engine)
    with statements(engine) as sent:
        purge(engine, batch=500, sleep=lambda _: None)
    batches = [each for each in sent if "DELETE FROM inbox_message" in each[0] and "load" in each[0]]
    assert len(batches) >= MANY // 500
    with engine.begin() as connection:
        sql, parameters = batches[2]
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {sql}", parameters).scalars())
    assert "Tid Range Scan on inbox_message" in plan
    assert "Tid Scan on inbox_message" in plan
    assert "Seq Scan" not in plan
