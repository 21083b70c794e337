"""Each part does its work with the privileges that docs/privileges.md lists, and needs every one of them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, NullPool, delete, insert, select, update
from sqlalchemy.exc import DBAPIError

import inbox
import outbox
from inbox import Count, Delivery, Inbox, SeriesKind, SqlStore, StatusInbox, Verdict, message_id
from inbox._refusing import writing
from inbox._refusing.refusal import RefusalNote
from inbox.errors import GiveUp
from inbox.schema import metadata, tables
from inbox_outbox_base.counting.series import SeriesWriter
from inbox_outbox_base.databases import member_statements
from outbox import Accepted, Message, Outbox, Outcome, Refused, Relay, Unavailable
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import Recorder
from tests.support.roles import SECTIONS, Right, Role, is_denied, page, rights, role
from tests.support.spark.writes import batch, make_result, write
from tests.support.status_mode.repairs import gives_up, halts

on_roles = on("postgresql", "mariadb")  # SQLite has no roles, and MySQL's rights are MariaDB's

TABLES = tables()
OLD = datetime.now(UTC) - timedelta(days=100)
REJECTED = {
    "consumer": "billing",
    "key": "a",
    "error": "e",
    "content": "{}",
    "run": "r",
    "batch": 0,
    "part": 0,
}
SPARK = ("Spark", "Spark with rejected rows")
FEW = 8  # on MariaDB, parts that need more rights are left out to save time: the same code runs
Part = Callable[[Engine, Database], None]


def take(owner: Engine, app: Database) -> None:
    """Take a message with a result, its duplicate, and a batch; record refusals."""
    engine = app.engine()
    bill = Inbox("billing").handler(engine, key=str)(lambda *_: 7)
    assert (bill("a").verdict, bill("a").result) == (Verdict.NEW, 7)
    with engine.begin() as connection:
        assert Inbox("billing").accept_many(connection, ["a", "b"]) == [Verdict.DUPLICATE, Verdict.NEW]
    refuse_twice(owner, engine)


def take_by_time(owner: Engine, app: Database) -> None:
    """The same with keys that name their time, one of which has been forgotten."""
    engine = app.engine(isolation_level="REPEATABLE READ")
    by_time = Inbox("billing", key_time="timed")
    bill = by_time.handler(engine, key=str)(lambda *_: 7)
    keys = [inbox.timed_key(when, "a") for when in (OLD, datetime.now(UTC) - timedelta(seconds=1))]
    assert (bill(keys[1]).verdict, bill(keys[1]).result) == (Verdict.NEW, 7)
    with owner.begin() as connection:
        horizon = {"consumer": "billing", "keys_from": keys[1], "keys_gone": ""}
        connection.execute(insert(TABLES.horizon), horizon)
    with engine.begin() as connection:
        assert by_time.accept_many(connection, keys) == [Verdict.TOO_OLD, Verdict.DUPLICATE]
    refuse_twice(owner, engine)


def refuse_twice(owner: Engine, engine: Engine) -> None:
    """Record two refusals of a key, as the thread does that writes them."""
    note = RefusalNote(engine, TABLES.refused, "billing", "a", Verdict.MISMATCH, b"1", b"2")
    for _ in range(2):
        writing.write([note])
    assert [each.times for each in inbox.refused(owner)] == [2]


def status_mode(owner: Engine, app: Database) -> None:
    """Handle a message that fails first, its steps, and its duplicate; record refusals."""
    orders = StatusInbox("orders", store=SqlStore(app.engine()))
    with pytest.raises(ZeroDivisionError), orders.claim("a"):
        raise ZeroDivisionError
    with orders.claim("a") as claim:
        claim.step("charge", lambda: 7)
        claim.heartbeat()
        claim.result = 7
    with orders.claim("a") as claim:
        assert claim.result == 7
    refuse_twice(owner, app.engine())


def publish(owner: Engine, app: Database) -> None:
    """Publish waiting and delayed messages, and messages with the caller's own id."""
    with app.engine().begin() as connection:
        Outbox().publish(connection, "orders", "a", key="k")
        Outbox().publish(connection, "orders", "b", delay=60)
        for _ in range(2):
            Outbox().publish(connection, "orders", "c", id="order-42")


