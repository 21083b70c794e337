"""A partition for each day of a consumer whose keys name their time: PostgreSQL."""

import json
import logging
import re
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, delete, func, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError

import inbox
from inbox import (
    Inbox,
    Partition,
    SqlStore,
    StatusInbox,
    Verdict,
    is_transient,
    partitions,
    purge,
    timed_key,
)
from inbox._operating import overview_statements
from inbox._operating import partitions as partitions_module
from inbox.errors import InvalidOption, TransientError, UnsafeDatabase, UnsupportedDatabase
from inbox.migration import is_partition, migrate
from inbox.schema import metadata, tables
from inbox_outbox._operating.gauges import GAUGES
from inbox_outbox._operating.looking import Half, look
from inbox_outbox_base.checks.key_times import FORMS
from inbox_outbox_base.databases.postgresql import partitioning as postgresql
from inbox_outbox_base.databases.registry import partitioning
from tests.support.cli import error, in_this_process, inbox_outbox, succeeded
from tests.support.database import Database
from tests.support.inspection import snapshot
from tests.support.on_servers import on
from tests.support.processes import workers
from tests.support.purge_worker import partition_and_die
from tests.support.roles import Right, is_denied, rights, role

DAY = timedelta(days=1)
CONSUMER, HORIZON, MESSAGE = tables().consumer, tables().horizon, tables().message
NEW, DUPLICATE, TOO_OLD = Verdict.NEW, Verdict.DUPLICATE, Verdict.TOO_OLD
BILLING = Inbox("billing", key_time="timed")


