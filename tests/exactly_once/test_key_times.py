"""Keys that name their time: what an inbox says about them, on every database."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, event, insert, select, update
from sqlalchemy.exc import DBAPIError, PendingRollbackError

import inbox
from inbox import AsyncInbox, Inbox, Verdict, is_transient, purge, set_policy, timed_key
from inbox.errors import (
    InvalidKey,
    InvalidOption,
    PolicyConflict,
    TablesMissing,
    TransientError,
)
from inbox.schema import tables
from inbox_outbox.testing import age
from inbox_outbox_base.checks.key_times import FORMS, KeyTime
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, each_on, on
from tests.support.timed_keys import ago, forget, key_of

pytestmark = pytest.mark.mysql

DAY = timedelta(days=1)
HORIZON, MESSAGE = tables().horizon, tables().message
NEW, DUPLICATE, TOO_OLD = Verdict.NEW, Verdict.DUPLICATE, Verdict.TOO_OLD


def accept(engine: Engine, inbox: Inbox, key: str, payload: Any = None) -> Verdict:
    """Take it in a transaction of its own."""
    with engine.begin() as connection:
        return inbox.accept(connection, key, payload)


def keys(engine: Engine) -> list[str]:
    """The keys that are stored."""
    with engine.connect() as connection:
        return list(connection.scalars(select(MESSAGE.c.key).order_by(MESSAGE.c.key)))


FORM: dict[str, KeyTime] = {"uuid7": "uuid7", "ulid": "ulid", "timed": "timed"}


@each_on("postgresql", "form", FORM)
def test_verdicts(migrated: Database, form: KeyTime) -> None:
    """A message is new once. Once its key is forgotten, it is too old, in every way to take it, and the
    caller's transaction goes on; a key that is still stored keeps its verdict, however old it is."""
    engine, billing = migrated.engine(), Inbox("billing", key_time=form)
    old, late, young = ago(form=form, days=8), ago(form=form, days=8, name="late"), ago(form=form, minutes=1)
    for key in (old, young):
        assert accept(engine, billing, key, 1) is NEW
        assert accept(engine, billing, key, 1) is DUPLICATE
        assert accept(engine, billing, key, 2) is Verdict.MISMATCH
    with engine.begin() as connection:
        age(connection, by=300)
    purge(engine)  # the first one stores the horizon, and deletes nothing
    assert keys(engine) == sorted([old, young])
    assert accept(engine, billing, old, 1) is DUPLICATE
    forget(engine)
    assert keys(engine) == [young]
    with engine.begin() as connection:
        assert billing.accept(connection, old) is TOO_OLD
        assert billing.accept(connection, late) is TOO_OLD
        assert billing.accept(connection, young, 1) is DUPLICATE
        assert billing.take(connection, old).verdict is TOO_OLD
        fresh = ago(form=form, seconds=1, name="b")
        batch = [old, young, late, fresh, fresh]
        assert billing.accept_many(connection, batch) == [TOO_OLD, DUPLICATE, TOO_OLD, NEW, DUPLICATE]
        assert billing.accept_many(connection, [late], [1]) == [TOO_OLD]
    assert keys(engine) == sorted([young, fresh])
    with pytest.raises(inbox.errors.MessageTooOld), billing.transaction(engine, late):
        pass


WRONG: dict[str, tuple[KeyTime, list[Any]]] = {
    "uuid7": (
        "uuid7",
        [
            "0190AAAA-BBBB-7000-8000-000000000000",
            "0190aaaabbbb70008000000000000000",
            "0190aaaa-bbbb-4000-8000-000000000000",
            "0190aaaa-bbbb-7000-0000-000000000000",
            UUID("c9bf9e57-1685-4c89-bafb-ff5af830be8a"),
            7,
        ],
    ),
    "ulid": (
        "ulid",
        ["01arz3ndektsv4rrffq69g5fav", "01ARZ3NDEKTSV4RRFFQ69G5FAU", "81ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3"],
    ),
    "timed": (
        "timed",
        [
            "2026-11-28T09:04:31.5Z[1]",
            '2026-11-28T09:04:31.500000+00:00["a"]',
            "2026-11-28 09:04:31.500000Z[1]",
            "2026-13-28T09:04:31.500000Z[1]",
            "2026-11-28T09:04:31.500000Za",
            ("2026-11-28T09:04:31.500000Z", "a"),
        ],
    ),
}


