"""Each consumer's mode and retention are stored with its data, and a purge respects them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, func, insert, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

import inbox
from inbox import (
    Event,
    EventKind,
    Inbox,
    Retention,
    SqlStore,
    StatusInbox,
    Verdict,
    migration,
    purge,
    set_policy,
)
from inbox._listening.outcome import Action
from inbox.errors import InvalidOption, PolicyConflict, TablesMissing
from inbox.schema import tables
from inbox_outbox_base.transactions import declaring, memories
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on, spread
from tests.support.status_mode.stores import Place

TABLES = tables()
DAY = timedelta(days=1)
WEEK = 7 * DAY
MONTH = 30 * DAY
HINT = "table inbox_consumer is not in this database; create it with `inbox-outbox migrate --url URL`"


def take(engine: Engine, billing: Inbox, *keys: str) -> list[Verdict]:
    """Take messages in the caller's own transaction."""
    with engine.begin() as connection:
        return [billing.accept(connection, key) for key in keys]


def claim(engine: Engine, key: str = "a", **options: Any) -> Verdict:
    """Take a message of `billing` in status-table mode."""
    with StatusInbox("billing", store=SqlStore(engine), **options).claim(key) as given:
        return given.verdict


def policies(engine: Engine) -> dict[str, tuple[str, timedelta, timedelta | None]]:
    """The stored mode, retention and dead retention of each consumer."""
    stored = [each.policy for each in inbox.status(engine) if each.policy]
    return {each.consumer: (each.mode, each.retention, each.dead_retention) for each in stored}


def count(engine: Engine, name: str = "consumer") -> int:
    """The number of rows in one of the tables."""
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(getattr(TABLES, name))).scalar_one()


def grow_old(engine: Engine, age: timedelta) -> None:
    """Make every row this much older."""
    then = datetime.now(UTC) - age
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(accepted_at=then))
        connection.execute(update(TABLES.status).values(updated_at=then))


def test_a_purge_keeps_what_was_asked_for(engine: Engine) -> None:
    """A purge with its defaults keeps each consumer's keys for the retention that the consumer asked for,
    whether longer or shorter than the default."""
    long, short = Inbox("long", retention=MONTH), Inbox("short", retention=DAY)
    take(engine, long, "a")
    take(engine, short, "a")
    claim(engine, retention=60 * DAY)
    grow_old(engine, 8 * DAY)
    assert purge(engine).rows == 1
    assert take(engine, long, "a") == [Verdict.DUPLICATE]
    assert take(engine, short, "a") == [Verdict.NEW]
    assert claim(engine) is Verdict.DUPLICATE
    grow_old(engine, MONTH + DAY)
    assert purge(engine).rows == 2
    assert claim(engine) is Verdict.DUPLICATE


def test_dead_messages_are_kept_as_long_as_asked_for(postgres: Database) -> None:
    """A purge keeps dead messages for the inbox's `dead_retention`."""
    engine = postgres.engine()
    orders = StatusInbox("orders", store=SqlStore(engine), max_attempts=1, dead_retention=90 * DAY)
    with pytest.raises(ZeroDivisionError), orders.claim("a"):
        raise ZeroDivisionError
    grow_old(engine, 60 * DAY)
    assert purge(engine).rows == 0
    with pytest.raises(InvalidOption, match="dead_retention=30d: consumer 'orders' has asked for 90d"):
        purge(engine, dead_retention=MONTH)
    assert purge(engine, dead_retention=MONTH, override=True).rows == 1