def today() -> datetime:
    """When this day began, in UTC."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def ago(**passed: float) -> str:
    """A key of a time that has passed."""
    return timed_key(datetime.now(UTC) - timedelta(**passed), "order")


def accept(engine: Engine, *keys: str) -> list[Verdict]:
    """Take them, each in a transaction of its own."""
    verdicts = []
    for key in keys:
        with engine.begin() as connection:
            verdicts.append(BILLING.accept(connection, key))
    return verdicts


def keys(engine: Engine) -> list[str]:
    """The keys that are stored."""
    with engine.connect() as connection:
        return list(connection.scalars(select(MESSAGE.c.key).order_by(MESSAGE.c.key)))


def settle(engine: Engine) -> None:
    """A horizon has been stored for a while, and the policies, too."""
    with engine.begin() as connection:
        for table, column in ((HORIZON, "stored_at"), (CONSUMER, "declared_at")):
            connection.execute(update(table).values({column: datetime.now(UTC) - timedelta(minutes=5)}))


def begun(engine: Engine, ago: int = 11, until: int = 3) -> None:
    """The consumer has had partitions for so many days, and has some to come. Its rows go into them."""
    by, since = partitioning("postgresql"), FORMS["timed"].since
    assert by is not None
    days = [since(today() + (number - ago - 1) * DAY) for number in range(ago + until + 1)]
    ends = {f"{number:02d}": end for number, end in enumerate(days[1:])}
    inbox.set_policy(engine, "billing", mode="exactly-once", key_time="timed")
    with engine.begin() as connection:
        by.announce(connection, MESSAGE, "billing", lambda _: days[0])
        its = MESSAGE.c.consumer == "billing"
        moved = connection.execute(delete(MESSAGE).where(its).returning(*MESSAGE.c)).mappings().all()
        by.begin(connection, MESSAGE, "billing", days[0], ends)
        for row in moved:
            connection.execute(insert(MESSAGE), dict(row))
        new = {"consumer": "billing", "keys_from": "", "keys_gone": ""}
        connection.execute(insert(HORIZON), new | {"keys_until": days[-1]})
    settle(engine)


def forgotten() -> list[datetime]:
    """The ends of the partitions that `begun` makes whose keys are older than their retention."""
    limit = datetime.now(UTC) - timedelta(days=7, minutes=1)
    return [end for number in range(11, 0, -1) if (end := today() - number * DAY) <= limit]


def states(found: list[Partition]) -> Counter[str]:
    """How many there are in each state."""
    return Counter(each.state for each in found)


@on("postgresql")
def test_first_partitions(migrated: Database) -> None:
    """A consumer gets them from the day on of which nobody can have sent a key: what it has taken stays where
    it is, and a duplicate. The table is the same to everybody. The next call finds nothing to do."""
    engine, other = migrated.engine(), Inbox("other")
    old, young = ago(days=9), ago(minutes=1)
    assert accept(engine, old, young) == [NEW, NEW]
    with engine.begin() as connection:
        assert other.accept(connection, "order-1") is NEW
    before = snapshot(engine)
    planned = partitions(engine, "billing", dry_run=True)
    assert partitions(engine, dry_run=True) == partitions(engine) == []
    made = partitions(engine, "billing")
    assert states(made) == states(planned) == Counter(made=len(made))
    assert [(each.begin, each.end) for each in made] == [(each.begin, each.end) for each in planned]
    ends = [each.end for each in made]
    assert ends == [today() + (number + 3) * DAY for number in range(len(ends))]
    assert ends[-1] - DAY < datetime.now(UTC) + 7 * DAY <= ends[-1]
    assert accept(engine, old, young) == [DUPLICATE, DUPLICATE]
    with engine.begin() as connection:
        assert other.accept(connection, "order-1") is DUPLICATE
        until = connection.scalar(select(HORIZON.c.keys_until))
        assert until == FORMS["timed"].since(ends[-1])
        assert connection.exec_driver_sql("SELECT count(*) FROM inbox_message_default").scalar() == 3
    after = snapshot(engine)
    assert {name: after[name] for name in before} == before
    with engine.connect() as connection:
        leave = {"include_name": lambda name, kind, _: kind != "table" or not is_partition(name)}
        assert compare_metadata(MigrationContext.configure(connection, opts=leave), metadata) == []
    assert inbox.check(engine).is_safe
    assert states(partitions(engine)) == Counter(attached=len(made))
    assert states(longer := partitions(engine, ahead=9 * DAY)) == Counter(attached=len(made), made=2)
    with engine.connect() as connection:
        assert connection.scalar(select(HORIZON.c.keys_until)) == FORMS["timed"].since(longer[-1].end)
    another = Inbox("it's: {100%}", key_time="uuid7")
    with engine.begin() as connection:
        key = f"{FORMS['uuid7'].since(datetime.now(UTC) - DAY)}-7000-8000-000000000000"
        assert another.accept(connection, key) is NEW
    assert states(partitions(engine, another.consumer)) == Counter(made=len(made))
    with engine.begin() as connection:
        assert another.accept(connection, key) is DUPLICATE
    assert len(partitions(engine)) == 2 * len(made) + 2
    with pytest.raises(InvalidOption, match="4 rows of inbox_message"):
        migrate(engine, "base", keep_rows=True)
    migrate(engine, "base")
    assert inspect(engine).get_table_names() == []


@on("postgresql")
def test_keys_from_before(migrated: Database) -> None:
    """Keys from before a consumer's first partition are deleted by purges, which leave the days to the runs;
    whoever looks is told if nobody does."""
    engine = migrated.engine()
    begun(engine, ago=8)
    old, dropped, young = ago(days=15), ago(days=8.5), ago(days=1)
    assert accept(engine, old, dropped, young) == [NEW, NEW, NEW]
    (found,) = inbox.overview(engine).consumers
    assert found.overdue == pytest.approx((6 * DAY).total_seconds(), abs=180)
    purge(engine)
    settle(engine)
    assert purge(engine, dry_run=True).rows == 1
    assert purge(engine).rows == 1
    assert keys(engine) == [dropped, young]
    (found,) = inbox.overview(engine).consumers
    assert found.overdue == 0
    partitions(engine)
    assert accept(engine, old, dropped, young) == [TOO_OLD, TOO_OLD, DUPLICATE]
    assert keys(engine) == [young]


@on("postgresql")
def test_a_beginning_that_has_failed(
    migrated: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer that was promised partitions and has none yet takes its messages; it says for how long, and
    the next run goes on, whose ATTACH need not read the table. What was let in once is not shut out."""
    engine = migrated.engine()
    accept(engine, ago(days=1))
    with monkeypatch.context() as patch:
        patch.setattr(postgresql.PostgreSQLPartitioning, "prove", None)
        with pytest.raises(TypeError):
            partitions(engine, "billing")
    assert accept(engine, ago(days=1.5), ago(days=-0.9)) == [NEW, NEW]
    (found,) = inbox.overview(engine).consumers
    ahead = today() + 2 * DAY - datetime.now(UTC)
    assert found.partitions_ahead == pytest.approx(ahead.total_seconds(), abs=60)
    (said,) = [each.why for each in inbox.check(engine).findings if each.what == "consumer billing"]
    assert said.startswith("its partitions end at ")
    told = migrated.engine(connect_args={"options": "-c client_min_messages=debug1"})
    with caplog.at_level(logging.INFO, "sqlalchemy.dialects.postgresql"):
        with engine.begin() as connection:
            connection.execute(update(HORIZON).values(keys_until=FORMS["timed"].since(today() + 4 * DAY)))
        assert states(partitions(told)) == Counter(made=4)
    default = 'partition constraint for default partition "inbox_message_default"'
    assert f"updated {default} is implied by existing constraints" in caplog.text
    assert len(keys(engine)) == 3