@pytest.mark.parametrize(("form", "wrong"), WRONG.values(), ids=WRONG)
def test_keys_of_another_form(sqlite: Database, form: KeyTime, wrong: list[Any]) -> None:
    """They are refused by name, and the transaction goes on."""
    engine, billing = sqlite.engine(), Inbox("billing", key_time=form)
    right = ago(form=form, minutes=1)
    with engine.begin() as connection:
        for key in wrong:
            with pytest.raises(InvalidKey, match=f"key_time='{form}', expected "):
                billing.accept(connection, key)
            with pytest.raises(InvalidKey, match=f"key_time='{form}', expected "):
                billing.accept_many(connection, [right, key])
        assert billing.accept(connection, right) is NEW
    assert keys(engine) == [right]


def test_timed_keys() -> None:
    """The time is in UTC, to the microsecond, and so wide in every year that keys sort by it."""
    when = datetime(2026, 11, 28, 10, 4, 31, 500000, timezone(timedelta(hours=1)))
    assert timed_key(when, "order", 42) == '2026-11-28T09:04:31.500000Z["order",42]'
    early = timed_key(datetime(1, 1, 1, tzinfo=UTC), "a")
    assert early == '0001-01-01T00:00:00.000000Z["a"]'
    assert FORMS["timed"].check(early) == early
    for form in FORMS.values():
        times = [datetime(1969, 7, 20, tzinfo=UTC), when, when + timedelta(milliseconds=1), when + DAY]
        first, *others = (key_of(form.name, each) for each in times)
        assert [first, *others] == sorted([first, *others])
        for each, key in zip(times, [first, *others], strict=True):
            assert form.check(key) >= form.since(each)
        assert first < form.since(when) <= others[0] < form.since(times[2])
    with pytest.raises(InvalidOption, match=r"when=datetime.* time zone"):
        timed_key(datetime(2026, 1, 1), "a")  # noqa: DTZ001 - this is what is refused
    with pytest.raises(InvalidKey, match="at least one part"):
        timed_key(when)
    with pytest.raises(InvalidKey, match="512 bytes"):
        timed_key(when, 512 * "a")


@on("psycopg2", "mysql", "sqlite")
def test_a_producer_whose_clock_is_wrong(migrated: Database) -> None:
    """A producer may be a day ahead; further ahead is refused before anything is written. One that is behind
    only has its keys forgotten so much earlier, and they are never taken twice."""
    engine, billing = migrated.engine(), Inbox("billing", key_time="ulid", retention=DAY)
    ahead, too_far = ago(form="ulid", hours=-23.9), ago(form="ulid", hours=-24.1)
    behind = ago(form="ulid", hours=25)
    with engine.begin() as connection:
        with pytest.raises(InvalidKey, match="more than a day ahead of the database's clock"):
            billing.accept(connection, too_far)
        with pytest.raises(InvalidKey, match="more than a day ahead"):
            billing.accept_many(connection, [ahead, too_far, behind])
        assert billing.accept_many(connection, [ahead, behind]) == [NEW, NEW]
    forget(engine)
    assert keys(engine) == [ahead]
    assert accept(engine, billing, ahead) is DUPLICATE
    assert accept(engine, billing, behind) is TOO_OLD
    (found,) = inbox.overview(engine).consumers
    assert (found.overdue, found.policy and found.policy.key_time) == (0, "ulid")


def test_times_beside_such_keys(sqlite: Database) -> None:
    """The key names the time: another one is refused by name, and so is an unknown form."""
    engine, billing = sqlite.engine(), Inbox("billing", key_time="uuid7")
    with (
        engine.begin() as connection,
        pytest.raises(InvalidOption, match="message_time: with key_time='uuid7'"),
    ):
        billing.accept(connection, ago(days=1), message_time=datetime.now(UTC))
    with (
        engine.begin() as connection,
        pytest.raises(InvalidOption, match="message_time: with key_time='uuid7'"),
    ):
        billing.accept_many(connection, [ago(days=1)], message_times=[datetime.now(UTC)])
    with pytest.raises(InvalidOption, match="key_time='uuid4': expected one of uuid7, ulid, timed"):
        Inbox("billing", key_time="uuid4")  # type: ignore[arg-type]