def test_a_shorter_time_has_to_be_said_deliberately(postgres: Database) -> None:
    """A purge with less retention than a consumer asked for deletes nothing, and the error names the consumer
    and both times; `override` does it anyway. A longer retention needs no override."""
    engine = postgres.engine()
    take(engine, Inbox("billing", retention=Retention(WEEK, producer=3_600)), "a")
    grow_old(engine, 3 * DAY)
    with pytest.raises(InvalidOption, match="retention=1d: consumer 'billing' has asked for 169h"):
        purge(engine, retention=DAY)
    now = datetime.now(UTC)
    with pytest.raises(InvalidOption, match=r"retention=1m \(its producer and network\): .* asked for 1h"):
        purge(engine, retention=Retention(WEEK, 60), oldest_unconsumed=now)
    with pytest.raises(InvalidOption, match="override=1"):
        purge(engine, retention=DAY, override=1)  # type: ignore[arg-type]
    assert purge(engine, consumer="shipping", retention=DAY).rows == 0
    assert purge(engine, retention=MONTH).rows == 0
    assert count(engine, "message") == 1
    assert purge(engine, retention=DAY, override=True).rows == 1


def test_the_oldest_message_counts_with_the_stored_margin(postgres: Database) -> None:
    """With `oldest_unconsumed`, a purge also keeps the stored margin for producer and network."""
    engine = postgres.engine()
    take(engine, Inbox("billing", retention=Retention(WEEK, producer=7_200)), "a")
    grow_old(engine, timedelta(hours=2))
    assert purge(engine, oldest_unconsumed=datetime.now(UTC) - timedelta(hours=1)).rows == 0
    assert purge(engine, oldest_unconsumed=datetime.now(UTC) + timedelta(hours=1)).rows == 0
    grow_old(engine, timedelta(hours=3, minutes=2))
    assert purge(engine, oldest_unconsumed=datetime.now(UTC) - timedelta(hours=1)).rows == 1


def test_the_ledger_is_kept_as_long(postgres: Database) -> None:
    """A consumer's ledger rows are purged with that consumer's retention."""
    engine = postgres.engine()
    counts = dict.fromkeys(("rows_read", "rows_new", "rows_duplicate", "rows_repeated", "rows_dropped"), 0)
    row = {"run": "r", "batch": 0, "part": 0, "parts": 0, "fingerprint": bytes(16)} | counts
    old = {"committed_at": datetime.now(UTC) - 8 * DAY}
    with engine.begin() as connection:
        connection.execute(insert(TABLES.ledger), [row | old | {"consumer": name} for name in ("a", "b")])
    set_policy(engine, "a", mode="exactly-once", retention=MONTH)
    purge(engine)
    with engine.connect() as connection:
        assert connection.execute(select(TABLES.ledger.c.consumer)).scalars().all() == ["a"]


def test_rows_from_before_there_was_a_policy(postgres: Database) -> None:
    """A consumer without a stored policy gets the default of 7 days, and the purge reports its name."""
    engine = postgres.engine()
    row = {"key": "a", "claim": bytes(16), "accepted_at": datetime.now(UTC) - 8 * DAY}
    with engine.begin() as connection:
        connection.execute(insert(TABLES.message), [row | {"consumer": name} for name in ("old", "kept")])
    set_policy(engine, "kept", mode="exactly-once", retention=MONTH)
    done = purge(engine)
    assert (done.rows, done.assumed) == (1, ("old",))
    assert purge(engine, retention=MONTH).assumed == ()


def test_a_duplicate_declares_nothing(engine: Engine) -> None:
    """The policy is stored with the first new message, in the same transaction, and is rolled back with it; a
    duplicate stores none."""
    billing = Inbox("billing", retention=MONTH)
    with engine.connect() as connection:
        assert [billing.accept(connection, key) for key in "aab"] == [
            Verdict.NEW,
            Verdict.DUPLICATE,
            Verdict.NEW,
        ]
        connection.rollback()
    assert policies(engine) == {}
    with engine.begin() as connection:
        connection.execute(insert(TABLES.message), {"consumer": "billing", "key": "old", "claim": bytes(16)})
    assert take(engine, billing, "old") == [Verdict.DUPLICATE]
    assert policies(engine) == {}
    take(engine, billing, "a")
    assert policies(engine) == {"billing": ("exactly-once", MONTH, None)}


