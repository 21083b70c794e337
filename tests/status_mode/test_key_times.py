"""Keys that name their time in status-table mode: one that was forgotten is too old, in every store."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, update

import inbox
from inbox import AsyncStatusInbox, RedisStore, SqlStore, StatusInbox, Verdict, purge
from inbox.errors import InvalidKey, InvalidOption, LeaseLost, MessageTooOld, PolicyConflict
from inbox.schema import tables
from inbox_outbox.testing import age
from inbox_outbox_base.checks.key_times import KeyTime
from tests.support.database import Database
from tests.support.on_servers import both_stores, each_on, on
from tests.support.status_mode.stores import Place
from tests.support.timed_keys import ago, forget

pytestmark = pytest.mark.mysql

DAY = timedelta(days=1)
STATUS, HORIZON = tables().status, tables().horizon
NEW, DUPLICATE, TOO_OLD = Verdict.NEW, Verdict.DUPLICATE, Verdict.TOO_OLD
FORM: dict[str, KeyTime] = {"uuid7": "uuid7", "ulid": "ulid", "timed": "timed"}


def orders(store: SqlStore | RedisStore, form: KeyTime = "uuid7", **options: Any) -> StatusInbox:
    """An inbox that answers with verdicts."""
    return StatusInbox("orders", store=store, key_time=form, on_refusal="return", **options)


def claim(orders: StatusInbox, key: str, payload: Any = None) -> Verdict:
    """Claim it and complete it."""
    with orders.claim(key, payload) as claim:
        return claim.verdict


def stored(engine: Engine) -> dict[str, str]:
    """Each key with its status."""
    with engine.connect() as connection:
        return {row.key: row.status for row in connection.execute(select(STATUS.c.key, STATUS.c.status))}


@each_on("postgresql", "form", FORM)
def test_verdicts(migrated: Database, form: KeyTime) -> None:
    """A message is new once. Once its key is forgotten it is too old, also one never seen; a key that
    is still stored keeps its verdict, however old it is."""
    engine = migrated.engine()
    mine = orders(SqlStore(engine), form)
    old, late, young = ago(form=form, days=8), ago(form=form, days=8, name="late"), ago(form=form, minutes=1)
    for key in (old, young):
        assert [claim(mine, key, number) for number in (1, 1, 2)] == [NEW, DUPLICATE, Verdict.MISMATCH]
    with engine.begin() as connection:
        age(connection, by=300)
    assert purge(engine, dry_run=True).rows == 1
    purge(engine)  # the first one stores the horizon, and deletes nothing
    assert claim(mine, old, 1) is DUPLICATE
    forget(engine)
    assert [*stored(engine)] == [young]
    assert [claim(mine, key, 1) for key in (old, late, young)] == [TOO_OLD, TOO_OLD, DUPLICATE]
    assert claim(mine, ago(form=form, seconds=1, name="b")) is NEW
    assert len(stored(engine)) == 2
    with (
        pytest.raises(MessageTooOld),
        StatusInbox("orders", store=SqlStore(engine), key_time=form).claim(late),
    ):
        pass
    inbox.set_policy(engine, "orders", retention=30 * DAY)
    mine = orders(SqlStore(migrated.engine()), form)  # of a process that has never seen the shorter one
    assert [claim(mine, key, 1) for key in (young, old, late)] == [DUPLICATE, TOO_OLD, TOO_OLD]


@both_stores
@on("sqlite")
def test_what_is_refused(server: object, place: Place) -> None:
    """A key of another form or of a time to come, another time, and an option that makes other keys."""
    with place.open() as store:
        assert isinstance(store, SqlStore | RedisStore)
        mine = orders(store)
        for wrong in ("order-1", ago(form="ulid", minutes=1), ("order", 1)):
            with pytest.raises(InvalidKey, match="key_time='uuid7', expected a UUID of version 7"):
                claim(mine, wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidKey, match="more than a day ahead of the store's clock"):
            claim(mine, ago(hours=-24.1))
        assert claim(mine, ago(hours=-23.9)) is NEW
        now = datetime.now(UTC)
        with (
            pytest.raises(InvalidOption, match="message_time: with key_time='uuid7'"),
            mine.claim(ago(minutes=1), message_time=now),
        ):
            pass
        with pytest.raises(InvalidOption, match="missing_key='message_id'"):
            orders(store, missing_key="message_id")
        with pytest.raises(InvalidOption, match="key_time='uuid4'"):
            orders(store, "uuid4")  # type: ignore[arg-type]


@on("sqlite", "mariadb")
def test_the_form_is_agreed_on(migrated: Database) -> None:
    """Another form, none, or a form after other keys: nothing is claimed."""
    engine = migrated.engine()
    store = SqlStore(engine)
    with StatusInbox("old", store=store).claim("order-1"):
        pass
    with engine.begin() as connection:
        connection.execute(tables().consumer.delete())
    with (
        pytest.raises(PolicyConflict, match="key_time='uuid7', but it has taken 'order-1'"),
        StatusInbox("old", store=SqlStore(migrated.engine()), key_time="uuid7").claim(ago(minutes=1)),
    ):
        pass
    assert claim(orders(store), ago(minutes=1)) is NEW
    for other in ("ulid", None):
        with (
            pytest.raises(PolicyConflict, match=f"key_time={other!r}, but inbox_consumer says 'uuid7'"),
            StatusInbox("orders", store=store, key_time=other).claim(ago(form="ulid", minutes=1)),
        ):
            pass
    assert len(stored(engine)) == 2


@on("postgresql", "mariadb", "sqlite")
def test_what_is_not_settled(migrated: Database) -> None:
    """Dead messages, those that are to be tried again, and abandoned leases are kept for their own time, and
    at least as long as their key: what is deleted is too old, never new."""
    engine = migrated.engine()
    mine = orders(SqlStore(engine), max_attempts=1, dead_retention=DAY, retention=7 * DAY, heartbeat=False)
    dead, running, young = ago(days=8), ago(days=8, name="b"), ago(minutes=1, name="c")
    for key in (dead, young):
        with pytest.raises(ValueError, match="no"), mine.claim(key):
            raise ValueError("no")
    abandoned = mine.claim(running)
    abandoned.__enter__()
    forget(engine)
    assert stored(engine) == {dead: "dead", running: "consuming", young: "dead"}
    inbox.retry(SqlStore(engine), "orders", dead)
    forget(engine)  # an operator's decision is not
    again = mine.claim(dead)
    assert again.__enter__().verdict is NEW
    again.__exit__(ValueError, ValueError("no"), None)
    with engine.begin() as connection:
        times = {"updated_at": datetime.now(UTC) - 2 * DAY}
        connection.execute(update(STATUS).values(times))
    forget(engine)  # of the young one, the key's time has not passed
    assert stored(engine) == {running: "consuming", young: "dead"}
    assert claim(mine, dead) is TOO_OLD
    with engine.begin() as connection:
        times = dict.fromkeys(("updated_at", "lease_until"), datetime.now(UTC) - 9 * DAY)
        connection.execute(update(STATUS).where(STATUS.c.key == running).values(times))
    forget(engine)
    assert stored(engine) == {young: "dead"}
    assert claim(mine, running) is TOO_OLD
    with pytest.raises(LeaseLost):
        abandoned.__exit__(None, None, None)
    (found,) = inbox.overview(engine).consumers
    assert found.overdue == 0


@on("postgresql", "mariadb", "sqlite")
def test_a_purge_between_the_look_and_the_claim(migrated: Database) -> None:
    """The horizon is looked at after the row went in, so a claim that stood still before takes nothing."""
    engine, other = migrated.engine(), migrated.engine()
    key = ago(days=8)
    mine = orders(SqlStore(engine))
    assert claim(mine, ago(minutes=1)) is NEW

    done: list[str] = []

    def forget_now(*given: Any) -> None:
        if (
            not done
            and "inbox_status" in given[2]
            and given[2].lstrip().upper().startswith(("INSERT", "WITH"))
        ):
            done.append(given[2])
            assert claim(orders(SqlStore(other)), key) is NEW
            forget(other)
            assert key not in stored(other)

    if migrated.name != "sqlite":  # its claims take turns
        event.listen(engine, "before_cursor_execute", forget_now)
    else:
        assert claim(orders(SqlStore(other)), key) is NEW
        forget(other)
    assert claim(mine, key) is TOO_OLD
    assert key not in stored(other)


@on("sqlite")
@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_redis(server: object, place: Place) -> None:
    """Each record expires by itself, a day after its retention, so that the key of a producer whose clock is
    ahead does not outlive it. A key older than the retention is too old, unless it is still stored."""
    with place.open() as store:
        assert isinstance(store, RedisStore)
        mine = orders(store, "ulid", retention=7 * DAY)
        old, young = ago(form="ulid", days=7.1), ago(form="ulid", days=6.9)
        assert [claim(mine, key) for key in (old, young, young)] == [TOO_OLD, NEW, DUPLICATE]
        longer = orders(store, "ulid", retention=8 * DAY)
        assert claim(longer, old) is NEW
        assert claim(mine, old) is DUPLICATE
        (ttl,) = {store._client.ttl(name) // 3_600 for name in store._client.scan_iter(f"*{young}*")}
        assert ttl in (8 * 24 - 1, 8 * 24)


@on("sqlite", "asyncpg", "mariadb")
def test_asynchronous_code(migrated: Database) -> None:
    """`AsyncStatusInbox` has the option, too."""
    old, young = ago(days=8), ago(minutes=1)

    async def claim(mine: AsyncStatusInbox, key: str) -> Verdict:
        async with mine.claim(key) as claim:
            return claim.verdict

    async def work() -> list[Verdict]:
        engine = migrated.async_engine()
        mine = AsyncStatusInbox(
            "orders", store=SqlStore(engine), key_time="uuid7", on_refusal="return", heartbeat=False
        )
        verdicts = [await claim(mine, key) for key in (old, young, young)]
        await engine.dispose()
        return verdicts

    with migrated.engine().begin() as connection:
        connection.execute(
            HORIZON.insert(), {"consumer": "orders", "keys_from": ago(days=7), "keys_gone": ""}
        )
    assert asyncio.run(work()) == [TOO_OLD, NEW, DUPLICATE]
    assert [*stored(migrated.engine())] == [young]