def _snapshot(connection: Connection) -> None:
    connection.execute(select(MESSAGE.c.key).limit(1)).all()


@on(*WITH_WRITERS)
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_an_old_snapshot(migrated: Database, many: bool) -> None:
    """A REPEATABLE READ that began before a key was taken, forgotten and deleted does not take it: its key is
    too old, or the error says to try again."""
    engine, billing = migrated.engine(isolation_level="REPEATABLE READ"), Inbox("billing", key_time="uuid7")
    key, other = ago(days=8), ago(days=8, name="b")
    assert accept(engine, billing, other) is NEW
    with engine.begin() as connection:
        assert connection.execute(select(HORIZON)).all() == []  # only purges make the row
        _snapshot(connection)
        assert accept(engine, billing, key) is NEW
        forget(migrated.engine())
        assert keys(engine) == []

        def again() -> Verdict:
            return billing.accept_many(connection, [key])[0] if many else billing.accept(connection, key)

        if migrated.name == "postgresql":
            with pytest.raises(DBAPIError) as error:
                again()
            assert is_transient(error.value)
            connection.rollback()
        else:
            assert again() is TOO_OLD
    assert accept(engine, billing, key) is TOO_OLD
    assert accept(engine, billing, ago(minutes=1)) is NEW


WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


@on("postgresql")
def test_who_has_waited(migrated: Database) -> None:
    """A message that waits for another transaction, while its key is forgotten, is too old afterwards."""
    engine, billing = migrated.engine(), Inbox("billing", key_time="uuid7")
    key = ago(days=8)
    assert accept(engine, billing, ago(minutes=1)) is NEW
    forget(engine)
    with engine.begin() as connection:
        connection.execute(update(HORIZON).values(keys_from="", keys_gone=""))
    answers: list[Any] = []

    def wait(take: Callable[[Connection], Any]) -> threading.Thread:
        def run() -> None:
            with engine.begin() as connection:
                answers.append(take(connection))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with engine.connect() as first:
        first.begin()
        assert billing.accept(first, key) is NEW
        threads = [
            wait(lambda connection: billing.accept(connection, key)),
            wait(lambda connection: billing.accept_many(connection, [key])[0]),
        ]
        with engine.connect() as watcher:
            while watcher.exec_driver_sql(WAITING).scalar_one() < 2:
                watcher.rollback()
        with engine.begin() as other:
            other.execute(update(HORIZON).values(keys_from=ago(days=7)))
        first.rollback()
    for thread in threads:
        thread.join(20)
    assert answers == [TOO_OLD, TOO_OLD]
    assert key not in keys(engine)


def test_the_form_is_agreed_on(migrated: Database) -> None:
    """Another form, none, or a form after keys without one: nothing is taken, and the error names both."""
    engine = migrated.engine()
    assert accept(engine, Inbox("billing", key_time="ulid"), ago(form="ulid", minutes=1)) is NEW
    taken = keys(engine)
    others = {
        "'uuid7', but inbox_consumer says 'ulid'": (Inbox("billing", key_time="uuid7"), ago(minutes=1)),
        "None, but inbox_consumer says 'ulid'": (Inbox("billing"), "order-1"),
    }
    for said, (other, key) in others.items():
        with engine.begin() as connection, pytest.raises(PolicyConflict, match=f"key_time={said}"):
            other.accept(connection, key)
    assert keys(engine) == taken
    with pytest.raises(InvalidOption, match="key_time='uuid7': inbox_consumer says 'ulid' about 'billing'"):
        set_policy(engine, "billing", key_time="uuid7")
    assert set_policy(engine, "billing", retention=DAY).key_time == "ulid"
    assert set_policy(engine, "shop", mode="exactly-once", key_time="timed").key_time == "timed"
    with engine.begin() as connection:
        row = {"consumer": "old", "key": "order-1", "claim": bytes(16)}
        connection.execute(insert(MESSAGE), row)
        with pytest.raises(PolicyConflict, match="key_time='uuid7', but it has taken 'order-1'"):
            Inbox("old", key_time="uuid7").accept(connection, ago(minutes=1))
    with pytest.raises(PolicyConflict, match="key_time='uuid7', but it has taken 'order-1'"):
        set_policy(engine, "old", mode="exactly-once", key_time="uuid7")
    assert keys(engine) == sorted([*taken, "order-1"])