@on("postgresql")
def test_days_are_dropped(migrated: Database) -> None:
    """The first call closes, the next drops: what is older than the retention is too old, and never new
    again. Purges leave the consumer alone, but close, too. `--dry-run` says what a call would do."""
    engine = migrated.engine()
    begun(engine)
    old, late, young = ago(days=9), ago(days=9.5), ago(days=1)
    assert accept(engine, old, young) == [NEW, NEW]
    there = partitions(engine)
    assert states(there)["dropped"] == 0
    assert accept(engine, old, late) == [DUPLICATE, TOO_OLD]
    settle(engine)
    assert purge(engine).rows == 0
    planned = partitions(engine, dry_run=True)
    found = partitions(engine)
    assert states(planned) == states(found)
    dropped = [each for each in found if each.state == "dropped"]
    assert [each.end for each in dropped] == forgotten()
    assert keys(engine) == [young]
    assert accept(engine, old, late, young) == [TOO_OLD, TOO_OLD, DUPLICATE]
    names = set(inspect(engine).get_table_names())
    assert {each.name for each in found} - names == {each.name for each in dropped}
    assert states(partitions(engine)) == Counter(attached=len(found) - len(dropped))
    inbox.set_policy(engine, "billing", retention=30 * DAY)
    for _ in range(2):
        settle(engine)
        assert states(partitions(engine))["dropped"] == 0


