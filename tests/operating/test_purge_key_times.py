"""Purges of keys that name their time: what was forgotten is never taken again."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, select, update
from sqlalchemy.exc import DBAPIError

import inbox
from inbox import Action, Inbox, Listener, Verdict, is_transient, purge, timed_key
from inbox.errors import InvalidOption, TransientError
from inbox.schema import tables
from inbox_outbox.testing import age
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on
from tests.support.processes import workers
from tests.support.purge_worker import purge_and_die

pytestmark = pytest.mark.mysql

DAY = timedelta(days=1)
CONSUMER, HORIZON, MESSAGE = tables().consumer, tables().horizon, tables().message
NEW, TOO_OLD = Verdict.NEW, Verdict.TOO_OLD
BILLING = Inbox("billing", key_time="timed")


def some(number: int, **time: float) -> list[str]:
    """So many keys of a time that has passed."""
    when = datetime.now(UTC) - timedelta(**time)
    return [timed_key(when, each) for each in range(number)]


def accept(engine: Engine, keys: Sequence[str], inbox: Inbox = BILLING) -> list[Verdict]:
    """Take them, each in a transaction of its own."""
    verdicts = []
    for key in keys:
        with engine.begin() as connection:
            verdicts.append(inbox.accept(connection, key))
    return verdicts


def left(engine: Engine) -> list[str]:
    """The keys that are stored."""
    with engine.connect() as connection:
        return list(connection.scalars(select(tables().message.c.key).order_by(MESSAGE.c.key)))


def settle(engine: Engine) -> None:
    """A horizon has been stored for a while, and the policies, too."""
    with engine.begin() as connection:
        for table, column in ((HORIZON, "stored_at"), (CONSUMER, "declared_at")):
            connection.execute(update(table).values({column: datetime.now(UTC) - timedelta(minutes=5)}))


def test_one_purge_closes_and_the_next_deletes(migrated: Database) -> None:
    """It deletes by the primary key, in batches; it is counted, recorded and told as every purge."""
    engine = migrated.engine()
    old, young = some(5, days=8), some(2, days=1)
    assert accept(engine, [*old, *young]) == 7 * [NEW]
    purge(engine)  # nothing: the policy is new
    settle(engine)
    assert purge(engine, dry_run=True).rows == 5
    assert (purge(engine).rows, purge(engine).rows) == (0, 0)  # not yet for a minute
    assert set(accept(engine, old)) == {Verdict.DUPLICATE}
    settle(engine)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    events: list[Any] = []
    done = purge(engine, batch=2, on_event=events.append, sleep=lambda _: None)
    assert (done.rows, done.batches, done.finished, done.assumed) == (5, 3, True, ())
    assert [each.count for each in events] == [2, 2, 1]
    assert [each for each in statements if "accepted_at" in each and "inbox_message" in each] == []
    assert left(engine) == young
    assert accept(engine, [*old, *young]) == [*(5 * [TOO_OLD]), *(2 * [Verdict.DUPLICATE])]
    assert list(inbox.refused(engine)) == []  # only a listener's are recorded
    (status,) = inbox.status(engine)
    assert (status.rows, status.policy and status.policy.key_time) == (2, "timed")
    (found,) = inbox.overview(engine).consumers
    assert found.last_purge is not None
    assert (found.last_purge.rows, found.last_purge.finished, found.overdue) == (5, True, 0)


@on(*WITH_WRITERS, "sqlite")
def test_a_longer_retention_brings_nothing_back(migrated: Database) -> None:
    """What was forgotten under a shorter one is too old, also for a process that knows only the longer, and
    in a transaction whose snapshot is older than both."""
    engine = migrated.engine()
    old, young = some(2, days=8), some(2, days=1)
    assert accept(engine, [*old, *young]) == 4 * [NEW]
    level = "SERIALIZABLE" if migrated.name == "sqlite" else "REPEATABLE READ"
    restarted = migrated.engine(isolation_level=level)
    snapshot = restarted.connect()
    if migrated.name != "sqlite":  # where it would keep others from writing
        snapshot.execute(select(tables().message.c.key).limit(1)).all()
    for _ in range(2):
        settle(engine)
        purge(engine)
    assert left(engine) == young
    inbox.set_policy(engine, "billing", retention=30 * DAY)
    longer = Inbox("billing", key_time="timed", retention=30 * DAY)
    assert accept(restarted, [*young, *old], longer) == [*2 * [Verdict.DUPLICATE], *2 * [TOO_OLD]]
    with restarted.begin() as connection:
        assert longer.accept_many(connection, old) == 2 * [TOO_OLD]
    with snapshot:
        sees_it = migrated.name == "postgresql"
        assert longer.accept(snapshot, old[0]) is (Verdict.DUPLICATE if sees_it else TOO_OLD)
    assert left(engine) == young


def test_only_the_retention_counts(sqlite: Database) -> None:
    """A shorter time is refused, or counts as the stored one; a longer one keeps more. A retention that has
    become longer keeps what is still there."""
    engine = sqlite.engine()
    inbox_of_a_day = Inbox("billing", key_time="timed", retention=DAY)
    first, second = some(1, days=4), some(1, days=2)
    accept(engine, [*first, *second], inbox_of_a_day)
    settle(engine)
    with pytest.raises(InvalidOption, match=r"retention=1h: consumer 'billing' has asked for 1d"):
        purge(engine, retention=3600)
    purge(engine, retention=3600, override=True, oldest_unconsumed=datetime.now(UTC))
    with engine.connect() as connection:
        assert str(connection.scalar(select(HORIZON.c.keys_from))) < some(1, hours=24)[0]
    settle(engine)
    assert purge(engine, retention=3 * DAY).rows == 1
    assert left(engine) == second
    inbox.set_policy(engine, "billing", retention=3 * DAY)
    settle(engine)
    assert purge(engine).rows == 0
    assert accept(engine, [*first, *second], Inbox("billing", key_time="timed")) == [
        TOO_OLD,
        Verdict.DUPLICATE,
    ]


def test_a_policy_that_changes_during_a_purge(sqlite: Database) -> None:
    """A purge closes no key of a consumer that has been given a longer retention since the purge began."""
    engine, operator = sqlite.engine(), sqlite.engine()
    for name in ("a", "z"):
        accept(engine, some(1, days=4), Inbox(name, key_time="timed", retention=3 * DAY))
    settle(engine)
    changed: list[Any] = []

    def change(*given: Any) -> None:
        if "inbox_horizon" in given[2] and not changed:
            changed.append(inbox.set_policy(operator, "z", retention=30 * DAY))

    event.listen(engine, "before_cursor_execute", change)
    purge(engine)
    with operator.connect() as connection:
        assert [row.consumer for row in connection.execute(select(HORIZON))] == ["a"]
    assert accept(operator, some(2, days=4)[1:], Inbox("z", key_time="timed")) == [NEW]


def test_two_forms(sqlite: Database, caplog: pytest.LogCaptureFixture) -> None:
    """If two processes have declared different forms, nobody knows how old a key is: none is deleted, and the
    log says so."""
    engine = sqlite.engine()
    accept(engine, some(1, days=30))
    with engine.begin() as connection:
        row = connection.execute(select(CONSUMER)).mappings().one()
        connection.execute(insert(CONSUMER), {**row, "id": bytes(16), "key_time": None})
        age(connection, by=30 * DAY)
    for _ in range(2):
        assert purge(engine).rows == 0
    assert "consumer 'billing': inbox_consumer names two forms of keys" in caplog.text


@on(*WITH_WRITERS)
def test_deliveries_beside_purges(migrated: Database) -> None:
    """While purges close and delete, every key is delivered again and again, also at REPEATABLE READ: it is
    new once, and too old in the end."""
    engine = migrated.engine()
    keys = some(12, days=8)
    new: Counter[str] = Counter()
    stop, lock = threading.Event(), threading.Lock()
    accept(engine, some(1, days=1))
    settle(engine)

    def deliver(level: str, many: bool) -> None:
        at_level = engine.execution_options(isolation_level=level)
        while not stop.is_set():
            for key in keys:
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

    ways = [("READ COMMITTED", False), ("REPEATABLE READ", False), ("REPEATABLE READ", True)]
    with ThreadPoolExecutor(len(ways)) as pool:
        running = [pool.submit(deliver, *way) for way in ways]
        try:
            for _ in range(6):
                time.sleep(0.05)
                purge(engine, batch=3)
                settle(engine)
        finally:
            stop.set()
        for each in running:
            each.result()
    assert [key for key in keys if new[key] > 1] == []
    assert sum(new.values()) > 0
    assert set(accept(engine, keys)) == {TOO_OLD}
    assert len(left(engine)) == 1


@on("postgresql", "mariadb")
def test_a_purge_that_is_killed(migrated: Database) -> None:
    """Killed with kill -9 at any statement or COMMIT: no key is taken twice, and the next purges finish."""
    engine = migrated.engine()
    keys = some(5, days=8)
    assert accept(engine, keys) == 5 * [NEW]
    settle(engine)
    purge(engine)
    settle(engine)
    point, reached = 0, None
    while reached is None:
        point += 1
        with engine.begin() as connection:  # what a purge has deleted comes back: each point has work to do
            rows = [{"consumer": "billing", "key": key, "claim": bytes(16)} for key in keys]
            there = set(connection.scalars(select(tables().message.c.key)))
            new = [row for row in rows if row["key"] not in there]
            if new:
                connection.execute(insert(MESSAGE), new)
        with workers((purge_and_die, migrated.url, point)) as (killed,):
            code = killed.exit_code()
            reached = killed.hear() if code == 0 else None
        assert code in (0, -signal.SIGKILL)
        assert NEW not in accept(engine, keys)
        settle(engine)
    assert reached == point - 1 >= 10
    assert left(engine) == []
    assert accept(engine, keys) == 5 * [TOO_OLD]


def test_a_listener(sqlite: Database) -> None:
    """A message that was forgotten is too old to a listener as to `message_time`: a dead letter, or dropped
    if it is told to, and it can be listed; one of another form is a dead letter."""
    engine = sqlite.engine()
    (old,) = some(1, days=8)
    accept(engine, [old])
    for _ in range(2):
        settle(engine)
        purge(engine)
    handle = BILLING.handler(engine, key=str)(lambda *_: None)
    assert Listener(too_old="ack").decide([old], handle)[0].action is Action.ACK
    decisions = Listener().decide([old, "order-1"], handle)
    assert [each.action for each in decisions] == [Action.DEAD_LETTER, Action.DEAD_LETTER]
    assert decisions[0].reason == "too_old"