@on("sqlite", "asyncpg", "mariadb")
def test_asynchronous_code(migrated: Database) -> None:
    """`AsyncInbox` has the option, too, with the statements of every asynchronous driver."""
    billing, old, young = AsyncInbox("billing", key_time="uuid7"), ago(days=8), ago(minutes=1)
    levels = [None] if migrated.name == "sqlite" else ["READ COMMITTED", "REPEATABLE READ"]

    async def work() -> None:
        for level in levels:
            options = {} if level is None else {"isolation_level": level}
            engine = migrated.async_engine(**options)
            async with engine.begin() as connection:
                first = NEW if level is levels[0] else DUPLICATE
                assert await billing.accept(connection, young) is first
                assert await billing.accept_many(connection, [old, young]) == [TOO_OLD, DUPLICATE]
                assert await billing.accept(connection, old) is TOO_OLD
                assert await billing.accept_many(connection, [ago(hours=1)], [1]) == [NEW]
                assert await billing.accept(connection, ago(hours=1, name="b")) is NEW
            await engine.dispose()

    with migrated.engine().begin() as connection:
        connection.execute(
            insert(HORIZON), {"consumer": "billing", "keys_from": ago(days=7), "keys_gone": ""}
        )
    asyncio.run(work())


def _partition(engine: Engine, days: range) -> list[str]:
    """Give the consumer a partition for each of these days before and after this one; return their names."""
    since, today = FORMS["uuid7"].since, datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    names = [f"of_day_{number}" for number in range(len(days))]
    statements = [
        "ALTER TABLE inbox_message RENAME TO old",
        "CREATE TABLE inbox_message (LIKE old INCLUDING ALL) PARTITION BY LIST (consumer)",
        "CREATE TABLE of_others PARTITION OF inbox_message DEFAULT",
        "CREATE TABLE of_billing (LIKE old INCLUDING ALL) PARTITION BY RANGE (key)",
        "ALTER TABLE inbox_message ATTACH PARTITION of_billing FOR VALUES IN ('billing')",
    ]
    for name, day in zip(names, days, strict=True):
        first, end = (since(today + each * DAY) for each in (day, day + 1))
        statements.append(
            f"CREATE TABLE {name} PARTITION OF of_billing FOR VALUES FROM ('{first}') TO ('{end}')"
        )
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    return names


@on("postgresql")
def test_a_partition_for_each_day(migrated: Database) -> None:
    """On a table with a partition for each day, what the horizon excludes needs no partition: it is too old,
    and the transaction goes on, at every isolation level. A batch is looked for in its own days alone."""
    engine = migrated.engine()
    oldest, *_ = _partition(engine, range(-9, 3))
    billing, key, late = Inbox("billing", key_time="uuid7"), ago(days=8.5), ago(days=20)
    assert accept(engine, billing, key) is NEW
    assert accept(engine, Inbox("other"), "order-1") is NEW
    forget(engine)
    assert keys(engine) == ["order-1"]
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql(f"ALTER TABLE of_billing DETACH PARTITION {oldest} CONCURRENTLY")
        connection.exec_driver_sql(f"DROP TABLE {oldest}")
    fresh = [ago(seconds=number, name=f"b{number}") for number in range(3)]
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        with engine.execution_options(isolation_level=level).begin() as connection:
            assert billing.accept(connection, late) is TOO_OLD
            assert billing.accept_many(connection, [late, key]) == [TOO_OLD, TOO_OLD]
            taken = billing.accept(connection, fresh[0])
            assert taken is (NEW if level == "READ COMMITTED" else DUPLICATE)
    statements: list[Any] = []
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2:4]))
    with engine.begin() as connection:
        assert billing.accept_many(connection, fresh) == [DUPLICATE, NEW, NEW]
    with engine.begin() as connection:
        assert billing.accept_many(connection, fresh) == 3 * [DUPLICATE]
        found = [given for given in statements if "ANY" in given[0] and "claim" in given[0]]
        text, parameters = found[-1]
        plan = connection.exec_driver_sql(f"EXPLAIN {text}", parameters).scalars().all()
    assert len([line for line in plan if " on of_day_" in line]) in (1, 2)  # two at midnight