def relay(owner: Engine, app: Database) -> None:
    """Relay messages with every outcome, some of them left behind by a lost relay, and delete an old record
    of sent messages."""
    with owner.begin() as connection:
        if owner.dialect.name == "postgresql":  # relays store marks only after sequences have grown
            connection.exec_driver_sql("SELECT setval('outbox_message_sequence_seq', 20000)")
        Outbox().publish_many(
            connection, [Message(topic, "a", "k") for topic in ("good", "bad", "good", "later")]
        )
        Outbox().publish(connection, "good", "d", id="order-42")
        Outbox().publish(connection, "good", "a", delay=0.001)
        sent = {"topic": "good", "created_at": OLD, "sent_at": OLD, "keep_until": OLD}
        connection.execute(insert(TABLES.outbox.sent), [sent | {"id": "old", "own_id": True}])
        lost = {"epoch": 1, "name": "lost", "lease_until": OLD, "sending": '{"0": [1]}'}
        connection.execute(insert(TABLES.outbox.relay), lost)

    answers: dict[str, Outcome] = {"good": Accepted(), "bad": Refused("no"), "later": Unavailable("no")}

    at_work = Relay(app.engine(), Recorder(lambda message: answers[message.topic]), keep_sent=60)
    for _ in range(3):
        at_work.run_once()
    at_work.stop()
    at_work.run()
    with owner.begin() as connection:
        assert not connection.execute(select(TABLES.outbox.relay)).all()  # each relay could leave the group
    with app.engine().begin() as connection:  # as relays do after the number of buckets has changed
        connection.execute(member_statements.retire(TABLES.outbox), {"generation_": 0})


def counting(owner: Engine, app: Database) -> None:
    """Store what is counted, and summarise and delete what is old, with errors that relays and consumers
    would log."""
    old = {"minute": OLD, "source": "a", "kind": "sent", "name": "mail", "number": 1}
    with owner.begin() as connection:
        connection.execute(insert(TABLES.minute), old | {"minute": datetime.now(UTC) - timedelta(hours=3)})
        connection.execute(insert(TABLES.minute), old | {"minute": datetime.now(UTC) - timedelta(days=9)})
    writer = SeriesWriter(TABLES.minute, "b")

    def refused(_: Connection, work: Callable[[], object]) -> str | None:
        work()
        return None

    writer._refused = refused  # type: ignore[assignment, method-assign]
    writer.add(SeriesKind.SENT, "mail")
    engine = app.engine()
    for _ in range(3):
        with engine.begin() as connection:
            writer.write(connection)
            writer.fold(connection)
    assert inbox.series(owner, "24h").points == ()
    assert [next(iter(each.numbers.values())) for each in outbox.series(owner, "24h").points] == [1, 1]


def look(owner: Engine, app: Database) -> None:
    """Look at both overviews and series."""
    with owner.begin() as connection:
        Outbox().publish(connection, "orders", "a", key="k")
        Inbox("billing").accept(connection, "a")
    assert outbox.overview(app.engine()).pending == Count(1)
    assert [each.consumer for each in inbox.overview(app.engine()).consumers] == ["billing"]
    assert outbox.series(app.engine()).points == inbox.series(app.engine()).points == ()


def operators_of_the_inbox(owner: Engine, app: Database) -> None:
    """Look at messages of both modes, and make every decision about those that did not succeed."""
    store = SqlStore(owner)
    orders = StatusInbox("orders", store=store, on_refusal="return")
    for key, body, error in (("a", gives_up, GiveUp), ("b", gives_up, GiveUp), ("c", halts, TimeoutError)):
        with pytest.raises(error), orders.claim(key) as claim:
            body(claim)
    with owner.begin() as connection:
        of_a_load = {"consumer": "flights", "key": "a", "accepted_at": None, "claim": None, "load": 1}
        connection.execute(insert(TABLES.message), of_a_load)
    engine = app.engine()
    store = SqlStore(engine)
    assert [each.consumer for each in inbox.status(engine)] == ["flights", "orders"]
    assert inbox.show(engine, "orders", "a") is None
    assert len(inbox.list_messages(store)) == 3
    inbox.retry(store, "orders", "a")
    inbox.discard(store, "orders", "b")
    inbox.resolve_step(store, "orders", "c", "charge", "done", result=7)
    assert inbox.retry_all(store, "failed", seen=inbox.list_messages(store).seen) == 2
    inbox.set_policy(engine, "orders", retention=60)
    inbox.decisions(engine)
    with owner.begin() as connection:
        refused = {"consumer": "orders", "key": "a", "verdict": "mismatch", "times": 1}
        connection.execute(insert(TABLES.refused), refused)
        row = {
            "consumer": "flights",
            "key": "b",
            "error": "e",
            "content": "{}",
            "run": "r",
            "batch": 0,
            "part": 0,
        }
        connection.execute(insert(TABLES.rejected), row)
    assert inbox.dismiss_all(engine, seen=inbox.refused(engine).seen) == 2