@on("postgresql")
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_an_open_handler(migrated: Database, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Nobody waits while a day is dropped beside an open transaction: keys of the day are too old, others are
    taken. A snapshot that a transaction holds for too long leaves the rest to the next call."""
    engine = migrated.engine()
    begun(engine)
    old = ago(days=9)
    assert accept(engine, old) == [NEW]
    there, dropped = len(partitions(engine)), len(forgotten())
    settle(engine)
    monkeypatch.setattr(partitions_module, "_PATIENCE", 0.2)
    is_held = level == "REPEATABLE READ"
    with engine.execution_options(isolation_level=level).connect() as handler, handler.begin():
        assert BILLING.accept(handler, ago(days=1.5)) is NEW
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(partitions, engine)
            slowest = 0.0
            while not running.done():
                began = time.monotonic()
                fresh, late = accept(engine, ago(seconds=1), old)
                assert (fresh in (NEW, DUPLICATE), late in (DUPLICATE, TOO_OLD)) == (True, True)
                slowest = max(slowest, time.monotonic() - began)
        found = states(running.result())
        assert (found["pending"], found["dropped"]) == ((1, 0) if is_held else (0, dropped))
        if is_held:
            done = in_this_process("partitions", "--json", url=str(migrated.url))
            assert done.returncode == 4
            assert "an older transaction is still open (session " in done.stderr
        else:
            assert BILLING.accept(handler, ago(days=1.4)) is NEW
    assert slowest < 2
    left = states(partitions(engine))
    assert (left["attached"], left["dropped"]) == (there - dropped, dropped if is_held else 0)
    assert accept(engine, old) == [TOO_OLD]


@on("postgresql")
def test_deliveries_beside_partitions(migrated: Database) -> None:
    """While a consumer gets its first partitions, and while days are closed and dropped, every key is
    delivered again and again at two isolation levels: none is new twice, and nothing but what may be tried
    again goes wrong."""
    engine = migrated.engine()
    old, young = ([timed_key(today() - passed, each) for each in range(8)] for passed in (9 * DAY, DAY))
    new: Counter[str] = Counter()
    stop, lock = threading.Event(), threading.Lock()
    accept(engine, ago(days=2))
    settle(engine)

    def deliver(level: str, many: bool) -> None:
        at_level = engine.execution_options(isolation_level=level)
        while not stop.is_set():
            for key in (*old, *young):
                try:
                    with at_level.begin() as connection:
                        one, all_of = BILLING.accept, BILLING.accept_many
                        verdict = all_of(connection, [key])[0] if many else one(connection, key)
                except (DBAPIError, TransientError) as error:
                    if not is_transient(error):
                        raise
                else:
                    with lock:
                        new[key] += verdict is NEW

    ways = [("READ COMMITTED", False), ("READ COMMITTED", True), ("REPEATABLE READ", False)]
    with ThreadPoolExecutor(len(ways)) as pool:
        running = [pool.submit(deliver, *way) for way in ways]
        try:
            time.sleep(0.1)
            begun(engine)
            for _ in range(3):
                time.sleep(0.1)
                assert states(partitions(engine))["pending"] == 0
                settle(engine)
        finally:
            stop.set()
        for each in running:
            each.result()
    assert {key: new[key] for key in (*old, *young) if new[key] != 1} == {}
    assert set(accept(engine, *old)) == {TOO_OLD}
    assert set(accept(engine, *young)) == {DUPLICATE}


@on("postgresql")
def test_an_open_handler_at_the_beginning(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first partitions need the table for a moment: a transaction that has used it and stays open keeps
    others waiting for a short time only, and then nothing has changed."""
    engine = migrated.engine()
    monkeypatch.setattr(postgresql, "_WAIT", "100ms")
    accept(engine, ago(days=1))
    with engine.connect() as handler, handler.begin():
        assert BILLING.accept(handler, ago(days=2)) is NEW
        with pytest.raises(TransientError, match="table inbox_message: it was in use for too long"):
            partitions(engine, "billing")
        assert "inbox_message_default" not in inspect(engine).get_table_names()
    assert states(partitions(engine, "billing")) == Counter(made=6)
    assert len(keys(engine)) == 2


@on("postgresql")
def test_two_calls_at_once(migrated: Database) -> None:
    """One after the other: both succeed, and the second one finds the work of the first."""
    engine = migrated.engine()
    accept(engine, ago(days=1))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(partitions, migrated.engine(), "billing") for _ in range(2)]
        found = [each.result() for each in both]
    assert sorted(next(iter(states(each))) for each in found) == ["attached", "made"]


@on("postgresql")
@pytest.mark.parametrize("has_begun", [False, True])
def test_killed_calls(migrated: Database, has_begun: bool) -> None:
    """Killed with kill -9 at its statements, also while a consumer gets its first partitions: no key is taken
    twice, none is refused too early, and the next call finishes."""
    engine = migrated.engine()
    if has_begun:
        begun(engine)
    old, young = ago(days=9), ago(days=1)
    assert accept(engine, old, young) == [NEW, NEW]
    if has_begun:
        partitions(engine)
        settle(engine)
    there = 20 - len(forgotten()) if has_begun else 6
    point, reached = 0, None
    while reached is None:
        point += 4 if has_begun else 9
        with workers((partition_and_die, migrated.url, point)) as (killed,):
            code = killed.exit_code()
            reached = killed.hear() if code == 0 else None
        assert code in (0, -signal.SIGKILL)
        again = accept(engine, old, young, ago(seconds=1))
        assert again[0] in (DUPLICATE, TOO_OLD)[: 2 if has_begun else 1]
        assert again[1:] == [DUPLICATE, NEW]
    assert reached > 20
    assert states(partitions(engine)) == Counter(attached=there)
    assert accept(engine, old, young) == [TOO_OLD if has_begun else DUPLICATE, DUPLICATE]