@on("postgresql")
def test_a_day_without_a_partition(migrated: Database) -> None:
    """A key from `keys_until` on is an error that says to try again and what to do, in every way to take it
    and at every isolation level: nothing is taken, also of its batch, and the transaction goes on."""
    engine = migrated.engine()
    _partition(engine, range(-1, 1))
    until = FORMS["uuid7"].since(datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + DAY)
    with engine.begin() as connection:
        row = {"consumer": "billing", "keys_from": "", "keys_gone": "", "keys_until": until}
        connection.execute(insert(HORIZON), row)
    billing, early, ahead = Inbox("billing", key_time="uuid7"), ago(minutes=1), ago(hours=-23.99)
    beside = ago(minutes=2)
    assert accept(engine, billing, early) is NEW
    ways: dict[str, Callable[[Connection], Any]] = {
        "accept": lambda connection: billing.accept(connection, ahead),
        "take": lambda connection: billing.take(connection, ahead),
        "accept_many": lambda connection: billing.accept_many(connection, [ahead, early, beside]),
    }
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        for number, take in enumerate(ways.values()):
            with engine.execution_options(isolation_level=level).begin() as connection:
                with pytest.raises(TransientError, match=r"its consumer end at .* `inbox-outbox partitions`"):
                    take(connection)
                assert billing.accept(connection, early) is DUPLICATE
                assert billing.accept(connection, ago(minutes=3, name=f"{number}{level[5]}")) is NEW
    with pytest.raises(TransientError), billing.transaction(engine, ahead):
        pass
    assert len(keys(engine)) == 1 + 2 * len(ways)
    assert not {ahead, beside} & set(keys(engine))


@on("postgresql", "mariadb", "mysql", "sqlite")
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_an_error_after_the_row_went_in(migrated: Database, many: bool) -> None:
    """A caller that catches the error of a look at the horizon, and commits, has not taken the message: it is
    new when it is delivered again. If the row cannot be given back, the COMMIT raises."""
    engine, billing = migrated.engine(), Inbox("billing", key_time="uuid7")
    assert accept(engine, billing, ago(minutes=2)) is NEW
    key = ago(minutes=1, name="b")
    HORIZON.drop(engine)

    def take() -> None:
        with engine.begin() as connection, suppress(TablesMissing, DBAPIError):
            if many:
                billing.accept_many(connection, [key])
            else:
                billing.accept(connection, key)

    take()
    assert key not in keys(engine)
    if migrated.name != "postgresql":  # there the error has aborted the transaction

        def fail(*given: Any) -> None:
            if given[2].startswith("DELETE"):
                raise ValueError("no")

        event.listen(engine, "before_cursor_execute", fail)
        with pytest.raises(PendingRollbackError):
            take()
    assert key not in keys(engine)


@on("postgresql", "mysql")
def test_a_purge_that_hangs(migrated: Database) -> None:
    """Between two statements it keeps nobody waiting, at any isolation level: each has committed."""
    engine, billing = migrated.engine(), Inbox("billing", key_time="uuid7")
    assert accept(engine, billing, ago(days=8)) is NEW
    with engine.begin() as connection:
        age(connection, by=300)
    hanging, goes_on = threading.Event(), threading.Event()
    purging = migrated.engine()

    def hang(*given: Any) -> None:
        if "inbox_horizon" in given[2] and given[2].startswith(("UPDATE", "INSERT")):
            hanging.set()
            assert goes_on.wait(60)

    event.listen(purging, "after_cursor_execute", hang)
    thread = threading.Thread(target=lambda: purge(purging))
    thread.start()
    try:
        assert hanging.wait(60)
        for number, level in enumerate(("READ COMMITTED", "REPEATABLE READ")):
            fresh = Inbox("billing", key_time="uuid7")
            with migrated.engine(isolation_level=level).begin() as connection:
                assert fresh.accept(connection, ago(days=6, name=f"c{number}")) is NEW
    finally:
        goes_on.set()
        thread.join(60)