def operators_of_the_outbox(owner: Engine, app: Database) -> None:
    """Look at the outbox, and make every decision about its messages."""
    with owner.begin() as connection:
        Outbox().publish_many(connection, [Message("bad", "a", str(number)) for number in range(5)])
        waiting = Outbox().publish(connection, "orders", "a")
        delayed = Outbox().publish(connection, "orders", "a", delay=60)
    refuses = Relay(
        owner, Recorder(lambda message: Refused("no") if message.topic == "bad" else Unavailable("no"))
    )
    refuses.run_once()
    refuses.stop()
    refuses.run()
    engine = app.engine()
    assert outbox.status(engine).dead == 5
    first, second, *_ = (each.id for each in outbox.peek(engine, state="dead"))
    outbox.pause(engine, "orders")
    outbox.resume(engine, "orders")
    outbox.retry(engine, waiting)
    outbox.retry(engine, first)
    outbox.drop(engine, second)
    outbox.drop(engine, delayed)
    outbox.drop(engine, waiting)
    outbox.retry_all(engine, "dead", seen=outbox.peek(engine, 1, state="dead").seen)
    outbox.drop_all(engine, "dead", seen=outbox.peek(engine, 1, state="dead").seen)
    outbox.drop_all(engine, "pending")
    outbox.purge_dead(engine, 0)
    outbox.decisions(engine)
    outbox.audit(engine, "orders", "billing")


def purge(owner: Engine, app: Database) -> None:
    """Delete old rows from every table of the inbox."""
    counts = dict.fromkeys(("rows_read", "rows_new", "rows_duplicate", "rows_repeated", "rows_dropped"), 0)
    partition = {"run": "r", "batch": 0, "part": 0, "parts": 0, "fingerprint": bytes(16), "committed_at": OLD}
    with owner.begin() as connection:
        connection.execute(
            insert(TABLES.message), {"consumer": "a", "key": "a", "claim": bytes(16), "accepted_at": OLD}
        )
        connection.execute(insert(TABLES.ledger), partition | counts | {"consumer": "a"})
        connection.execute(insert(TABLES.rejected), REJECTED | {"rejected_at": OLD})
        refused = {"consumer": "a", "key": "a", "verdict": "dead", "times": 1, "last_seen": OLD}
        connection.execute(insert(TABLES.refused), refused)
        for number in range(2):
            policy = {
                "consumer": "a",
                "id": bytes([number]),
                "mode": "exactly-once",
                "retention": 60,
                "margin": 0,
            }
            connection.execute(insert(TABLES.consumer), policy | {"digest_format": 1})
        by_time = policy | {"consumer": "b", "key_time": "uuid7", "declared_at": OLD, "digest_format": 1}
        connection.execute(insert(TABLES.consumer), by_time)
        connection.execute(insert(TABLES.message), {"consumer": "b", "key": "b", "claim": bytes(16)})
    with StatusInbox("orders", store=SqlStore(owner)).claim("a"):
        pass
    with owner.begin() as connection:
        connection.execute(update(TABLES.status).values(updated_at=OLD))
    assert inbox.purge(app.engine()).rows == 4


def spark(owner: Engine, app: Database) -> None:
    """Write partitions with new and with known keys, one of which another job has rejected."""
    with owner.begin() as connection:
        connection.execute(insert(TABLES.rejected), REJECTED)
    for rows in ([("a", 1), ("b", 2)], [("b", 2), ("c", 3)]):
        write(app, [batch(*rows)], run=str(rows))


def spark_with_rejected_rows(owner: Engine, app: Database) -> None:
    """Write a partition with a row that is refused, twice."""
    for _ in range(2):
        report = write(app, [batch(("a", 1), (201 * "b", 2))], run="r", bad_rows="table")
        assert report.rejected == 1


PARTS: dict[str, Part] = {
    "take": take,
    "take by time": take_by_time,
    "status mode": status_mode,
    "publish": publish,
    "relay": relay,
    "count": counting,
    "look": look,
    "operators of the inbox": operators_of_the_inbox,
    "operators of the outbox": operators_of_the_outbox,
    "purge": purge,
    "Spark": spark,
    "Spark with rejected rows": spark_with_rejected_rows,
}


@pytest.fixture
def granted(migrated: Database) -> Any:
    """A database, a role that can be granted privileges on it, and Spark's table of results."""
    make_result(migrated)
    with role(migrated) as app:
        yield migrated, app