@on("postgresql")
def test_refused_by_name(migrated: Database) -> None:
    """What cannot be done, or would forget a key or a right, is refused before anything is changed."""
    engine = migrated.engine()
    accept(engine, ago(days=1))
    with engine.begin() as connection:
        Inbox("other").accept(connection, "order-1")
    with StatusInbox("shipping", store=SqlStore(engine), key_time="timed").claim(ago(days=1)):
        pass
    wrong: dict[str, Any] = {
        r"ahead='7d': expected seconds": {"ahead": "7d"},
        r"ahead=datetime.timedelta\(days=1\): expected 2d to 366d": {"ahead": DAY},
        r"consumer='other': its keys do not name their time": {"consumer": "other"},
        r"consumer='shipping': its messages are those of status-table mode": {"consumer": "shipping"},
        r"consumer='nobody': its keys do not name their time": {"consumer": "nobody"},
    }
    for said, given in wrong.items():
        with pytest.raises(InvalidOption, match=said):
            partitions(engine, **given)
    with role(migrated) as app:
        for each in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            for table in metadata.tables:
                app.grant(Right(each, table))
        theirs = app.database
        with pytest.raises(InvalidOption, match=r"only the owner of inbox_message, \w+, .* and this is app_"):
            partitions(theirs.engine(), "billing")
        theirs.dispose()
    things = {
        "VIEW recent AS SELECT key FROM inbox_message": "would lose view recent",
        "PUBLICATION away FOR TABLE inbox_message": "its rows are in publication away, whose subscribers",
        "PUBLICATION whole FOR ALL TABLES": "its rows are in publication whole, whose subscribers",
        "TRIGGER twice AFTER INSERT ON inbox_message EXECUTE FUNCTION suppress_redundant_updates_trigger()": (
            "would lose trigger twice"
        ),
    }
    for thing, said in things.items():
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE {thing}")
        with pytest.raises(UnsafeDatabase, match=said):
            partitions(engine, "billing")
        kind, name, *_ = thing.split()
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"DROP {kind} {name}{' ON inbox_message' if kind == 'TRIGGER' else ''}"
            )
    assert "inbox_message_default" not in inspect(engine).get_table_names()
    for by in ("HASH (key)", "RANGE (consumer, key)"):
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE TABLE another (LIKE inbox_message INCLUDING ALL) PARTITION BY {by}"
            )
            connection.exec_driver_sql(
                "DROP TABLE inbox_message; ALTER TABLE another RENAME TO inbox_message"
            )
        with pytest.raises(
            UnsafeDatabase, match="its partitions are not ranges of consumers and keys beside"
        ):
            partitions(engine, "billing")


