"""What happens to a message while another transaction is taking the same key."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import product

import pytest
from sqlalchemy import Connection, Engine, event, text

from inbox import Inbox, Verdict, is_transient
from inbox.errors import PolicyConflict
from tests.support import accounts
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import BOTH_MYSQL, SYNC, WITH_WRITERS, each_on, on
from tests.support.together import Task, wait_until_blocked

pytestmark = pytest.mark.mysql

KEY = "transfer-1"
Take = Callable[[Inbox, Connection, str], Verdict]


def single(inbox: Inbox, connection: Connection, key: str) -> Verdict:
    """Take one message with `accept`."""
    return inbox.accept(connection, key)


def batch(inbox: Inbox, connection: Connection, key: str) -> Verdict:
    """Take one message as a batch of one."""
    return inbox.accept_many(connection, [key])[0]


TAKES = [single, batch]
takes = pytest.mark.parametrize("take", TAKES)


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """An engine at READ COMMITTED (SQLite has one level only), with an account to write to."""
    level = {} if migrated.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    return accounts.make(migrated.engine(pool_size=20, **level))


@contextmanager
def in_flight(engine: Engine, take: Take = single, key: str = KEY) -> Iterator[Connection]:
    """A transaction that has taken the key and has not ended yet."""
    with engine.connect() as connection:
        assert take(Inbox("bookkeeping"), connection, key) is Verdict.NEW
        yield connection


@each_on("postgresql", "take,wait", product(TAKES, [0, 1]), [(single, 0), (batch, 1)], among=SYNC)
def test_past_the_wait_the_message_is_in_flight(engine: Engine, take: Take, wait: int) -> None:
    """A key that another transaction is taking is IN_FLIGHT once the wait is over, and not before; the
    transaction that got this verdict can still commit what it wrote before and after."""
    writes_before = engine.dialect.name != "sqlite"  # SQLite has one writer at a time
    with in_flight(engine) as other, engine.connect() as connection:
        if writes_before:
            accounts.add(connection, amount=10)
        began = time.monotonic()
        assert take(Inbox("bookkeeping", wait=wait), connection, KEY) is Verdict.IN_FLIGHT
        assert wait * 0.9 <= time.monotonic() - began < wait + 8
        other.commit()
        accounts.add(connection)
        connection.commit()
    assert accounts.total(engine) == (11 if writes_before else 1)


@each_on(
    "postgresql",
    "holder,take,ending",
    product(TAKES, TAKES, ["commit", "rollback"]),
    [*product([single], TAKES, ["commit"]), *product([batch], TAKES, ["rollback"])],
)
def test_the_wait_ends_with_the_other_transaction(
    engine: Engine, holder: Take, take: Take, ending: str
) -> None:
    """If the other transaction commits during the wait, the message is a DUPLICATE; if it rolls back, the
    message is NEW, and what is written then commits."""
    with in_flight(engine, holder) as other:
        asked = threading.Event()
        waiting = Task(lambda: _take_and_write(engine, take, asked))
        assert asked.wait(30)
        wait_until_blocked(engine)
        getattr(other, ending)()
        assert waiting.result() is (Verdict.DUPLICATE if ending == "commit" else Verdict.NEW)
    assert accounts.total(engine) == (0 if ending == "commit" else 1)


def _take_and_write(engine: Engine, take: Take, asked: threading.Event) -> Verdict:
    with engine.begin() as connection:
        event.listen(connection, "before_cursor_execute", lambda *_: asked.set())
        verdict = take(Inbox("bookkeeping", wait=30), connection, KEY)
        if verdict is Verdict.NEW:
            accounts.add(connection)
    return verdict


@on(*WITH_WRITERS, "psycopg2", "mysqldb")  # SQLite has one writer: a batch is in flight as a whole
def test_a_batch_tells_the_keys_in_flight_from_the_others(engine: Engine) -> None:
    """In a batch, only the keys that another transaction is taking are IN_FLIGHT; the others get their own
    verdicts, and the transaction commits."""
    inbox = Inbox("bookkeeping", wait=0)
    with engine.begin() as connection:
        inbox.accept(connection, "old")
    with in_flight(engine, key="taken-1"), in_flight(engine, key="taken-2"):
        keys = ["new-1", "taken-1", "old", "new-2", "taken-2", "new-1"]
        with engine.begin() as connection:
            verdicts = inbox.accept_many(connection, keys)
    new, flying, duplicate = Verdict.NEW, Verdict.IN_FLIGHT, Verdict.DUPLICATE
    assert verdicts == [new, flying, duplicate, new, flying, duplicate]
    with engine.begin() as connection:
        assert inbox.accept_many(connection, keys) == [duplicate, new, duplicate, duplicate, new, duplicate]


@on(*WITH_WRITERS)
def test_a_batch_waits_for_each_transaction_in_its_way(engine: Engine) -> None:
    """`wait` limits each single wait: a batch takes all its keys if each is released within `wait`, even if
    the waits add up to more."""
    with _all_in_flight(engine, [f"taken-{number}" for number in range(5)]) as others:

        def release_one_by_one() -> None:
            for other in others.values():
                time.sleep(0.8)
                other.rollback()

        releasing = Task(release_one_by_one)
        with engine.begin() as connection:
            verdicts = Inbox("bookkeeping", wait=3).accept_many(connection, list(others))
        releasing.result()
    assert verdicts == [Verdict.NEW] * 5


# MySQL waits for a second at least, at each statement that finds the keys in flight.
@on("postgresql", "mariadb")
def test_a_batch_does_not_wait_for_each_key(engine: Engine) -> None:
    """With `wait=0` a batch whose keys are all in flight returns soon, without a wait for each key."""
    with _all_in_flight(engine, [f"taken-{number}" for number in range(16)]) as others:
        with engine.begin() as connection:
            began = time.monotonic()
            verdicts = Inbox("bookkeeping", wait=0).accept_many(connection, list(others))
        assert verdicts == [Verdict.IN_FLIGHT] * len(others)
        assert time.monotonic() - began < 10


@each_on("postgresql", "holder,take", product(TAKES, TAKES), zip(TAKES, TAKES[::-1], strict=True))
def test_to_be_told_in_flight_takes_nothing(engine: Engine, holder: Take, take: Take) -> None:
    """A transaction that got IN_FLIGHT does not hold the key: when the other one rolls back, the message is
    NEW to the next transaction, even while the first is still open."""
    with engine.connect() as told:
        with in_flight(engine, holder):
            assert take(Inbox("bookkeeping", wait=0), told, KEY) is Verdict.IN_FLIGHT
        with engine.begin() as connection:
            assert take(Inbox("bookkeeping", wait=0), connection, KEY) is Verdict.NEW


@contextmanager
def _all_in_flight(engine: Engine, keys: list[str]) -> Iterator[dict[str, Connection]]:
    with ExitStack() as stack:
        yield {key: stack.enter_context(in_flight(engine, key=key)) for key in keys}


def test_at_serializable_the_wait_is_bounded_too(migrated: Database) -> None:
    """At SERIALIZABLE, where reads may take locks, a key in flight is still IN_FLIGHT within the wait."""
    engine = migrated.engine(isolation_level="SERIALIZABLE")
    with in_flight(engine), engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        began = time.monotonic()
        for take in (single, batch):
            assert take(Inbox("bookkeeping", wait=1), connection, KEY) is Verdict.IN_FLIGHT
        assert time.monotonic() - began < 8


@takes
@pytest.mark.parametrize(
    ("server", "level", "waits"),
    [
        *product(["postgresql"], ["REPEATABLE READ", "SERIALIZABLE"], [True, False]),
        *product(BOTH_MYSQL, ["REPEATABLE READ"], [True, False]),  # at SERIALIZABLE they read with locks
        ("sqlite", "SERIALIZABLE", False),  # its one strict level; it answers at once
    ],
    indirect=["server"],
)
def test_a_race_with_an_older_snapshot_is_a_transient_error(
    migrated: Database, take: Take, level: str, *, waits: bool
) -> None:
    """If a transaction's snapshot is older than the commit of the key, it cannot read the stored row: it gets
    a transient error, never DUPLICATE."""
    engine = accounts.make(migrated.engine(isolation_level=level))
    if migrated.name == "sqlite":
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    with in_flight(engine) as other, engine.connect() as connection:
        if migrated.name == "sqlite":
            connection.exec_driver_sql("BEGIN")
        assert connection.execute(text("SELECT total FROM account")).scalar_one() == 0
        if not waits:
            other.commit()
        taking = Task(lambda: take(Inbox("bookkeeping", wait=30), connection, KEY))
        if waits:
            wait_until_blocked(engine)
            other.commit()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is depends on the database
            taking.result()
        assert is_transient(caught.value)


SETTINGS = {
    "postgresql": ("SET lock_timeout = '4321ms'", "SHOW lock_timeout", "4321ms"),
    "mysql": ("SET SESSION innodb_lock_wait_timeout = 43", "SELECT @@innodb_lock_wait_timeout", 43),
    "sqlite": ("PRAGMA busy_timeout = 4321", "PRAGMA busy_timeout", 4321),
}


@takes
def test_the_lock_timeout_stays_the_callers_own(engine: Engine, take: Take) -> None:
    """After every verdict, the caller's lock timeout is what the caller had set, for the rest of the
    transaction and of the session."""
    scopes = ["before", "inside"]
    if engine.dialect.name == "postgresql":  # only PostgreSQL has settings for one transaction
        scopes.append("local")
    for scope in scopes:
        for path in ("new", "duplicate", "in flight"):
            with case((scope, path)):
                _check_the_lock_timeout(engine, take, path, scope)
                engine.dispose()  # so that no session keeps an earlier setting


def _check_the_lock_timeout(engine: Engine, take: Take, path: str, scope: str) -> None:
    change, question, value = SETTINGS[engine.dialect.name]
    key = f"{scope} {path}"
    if path == "duplicate":
        with engine.begin() as connection:
            take(Inbox("bookkeeping"), connection, key)
    with in_flight(engine, key=key if path == "in flight" else "other") as other:
        if engine.dialect.name == "sqlite" and path != "in flight":
            other.rollback()
        with engine.connect() as connection:
            untouched = connection.exec_driver_sql(question).scalar_one()
            connection.exec_driver_sql(change.replace("SET", "SET LOCAL") if scope == "local" else change)
            if scope == "before":
                connection.commit()
            verdict = take(Inbox("bookkeeping", wait=0), connection, key)
            assert verdict == Verdict(path.replace(" ", "_"))
            assert connection.exec_driver_sql(question).scalar_one() == value
            connection.commit()
            after = untouched if scope == "local" else value
            assert connection.exec_driver_sql(question).scalar_one() == after


@on("mariadb")
def test_the_lock_timeout_is_the_callers_own_after_a_refusal(engine: Engine) -> None:
    """After a message that was refused, the session waits for locks as before."""
    _, question, _ = SETTINGS[engine.dialect.name]
    with engine.begin() as connection:
        own = connection.exec_driver_sql(question).scalar_one()
        Inbox("bookkeeping", retention=timedelta(days=3)).accept(connection, KEY)
    with engine.connect() as connection:
        with pytest.raises(PolicyConflict):
            Inbox("bookkeeping", retention=timedelta(days=2)).accept(connection, "transfer-2")
        assert connection.exec_driver_sql(question).scalar_one() == own


@takes
def test_the_lock_timeout_is_the_callers_own_after_a_wait(engine: Engine, take: Take) -> None:
    """The caller's lock timeout is also unchanged after a wait that ended with NEW."""
    change, question, value = SETTINGS[engine.dialect.name]
    with in_flight(engine) as other, engine.connect() as connection:
        connection.exec_driver_sql(change)
        connection.commit()
        taking = Task(lambda: take(Inbox("bookkeeping", wait=30), connection, KEY))
        wait_until_blocked(engine)
        other.rollback()
        assert taking.result() is Verdict.NEW
        assert connection.exec_driver_sql(question).scalar_one() == value