def conflicts(engine: Engine, billing: Inbox) -> list[Callable[[], Any]]:
    """Every way to take a message, each in a transaction that commits even after an error."""

    def commits(work: Callable[[Connection], Any]) -> None:
        with engine.connect() as connection:
            try:
                work(connection)
            finally:
                connection.commit()

    def in_a_transaction() -> None:
        with billing.transaction(engine, "b"):
            pytest.fail("the body has run")

    return [
        lambda: commits(lambda connection: billing.accept(connection, "b")),
        lambda: commits(lambda connection: billing.accept_many(connection, ["b", "c"])),
        in_a_transaction,
        lambda: billing.handler(engine, key=str)(lambda *_: pytest.fail("the body has run"))("b"),
    ]


@on("sqlite")
def test_a_shorter_retention_is_a_conflict(migrated: Database) -> None:
    """An inbox that asks for a shorter retention than the stored one takes nothing, however it takes
    messages, and the error names both values; once `set_policy` has changed the stored one, the inbox
    works."""
    engine = migrated.engine()
    take(engine, Inbox("billing", retention=MONTH), "a")
    billing = Inbox("billing", retention=WEEK)
    for attempt in conflicts(migrated.engine(), billing):
        with pytest.raises(
            PolicyConflict, match="consumer='billing': retention=7d, but inbox_consumer says 30d"
        ):
            attempt()
    with pytest.raises(InvalidOption, match="retention=7d: consumer 'billing' has asked for 30d"):
        billing.purge(engine)
    assert count(engine, "message") == 1
    assert set_policy(engine, "billing", retention=WEEK).retention == WEEK
    assert take(engine, billing, "b") == [Verdict.NEW]
    assert policies(engine) == {"billing": ("exactly-once", WEEK, None)}


def test_a_longer_retention_is_taken_over(postgres: Database) -> None:
    """A deployment can lengthen a retention: the first new message stores it, and the older process goes
    on."""
    engine = postgres.engine()
    before, after = Inbox("billing", retention=WEEK), Inbox("billing", retention=MONTH)
    take(engine, before, "a")
    take(engine, before, "b")
    take(engine, after, "c")
    assert policies(engine) == {"billing": ("exactly-once", MONTH, None)}
    take(engine, before, "d")
    grow_old(engine, 8 * DAY)
    assert purge(engine).rows == 0
    assert count(engine) == 1
    with pytest.raises(PolicyConflict, match="retention=7d, but"):
        take(postgres.engine(), before, "e")


def test_without_a_retention_the_stored_one_counts(postgres: Database) -> None:
    """An inbox without a retention uses the stored one, whether longer or shorter than 7 days."""
    engine = postgres.engine()
    now = datetime.now(UTC)
    for retention in (MONTH, 3 * DAY):
        set_policy(engine, "billing", mode="exactly-once", retention=retention)
        set_policy(engine, "orders", mode="status", retention=retention)
        fresh = postgres.engine()
        billing = Inbox("billing")
        orders = StatusInbox("orders", store=SqlStore(fresh), on_refusal="return")
        for age, expected in ((retention - DAY, Verdict.NEW), (retention + DAY, Verdict.TOO_OLD)):
            key = f"{retention} {age}"
            with fresh.begin() as connection:
                assert billing.accept(connection, key, message_time=now - age) is expected
            with orders.claim(key, message_time=now - age) as given:
                assert given.verdict is expected