@on_roles
@pytest.mark.parametrize("part", PARTS)
def test_each_part_needs_these_rights(granted: tuple[Database, Role], part: str) -> None:
    """With the privileges listed on the page the part does all its work; without any one of them it fails
    with the database's own error. (Without those on `inbox_consumer` messages are still taken, without those
    to write to `ops_decision` operators still decide, and without those on `inbox_purge` purges run.)"""
    database, app = granted
    needed = rights(database.name, part)
    assert needed
    for right in needed:
        app.grant(right)
    attempt(part, database, app)
    if database.name == "postgresql" or len(needed) <= FEW:
        assert [right for right in needed if not is_needed(part, database, app, right)] == []
    attempt(part, database, app)


def is_needed(part: str, database: Database, app: Role, right: Right) -> bool:
    """Whether the part fails without this privilege, or it is one that the part works without."""
    app.revoke(right)
    try:
        attempt(part, database, app)
    except Exception as error:
        if not is_denied(error):
            raise
        return True
    finally:
        app.grant(right)
    if right.thing == "ops_decision":
        return right.name != "SELECT"
    if right.thing == "inbox_purge":
        return part == "purge"
    return right.thing == "inbox_consumer" and part in ("take", "status mode", *SPARK)


def attempt(part: str, database: Database, app: Role) -> None:
    """Do a part's work in empty tables, on new connections."""
    owner = database.engine()  # a new engine, for which nothing is cached
    with owner.begin() as connection:
        for table in reversed(metadata.sorted_tables):
            if table.name not in ("outbox_bucket", "inbox_outbox_version"):
                connection.execute(delete(table))
        connection.execute(update(TABLES.outbox.bucket).values(epoch=None, mark=None))
    mine = app.database
    try:
        PARTS[part](owner, mine)
    finally:
        for engine in (owner, *mine._engines):
            engine.dispose()


@on_roles
def test_to_retry_and_deliver(granted: tuple[Database, Role]) -> None:
    """With the rights of an operator of both parts, a message is retried and delivered; without those of the
    outbox, the database refuses both."""
    database, app = granted
    store = SqlStore(database.engine())
    orders = StatusInbox("orders", store=store, keep_payload=True)
    handle: Any = orders.handler(key=message_id)(lambda claim, _: gives_up(claim))
    handle.outcome(Delivery("a", "orders", None, b"1", "text/plain", {}, 1))
    for right in rights(database.name, "operators of the inbox"):
        app.grant(right)
    mine = SqlStore(app.database.engine(poolclass=NullPool))
    with pytest.raises(DBAPIError) as refused:
        inbox.retry(mine, "orders", "a", deliver=True)
    assert is_denied(refused.value)
    for right in rights(database.name, "operators of the outbox"):
        app.grant(right)
    inbox.retry(mine, "orders", "a", deliver=True)
    assert len(outbox.peek(database.engine())) == 1


@on_roles
def test_a_check_tries_what_it_may(granted: tuple[Database, Role]) -> None:
    """With the privileges that the page names, everything is tried; without some, the report says which parts
    are not, and tries the others."""
    database, app = granted
    for right in rights(database.name, "take"):
        app.grant(right)
    engine = app.database.engine(poolclass=NullPool)
    with_some = inbox.check(engine)
    assert (with_some.is_safe, with_some.is_complete) == (True, False)
    found = {each.what: str(each) for each in with_some.findings}
    assert "a purge: not tried: no right" in found["a purge"]
    assert found["a key comes twice"] == "a key comes twice: right"
    for part in ("status mode", "publish", "relay", "purge"):
        for right in rights(database.name, part):
            app.grant(right)
    for report in (inbox.check(engine), outbox.check(engine)):
        assert [str(each) for each in report.findings if each.result in ("refused", "not tried")] == []