@on("postgresql")
def test_detached_by_hand(migrated: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A day that somebody has taken out before its keys were forgotten is neither dropped nor made again; one
    that somebody has dropped is made again, and the log says so. So does the error of a consumer whose whole
    table was taken out."""
    engine = migrated.engine()
    begun(engine)
    old, young = ago(days=8.9), ago(minutes=1)
    assert accept(engine, old, young) == [NEW, NEW]
    (day,) = [each for each in partitions(engine) if each.begin == today() - DAY]
    parent = day.name.rpartition("_")[0]
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {parent} DETACH PARTITION {day.name}")
    for dry_run in (True, False):
        with pytest.raises(UnsafeDatabase, match=f"table {day.name}: somebody has detached it"):
            partitions(engine, dry_run=dry_run)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {day.name}")
    assert [each.begin for each in partitions(engine) if each.state == "made"] == [today() - DAY]
    assert "consumer 'billing': somebody has dropped its partition of" in caplog.text
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE inbox_message DETACH PARTITION {parent}")
    with pytest.raises(UnsafeDatabase, match="'billing': somebody has detached the table of its partitions"):
        partitions(engine)
    with engine.begin() as connection:  # the rest of the way back, as the documentation has it
        connection.exec_driver_sql(f"INSERT INTO inbox_message SELECT * FROM {parent}")
        connection.execute(update(HORIZON).values(keys_until=None))
        connection.exec_driver_sql(f"DROP TABLE {parent}")
    assert partitions(engine) == []
    assert accept(engine, young, ago(days=9.5)) == [DUPLICATE, TOO_OLD]
    settle(engine)
    assert purge(engine).rows == 1
    assert keys(engine) == [young]


@on("postgresql")
def test_one_consumer_stops_no_other(migrated: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A table that has the name of one consumer's next day is an error, also if others have one; the others
    get theirs. A comment that somebody has changed is an error that names the table."""
    engine = migrated.engine()
    consumers = ("a", "b", "c")
    for name in consumers:
        inbox.set_policy(engine, name, mode="exactly-once", key_time="timed")
        made = partitions(engine, name)
    next_day = f"{datetime.strptime(made[-1].name[-8:], '%Y%m%d').replace(tzinfo=UTC) + DAY:%Y%m%d}"
    tables_of = [each.name.rpartition("_")[0] for each in partitions(engine)[1 :: len(made)]]
    with engine.begin() as connection:
        for its in tables_of[:2]:
            connection.exec_driver_sql(f"CREATE TABLE {its}_{next_day} (n integer)")
    with pytest.raises(DBAPIError, match=f"{tables_of[0]}_{next_day}"):
        partitions(engine, ahead=8 * DAY)
    assert re.search(f"consumer 'b': .*{tables_of[1]}_{next_day}", caplog.text)
    with engine.connect() as connection:
        until = connection.execute(select(HORIZON.c.keys_until).order_by(HORIZON.c.consumer)).scalars().all()
    assert until[0] == until[1] < until[2]
    with engine.begin() as connection:
        connection.exec_driver_sql(f"COMMENT ON TABLE {made[0].name} IS 'inbox-outbox: of team c'")
    with pytest.raises(UnsafeDatabase, match=f"table {made[0].name}: somebody has changed its comment"):
        partitions(engine)


@on("postgresql")
def test_time_limits_of_the_role(migrated: Database) -> None:
    """The transaction that lets one call at a time work lasts as long as the call, and is idle meanwhile."""
    by = partitioning("postgresql")
    assert by is not None
    with migrated.engine().connect() as connection:
        limits = "idle_in_transaction_session_timeout", "transaction_timeout"
        there = [each for each in limits if shown(connection, each) is not None]
        for each in there:
            connection.exec_driver_sql(f"SET {each} = '9s'")
        by.keep_turn(connection)
        assert {shown(connection, each) for each in there} == {"0"}


def shown(connection: Connection, setting: str) -> str | None:
    """Its value; None if the server has no such setting."""
    value: str | None = connection.scalar(select(func.current_setting(setting, True)))
    return value


@pytest.mark.mysql
@on("mariadb", "mysql", "sqlite")
def test_other_databases(migrated: Database) -> None:
    """They are refused by name."""
    with pytest.raises(
        UnsupportedDatabase, match=f"dialect='{migrated.engine().dialect.name}': only PostgreSQL"
    ):
        partitions(migrated.engine())


@on("postgresql")
def test_rights_come_along(migrated: Database) -> None:
    """Rights to the table, and to its columns, are those of the table with partitions; others have none."""
    engine = migrated.engine()
    accept(engine, ago(days=1))
    with role(migrated) as app, role(migrated) as other:
        for right in rights("postgresql", "take by time"):
            app.grant(right)
        app.grant(Right("UPDATE (result)", "inbox_message"))
        partitions(engine, "billing")
        first, second = app.database, other.database
        assert accept(first.engine(), ago(days=1), ago(hours=1)) == [NEW, NEW]
        for there, statement in ((first, "TRUNCATE inbox_message"), (second, "SELECT FROM inbox_message")):
            with there.engine().begin() as connection, pytest.raises(DBAPIError) as refused:
                connection.exec_driver_sql(statement)
            assert is_denied(refused.value)
            there.dispose()


@on("postgresql")
def test_the_command(migrated: Database) -> None:
    """`inbox-outbox partitions` begins with a consumer that is named, goes on with all that have begun, and
    lists or plans without changing anything."""
    engine = migrated.engine()

    def run(*arguments: str) -> str:
        return succeeded(inbox_outbox("partitions", *arguments, url=migrated.url))

    assert "no partitions; `inbox-outbox partitions CONSUMER` begins with a consumer" in run()
    accept(engine, ago(days=1))
    assert "to make" in run("billing", "--dry-run")
    assert "no partitions; `inbox-outbox partitions CONSUMER`" in run("billing", "--list")
    done = inbox_outbox("partitions", "billing", "--ahead", "2d", "--json", url=migrated.url)
    assert "all rows of inbox_message that are in no partition are read" in done.stderr
    made = json.loads(done.stdout)
    assert {each["state"] for each in made} == {"made"}
    listed = run("--list")
    assert [each["name"] in listed for each in made] == len(made) * [True]
    assert "nothing to make or to drop" in run("--dry-run", "--ahead", "2d")
    assert "to make" in run("--dry-run")
    done = inbox_outbox("partitions", "--ahead", "1d", url=migrated.url)
    assert error(done).startswith("--ahead='1d': expected 2d to 366d, because a producer's clock")


@on("postgresql")
def test_nobody_makes_partitions(migrated: Database, caplog: pytest.LogCaptureFixture) -> None:
    """From two days before they end, and once the oldest is a day too old, whoever looks is told: `health`,
    `doctor`, `check`, the overview with its gauge, and each purge."""
    engine = migrated.engine()
    begun(engine, until=2)
    accept(engine, ago(minutes=1))
    (found,) = inbox.overview(engine).consumers
    ends = today() + DAY - datetime.now(UTC)
    (gauge,) = [each for each in GAUGES if each.name == "inbox.partitions.ahead"]
    ((number, labels),) = gauge.numbers(look(engine, None, Half.INBOX))
    assert number == pytest.approx(found.partitions_ahead, abs=60)
    assert labels == {"consumer": "billing"}
    assert found.partitions_ahead == pytest.approx(ends.total_seconds(), abs=60)
    overdue = datetime.now(UTC) - (today() - 11 * DAY) - 9 * DAY
    assert found.overdue == pytest.approx(overdue.total_seconds(), abs=180)
    done = inbox_outbox("health", "--only", "inbox", url=migrated.url)
    assert done.returncode == 12
    assert "the partitions of consumer 'billing' end in " in done.stdout
    assert re.search(r"keys of consumer 'billing' are \d d past their retention: run", done.stdout)
    assert "run inbox-outbox partitions every day" in inbox_outbox("doctor", url=migrated.url).stdout
    said = [each.why for each in inbox.check(engine).findings if each.what == "consumer billing"]
    assert [each[:22] for each in said] == ["its partitions end at "]
    purge(engine)
    assert "consumer 'billing': it has partitions for " in caplog.text
    for _ in range(2):
        settle(engine)
        partitions(engine)
    (found,) = inbox.overview(engine).consumers
    assert (found.overdue, (found.partitions_ahead or 0) > 7 * 86_400) == (0, True)
    assert inbox_outbox("health", "--only", "inbox", url=migrated.url).returncode == 0


@on("postgresql")
def test_plans_of_the_overview(migrated: Database) -> None:
    """The overview plans the partitions of one consumer for that consumer only. A plan for any consumer would
    have all partitions once for each consumer, so the server would need gigabytes for it."""
    engine = migrated.engine()
    begun(engine)
    with engine.begin() as connection:
        Inbox("other").accept(connection, "order-1")
    for _ in range(13):  # psycopg prepares the sixth, and the server plans the eleventh for any consumer
        inbox.overview(engine)
    prepared = (
        "SELECT sum(custom_plans) > 9, sum(generic_plans) FROM pg_prepared_statements WHERE statement ~ "
    )
    with engine.connect() as connection:
        assert connection.exec_driver_sql(f"{prepared} 'FROM inbox_message'").one() == (True, 0)
        statement = overview_statements.refused(tables(), 2, takers=(MESSAGE,))
        given = {"consumer_0": "billing", "consumer_1": "other", "most": 10, "since": today()}
        compiled = statement.params(given).compile(engine, compile_kwargs={"literal_binds": True})
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {compiled}").scalars())
        for name, scans in (("inbox_message_billing_", 3 * 14), ("inbox_message_default", 3 * 2)):
            assert len(re.findall(f"Scan using .* on {name}", plan)) <= scans, name