def test_a_policy_that_was_not_looked_at_for_long(postgres: Database) -> None:
    """By such a policy nothing is too old: an operator may have lengthened the time, and who asks for a
    shorter one must not decide. It is looked at first, also if all messages are old."""
    engine, old = postgres.engine(), datetime.now(UTC) - 5 * DAY
    billing = Inbox("billing")
    orders = StatusInbox("orders", store=SqlStore(engine), on_refusal="return")

    def verdicts(key: str) -> set[Verdict]:
        with engine.begin() as connection:
            found = billing.accept_many(connection, [f"{key}2"], message_times=[old])
            found.append(billing.accept(connection, key, message_time=old))
        with orders.claim(key, message_time=old) as given:
            return {*found, given.verdict}

    for days, expected in ((3 * DAY, Verdict.TOO_OLD), (MONTH, Verdict.NEW)):
        set_policy(engine, "billing", mode="exactly-once", retention=days)
        set_policy(engine, "orders", mode="status", retention=days)
        let_a_minute_pass(engine)
        assert verdicts(str(days)) == {expected}

    with postgres.engine().begin() as connection, pytest.raises(PolicyConflict):
        Inbox("billing", retention=3 * DAY).accept(connection, "c", message_time=old)
    store = SqlStore(postgres.engine())
    with (
        pytest.raises(PolicyConflict),
        StatusInbox("orders", store=store, retention=DAY).claim("c", message_time=old),
    ):
        pass


@on("sqlite")
def test_one_mode_for_each_consumer(migrated: Database) -> None:
    """A consumer's mode is fixed by its first message, and the other mode is rejected; `set_policy` can
    change it."""
    engine = migrated.engine()
    take(engine, Inbox("billing"), "a")
    with pytest.raises(
        PolicyConflict, match="this inbox has mode status, but inbox_consumer says exactly-once"
    ):
        claim(engine)
    assert count(engine, "status") == 0
    set_policy(engine, "billing", mode="status")
    assert claim(migrated.engine()) is Verdict.NEW
    with pytest.raises(PolicyConflict, match="has mode exactly-once, but inbox_consumer says status"):
        take(migrated.engine(), Inbox("billing"), "b")
    assert count(engine, "message") == 1


@on(*WITH_WRITERS)
def test_both_modes_at_the_same_time(migrated: Database) -> None:
    """If both modes begin before either sees the other, both get an error at their next message."""
    engine, other = migrated.engine(), migrated.engine()
    billing = Inbox("billing")
    with engine.begin() as connection:
        billing.accept(connection, "a")
        assert claim(other) is Verdict.NEW
    with pytest.raises(PolicyConflict, match="inbox_consumer says exactly-once and status"):
        take(engine, billing, "b")
    with pytest.raises(PolicyConflict, match="inbox_consumer says exactly-once and status"):
        claim(migrated.engine(), "b")
    with pytest.raises(InvalidOption, match="mode=None: inbox_consumer says exactly-once and status"):
        set_policy(engine, "billing", retention=DAY)
    set_policy(engine, "billing", mode="exactly-once")
    assert take(engine, billing, "b") == [Verdict.NEW]


@on(*WITH_WRITERS)
def test_first_users_do_not_wait_for_each_other(migrated: Database) -> None:
    """However many transactions take a consumer's first messages at the same time, and however long they run,
    none waits for another; in the end the policy is one row."""
    engines = [migrated.engine() for _ in range(4)]
    connections = [engine.connect() for engine in engines]
    for number, connection in enumerate(connections):
        with_timeout(connection)
        assert Inbox("billing", wait=1).accept(connection, f"{number}") is Verdict.NEW
        assert Inbox("billing", wait=1).accept_many(connection, [f"{number}b"]) == [Verdict.NEW]
    for connection in connections:
        connection.commit()
        connection.close()
    assert policies(engines[0]) == {"billing": ("exactly-once", WEEK, None)}
    purge(engines[0])
    assert count(engines[0]) == 1