def test_row_level_security(postgres: Database) -> None:
    """With the policies of the page each tenant takes messages of its own consumers and sees no others. The
    database rejects a message for another tenant's consumer, and nothing is written."""
    owner = postgres.engine()
    with role(postgres) as app:
        for right in rights("postgresql", "take"):
            app.grant(right)
        with owner.begin() as connection:
            connection.exec_driver_sql(policies())
        engines = {name: tenant(app, name) for name in ("acme", "other")}
        for name, engine in engines.items():
            bill = Inbox(f"{name}:billing", wait=1).handler(engine, key=str)(lambda *_: 7)
            assert [bill("a").verdict, bill("a").verdict] == [Verdict.NEW, Verdict.DUPLICATE]
            with engine.connect() as connection:
                found = connection.execute(select(TABLES.message.c.consumer)).scalars().all()
                assert found == [f"{name}:billing"]
            with_name = {
                each.what: each.result for each in inbox.check(engine, consumer=f"{name}:billing").findings
            }
            without = {each.what: str(each) for each in inbox.check(engine).findings}
            assert (with_name["a key comes twice"], with_name["a key in two transactions"]) == (
                "right",
                "right",
            )
            assert "no right" in without["a key comes twice"]
        with (
            pytest.raises(DBAPIError, match="row-level security") as caught,
            engines["acme"].begin() as connection,
        ):
            Inbox("other:billing").accept(connection, "b")
        assert is_denied(caught.value)
    stored = {each.consumer: (each.rows, each.policy and each.policy.mode) for each in inbox.status(owner)}
    assert stored == {f"{name}:billing": (1, "exactly-once") for name in ("acme", "other")}


OPERATORS: dict[str, Callable[[Engine], object]] = {
    "outbox.status": outbox.status,
    "outbox.is_drained": outbox.is_drained,
    "outbox.peek": outbox.peek,
    "outbox.retry_all": lambda engine: outbox.retry_all(engine, "dead"),
    "outbox.purge_dead": lambda engine: outbox.purge_dead(engine, 0),
    "outbox.drop": lambda engine: outbox.drop(engine, "order-42"),
    "outbox.audit": lambda engine: outbox.audit(engine, "orders", "billing"),
    "inbox.status": inbox.status,
    "inbox.show": lambda engine: inbox.show(engine, "billing", "a"),
    "inbox.purge": inbox.purge,
    "inbox.set_policy": lambda engine: inbox.set_policy(engine, "billing", retention=60, mode="status"),
}
PARTS_OF_OPERATORS = ("operators of the inbox", "operators of the outbox", "purge", "relay")


def test_operators_who_see_only_some_rows(postgres: Database) -> None:
    """To a role from which policies hide rows, no command says that there is nothing: each is refused; and
    none is to a role that a policy shows everything."""
    owner = postgres.engine()
    own_tables = ("outbox_message", "inbox_message", "inbox_consumer")
    with role(postgres) as app:
        for part in PARTS_OF_OPERATORS:
            for right in rights("postgresql", part):
                app.grant(right)
        with owner.begin() as connection:
            Outbox().publish(connection, "orders", "a", id="order-42")
            Inbox("billing", retention=timedelta(days=30)).accept(connection, "a")
            for table in own_tables:
                connection.exec_driver_sql(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        engine = app.database.engine(poolclass=NullPool)
        for name, command in OPERATORS.items():
            with pytest.raises(inbox.errors.UnsafeDatabase, match="row-level policies hide"):
                pytest.fail(f"{name}: {command(engine)}")
        with owner.begin() as connection:
            for table in own_tables:
                connection.exec_driver_sql(f"CREATE POLICY everything ON {table} USING (true)")
        for command in OPERATORS.values():
            command(engine)


def tenant(app: Role, name: str) -> Engine:
    """An engine whose sessions all belong to one tenant."""
    return app.database.engine(connect_args={"options": f"-c app.tenant={name}"}, poolclass=NullPool)


def policies() -> str:
    """The policies listed on the page."""
    return page().split("-- row-level security\n")[1].split("```")[0]


def test_the_page_covers_every_part() -> None:
    """Both sections list every part, and the first table names it."""
    for server in SECTIONS:
        for part in PARTS:
            assert rights(server, part)
            assert f"\n| {part}" in page()


@on_roles
def test_an_inbox_without_a_right_to_its_policy(granted: tuple[Database, Role], caplog: Any) -> None:
    """An inbox without privileges on its policy takes messages, and logs once what is missing; the owner of
    the tables can still store the policy."""
    database, app = granted
    for right in rights(database.name, "take")[:3]:
        app.grant(right)
    engine = app.database.engine(poolclass=NullPool)
    bill = Inbox("billing", retention=60).handler(engine, key=str)(lambda *_: 7)
    assert [bill(key).verdict for key in "abb"] == [Verdict.NEW, Verdict.NEW, Verdict.DUPLICATE]
    warnings = [each.getMessage() for each in caplog.records if each.name == "inbox.policy"]
    assert len(warnings) == 1
    assert "consumer 'billing': cannot compare its policy (mode exactly-once, retention 1m)" in warnings[0]
    assert inbox.set_policy(database.engine(), "billing", mode="exactly-once", retention=3_600).mode