def with_timeout(connection: Connection) -> None:
    """Limit the wait for locks, so that a wait becomes an error."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET lock_timeout = '1s'")
    else:
        connection.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 1")


@pytest.mark.parametrize("level", [None, "SERIALIZABLE"])
def test_first_users_at_the_same_time(migrated: Database, level: str | None) -> None:
    """If threads with their own engines take a consumer's first messages at the same time, each message is
    taken once, in both modes."""
    options: dict[str, Any] = {} if level is None else {"isolation_level": level}
    if migrated.name == "sqlite":
        options = {"connect_args": {"timeout": 30}}
    engines = [migrated.engine(**options) for _ in range(4)]
    start = threading.Barrier(len(engines))

    def worker(engine: Engine) -> list[Verdict]:
        bill = Inbox("billing", wait=30).handler(engine, key=str, attempts=30)(lambda *_: None)
        orders = StatusInbox("orders", store=SqlStore(engine), heartbeat=False)
        start.wait(30)
        found = [bill(key).verdict for key in "abc"]
        with orders.claim(str(id(engine))) as given:
            return [*found, given.verdict]

    with ThreadPoolExecutor(len(engines)) as pool:
        verdicts = [each for found in pool.map(worker, engines) for each in found]
    assert verdicts.count(Verdict.NEW) == 3 + len(engines)
    assert set(policies(engines[0])) == {"billing", "orders"}


def test_what_another_inbox_declared_in_a_transaction_that_rolled_back(sqlite: Database) -> None:
    """An inbox that sees the policy of another one of its name, in the same transaction, believes it only
    once it is committed: after a rollback the policy is stored again."""
    engine = sqlite.engine()
    asking, silent = Inbox("billing", retention=MONTH), Inbox("billing")
    with engine.connect() as connection:
        assert [asking.accept(connection, "a"), silent.accept(connection, "b")] == [Verdict.NEW] * 2
        connection.rollback()
    assert take(engine, silent, "c") == [Verdict.NEW]
    assert policies(engine) == {"billing": ("exactly-once", WEEK, None)}


@spread("is_undone", [True, False], where=WITH_WRITERS)
def test_a_savepoint_that_is_rolled_back(migrated: Database, is_undone: bool) -> None:
    """The policy is stored whenever a message is, even if the first message's savepoint was rolled back
    together with the policy, or the transaction was rolled back after a released savepoint."""
    engine, billing = migrated.engine(), Inbox("billing", retention=MONTH)
    with engine.connect() as connection:
        for number in range(4):
            savepoint = connection.begin_nested()
            assert billing.accept(connection, f"a{number}") is Verdict.NEW
            if is_undone and number < 2:
                savepoint.rollback()
            else:
                savepoint.commit()
        assert billing.accept(connection, "b") is Verdict.NEW
        if is_undone:
            connection.commit()
    if not is_undone:
        assert count(engine) == 0
        take(engine, billing, "a")
    assert policies(engine) == {"billing": ("exactly-once", MONTH, None)}


@on("sqlite")
def test_a_process_asks_once(engine: Engine) -> None:
    """After its first messages an inbox sends one statement for each new message, as if there were no policy;
    so do other inboxes of the same consumer. For tables in another schema it asks once more."""
    for key in "ab":
        take(engine, Inbox("billing", retention=MONTH), key)
        claim_orders(engine, key)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    take(engine, Inbox("billing", retention=MONTH), "c")
    claim_orders(engine, "c")
    assert [each for each in statements if "inbox_consumer" in each] == []
    assert len([each for each in statements if "INSERT INTO inbox_message" in each]) == 1
    tenant = engine.execution_options(schema_translate_map={"tenant": None})
    take(tenant, Inbox("billing", retention=MONTH), "d")
    take(tenant, Inbox("billing", retention=MONTH), "e")
    assert len([each for each in statements if "FROM inbox_consumer" in each]) == 1


def let_a_minute_pass(engine: Engine) -> None:
    """Make what this process has seen in the engine's database a minute older."""
    seen = declaring._memos.of(engine.pool).seen
    seen.update({place: when - memories.BELIEVED for place, when in seen.items()})


@pytest.mark.parametrize("ends", [lambda engine: engine.connect().invalidate(), let_a_minute_pass])
@on("sqlite", "postgresql")
def test_the_database_has_lost_the_policy(engine: Engine, ends: Callable[[Engine], None]) -> None:
    """If the database goes back to an earlier state, or its tables are made anew, while a process goes on,
    the policy is stored again with its next message: at once if a connection has broken, else after a
    minute."""
    billing, silent = Inbox("billing", retention=MONTH), Inbox("orders")
    set_policy(engine, "orders", mode="exactly-once", retention=MONTH)
    assert take(engine, billing, "a") == take(engine, silent, "a") == [Verdict.NEW]
    take(engine, billing, "b")
    with engine.begin() as connection:
        connection.execute(TABLES.consumer.delete())
    ends(engine)
    take(engine, billing, "c")
    take(engine, silent, "c")
    assert policies(engine) == {
        "billing": ("exactly-once", MONTH, None),
        "orders": ("exactly-once", WEEK, None),
    }


@on("sqlite")
def test_an_old_process_leaves_a_policy_that_an_operator_has_shortened(engine: Engine) -> None:
    """A process that has seen a longer retention neither stores it again nor fails when it looks again."""
    billing = Inbox("billing", retention=MONTH)
    take(engine, billing, "a")
    take(engine, billing, "b")
    set_policy(engine, "billing", retention=WEEK)
    let_a_minute_pass(engine)
    assert take(engine, billing, "c") == [Verdict.NEW]
    assert policies(engine) == {"billing": ("exactly-once", WEEK, None)}


def claim_orders(engine: Engine, key: str) -> None:
    with StatusInbox("orders", store=SqlStore(engine)).claim(key):
        pass


@on("sqlite", "postgresql")
def test_a_pool_of_one(migrated: Database) -> None:
    """The first message needs no connection other than the caller's, on an engine or in a Session."""
    engine = migrated.engine(pool_size=1, max_overflow=0, pool_timeout=1)
    with engine.begin() as connection:
        assert Inbox("a").accept(connection, "k") is Verdict.NEW
    with Session(engine) as session, session.begin():
        assert Inbox("b").accept(session, "k") is Verdict.NEW
    with Inbox("c").transaction(sessionmaker(engine), "k") as work:
        assert work.is_new
    assert set(policies(engine)) == {"a", "b", "c"}


@on("sqlite")
def test_tables_of_an_older_revision(database: Database) -> None:
    """If the policy table does not exist yet, nothing is taken, and the error says what creates it."""
    migration.migrate(database.engine(), "0004")
    engine = database.engine()
    for attempt in conflicts(engine, Inbox("billing")):
        with pytest.raises(TablesMissing, match=HINT):
            attempt()
    for ask in (claim, purge, inbox.status, lambda engine: set_policy(engine, "billing", mode="status")):
        with pytest.raises(TablesMissing, match=HINT):
            ask(engine)
    assert (count(engine, "message"), count(engine, "status")) == (0, 0)


def test_a_read_only_database(migrated: Database) -> None:
    """On a read-only database the error is the database's own."""
    take(migrated.engine(), Inbox("billing"), "a")
    engine = migrated.engine()
    with engine.connect() as connection:
        if migrated.name == "sqlite":
            connection.exec_driver_sql("PRAGMA query_only = ON")
        else:
            connection.exec_driver_sql(
                "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"
                if migrated.name == "postgresql"
                else "SET SESSION TRANSACTION READ ONLY"
            )
            connection.commit()
        with pytest.raises(DBAPIError):
            Inbox("billing").accept(connection, "b")


def test_a_conflict_is_not_the_message_s_fault(postgres: Database) -> None:
    """After a policy conflict a listener redelivers the message, however often, and never makes it a dead
    letter."""
    engine = postgres.engine()
    take(engine, Inbox("billing", retention=MONTH), "a")
    billing = Inbox("billing", retention=WEEK)
    bill = billing.handler(postgres.engine(), key=str)(lambda *_: None)
    listener = billing.listener(failures=lambda _: 15, max_attempts=16)
    assert [each.action for each in listener.decide(["b"], bill)] == [Action.RETRY]


@on("redis", fixture="place")
def test_redis_needs_no_policy(place: Place) -> None:
    """In Redis each record has its own retention, so two inboxes of a consumer can ask for different ones."""
    with place.open() as store:
        for key, retention in (("a", MONTH), ("b", DAY)):
            with StatusInbox("billing", store=store, retention=retention).claim(key) as given:
                assert given.is_new


def test_changing_a_policy(postgres: Database) -> None:
    """`set_policy` changes what it is given and keeps the rest; an invalid value is rejected with an error
    that names it."""
    engine = postgres.engine()
    with pytest.raises(
        InvalidOption, match="mode=None: inbox_consumer says nothing about 'billing'; expected"
    ):
        set_policy(engine, "billing", retention=DAY)
    with pytest.raises(InvalidOption, match="mode='both': expected one of exactly-once, status"):
        set_policy(engine, "billing", mode="both")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="dead_retention: there are no dead messages"):
        set_policy(engine, "billing", mode="exactly-once", dead_retention=DAY)
    with pytest.raises(InvalidOption, match="retention=-1"):
        set_policy(engine, "billing", mode="status", retention=-1)
    assert count(engine) == 0
    made = set_policy(engine, "billing", mode="status", retention=Retention(DAY, network=0.5))
    assert (made.retention, made.margin) == (DAY + timedelta(seconds=1), timedelta(seconds=1))
    assert made.dead_retention == MONTH
    changed = set_policy(engine, "billing", dead_retention=DAY)
    assert (changed.mode, changed.retention, changed.dead_retention) == ("status", made.retention, DAY)
    assert set_policy(engine, "billing", mode="exactly-once").dead_retention is None
    assert count(engine) == 1


@pytest.mark.parametrize("other", ["set_policy", "an inbox"])
def test_changing_a_policy_while_it_becomes_longer(engine: Engine, other: str) -> None:
    """What somebody else stores between the look and the change stays."""
    claim(engine, retention=DAY)
    changed: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def lengthen(*given: Any) -> None:
        if given[2].startswith("DELETE FROM inbox_consumer") and not changed:
            changed.append(other)
            if other == "set_policy":
                set_policy(engine, "billing", retention=MONTH)
            else:
                claim(engine, "b", retention=MONTH)

    stored = set_policy(engine, "billing", dead_retention=2 * MONTH)
    assert changed
    assert (stored.retention, stored.dead_retention) == (MONTH, 2 * MONTH)


def test_a_digest_format_of_another_version(postgres: Database) -> None:
    """Tables are not used if another version has recorded a different digest format in them."""
    engine = postgres.engine()
    set_policy(engine, "billing", mode="exactly-once")
    with engine.begin() as connection:
        connection.execute(update(TABLES.consumer).values(digest_format=2))
    with pytest.raises(PolicyConflict, match="digests of format 1, but inbox_consumer says 2"):
        take(engine, Inbox("billing"), "a")


def test_a_purge_reports_what_it_deletes(postgres: Database) -> None:
    """`on_event` gets an event for each batch after its commit; a failing hook does no harm."""
    engine = postgres.engine()
    now = datetime.now(UTC)
    row = {"claim": bytes(16), "accepted_at": now - 8 * DAY}
    with engine.begin() as connection:
        connection.execute(
            insert(TABLES.message), [row | {"consumer": "a", "key": f"{each}"} for each in range(5)]
        )
    claim(engine)
    with engine.begin() as connection:
        connection.execute(update(TABLES.status).values(updated_at=now - 8 * DAY))
    left: list[int] = []
    events: list[Event] = []

    def fails(event: Event) -> None:
        left.append(count(postgres.engine(), "message"))
        raise RuntimeError

    purge(engine, batch=3, on_event=[fails, events.append])
    assert [(event.kind, event.consumer, event.count, event.key) for event in events] == [
        (EventKind.PURGED, "a", 3, ""),
        (EventKind.PURGED, "a", 2, ""),
        (EventKind.PURGED, "billing", 1, ""),
    ]
    assert left == [2, 0, 0]
    with pytest.raises(InvalidOption, match="on_event=5"):
        purge(engine, on_event=5)  # type: ignore[arg-type]
