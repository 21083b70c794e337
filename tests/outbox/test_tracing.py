"""Where messages are, and why they wait."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, Table, delete, insert, select, text, update

import outbox
from inbox_outbox_base.databases import looking
from outbox import Refused, Relay, Unavailable, Unknown
from outbox.errors import InvalidOption
from tests.support.database import Database
from tests.support.on_servers import each_on, on
from tests.support.outbox_publishers import TABLES, Recorder, publish, relay
from tests.support.roles import rights, role

NEVER = datetime(9999, 1, 1, tzinfo=UTC)


def why(engine: Engine, message_id: str) -> str:
    """The sentence about one message."""
    (found,) = outbox.trace(engine, message_id=message_id)
    assert found.message.id == message_id
    return found.why


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """A database with an outbox."""
    return postgres.engine()


def owned(engine: Engine, name: str = "shop-1", **changes: object) -> None:
    """All buckets belong to a relay whose lease holds."""
    until = datetime.now(UTC) + timedelta(seconds=60)
    row = {"epoch": 7, "name": name, "lease_until": until, "generation": 1} | changes
    with engine.begin() as connection:
        connection.execute(delete(TABLES.relay))
        connection.execute(insert(TABLES.relay), row)
        connection.execute(update(TABLES.bucket).values(epoch=7))


def test_no_relay(engine: Engine) -> None:
    """None is running, or the one that has the bucket is lost."""
    (first,) = publish(engine, "a1")
    assert why(engine, first) == "no relay is running"
    owned(engine)
    assert why(engine, first).startswith("its turn comes: relay shop-1 sends its bucket, ")
    assert why(engine, first).endswith("with 0 messages before it")
    with engine.begin() as connection:
        connection.execute(update(TABLES.bucket).values(epoch=6))
    assert "has no relay: another one takes it over" in why(engine, first)
    owned(engine, lease_until=datetime.now(UTC) - timedelta(seconds=1))
    with engine.begin() as connection:
        connection.execute(insert(TABLES.relay), {"epoch": 8, "name": "b", "lease_until": NEVER})
    assert "has no relay, because shop-1 is lost" in why(engine, first)


def test_what_was_not_taken(engine: Engine) -> None:
    """When it is sent again; and what is behind it says so, and names it."""
    first, second, other = publish(engine, "a1", "a2", "b1")
    relay(engine, Recorder({"a1": [Unavailable("full", 3_600.0)], "b1": [Unknown("no answer")]}))
    owned(engine)
    assert why(engine, first).startswith("it was not taken, and is sent again at ")
    (_, found) = outbox.trace(engine, key="a")
    assert found.message.id == second
    assert found.behind == first
    assert found.why.startswith(
        f"it is behind message {first} of its key: it was not taken, and is sent again"
    )
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(retry_at=datetime.now(UTC) - timedelta(seconds=1)))
    assert why(engine, other) == "it may have been taken or not, and is due to be sent again by relay shop-1"
    outbox.pause(engine, "orders", by="ann", why="the broker is moved")
    assert why(engine, first).startswith("its topic is paused by ann since ")
    assert why(engine, first).endswith(": the broker is moved")
    outbox.resume(engine, "orders")
    outbox.pause(engine)
    assert why(engine, second).startswith("all topics are paused by ")


def test_a_paused_topic_holds_nothing_else_up(engine: Engine) -> None:
    """A message of another topic is not behind one of its key that is paused."""
    publish(engine, "a1", topic="mail")
    (second,) = publish(engine, "a2")
    owned(engine)
    assert "behind message" in why(engine, second)
    outbox.pause(engine, "mail")
    assert why(engine, second).startswith("its turn comes")


def test_held_dead_and_delayed(engine: Engine) -> None:
    """These wait for somebody, or for their time."""
    (held,) = publish(engine, "a1")
    relay(engine, Recorder({"a1": [Refused("no")]}), after_dead="hold")
    (dead,) = publish(engine, "b1")
    relay(engine, Recorder({"b1": [Refused("no")]}))
    (later,) = publish(engine, "c1", delay=3_600)
    owned(engine)
    assert why(engine, held).startswith("it is held: it and its key wait")
    assert why(engine, dead).startswith("it is dead: it is not sent unless somebody retries it")
    assert why(engine, later).startswith("it is not due before 2")
    with engine.begin() as connection:
        past = datetime.now(UTC) - timedelta(seconds=5)
        connection.execute(update(TABLES.delayed).values(available_at=past))
    assert why(engine, later).endswith("no relay has moved it: relays move it when they look next")
    states = [found.message.state.value for key in "abc" for found in outbox.trace(engine, key=key)]
    assert states == ["held", "dead", "delayed"]


def test_sending_crowded_and_stray(engine: Engine) -> None:
    """It is being sent; the relay's memory is full; its bucket does not exist."""
    (first,) = publish(engine, "a1")
    with engine.begin() as connection:
        row = connection.execute(TABLES.message.select()).one()
    owned(engine, sending=f'{{"{row.bucket}": [{row.sequence}]}}')
    assert why(engine, first) == "relay shop-1 is sending it now"
    owned(engine, crowded_by="mail")
    assert "most of them of topic mail" in why(engine, first)
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(bucket=1_000))
    assert why(engine, first) == "its bucket, 1000, does not exist: relays take it in"


LOCKED = {
    "message": (TABLES.message, "its row is"),
    "bucket": (TABLES.bucket, "the row of its bucket, "),
    "relay": (TABLES.relay, "the row of relay shop-1 is"),
}


@each_on("postgresql", "table, said", LOCKED, among=("postgresql", "mariadb", "mysql"))
def test_a_row_is_locked(
    migrated: Database, table: Table, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a session that is named, with what it does and since when; not for a moment only."""
    engine = migrated.engine()
    first, second = publish(engine, "a1", "a2")
    owned(engine)
    with engine.connect() as holder:
        session = holder.execute(text(SESSION[engine.dialect.name])).scalar_one()
        holder.execute(select(table).with_for_update())
        with waiting(migrated, table, session):
            monkeypatch.setattr(looking, "MOMENT", 3_600.0)
            assert "locked" not in why(engine, first)
            monkeypatch.setattr(looking, "MOMENT", 0.0)
            found, behind = soon(lambda: [why(engine, each) for each in (first, second)], said)
            holder.rollback()
    assert found.startswith(said)
    assert re.search(rf" locked by session {session} \(.*user .*\) since 2.* UTC; its turn comes", found)
    assert f"of its key: {said}" in behind


WAITS = text(
    "SELECT count(*) FROM information_schema.innodb_lock_waits AS waits "
    "JOIN information_schema.innodb_trx AS trx ON trx.trx_id = waits.blocking_trx_id "
    "WHERE trx.trx_mysql_thread_id = :session"
)
SESSION = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}


@contextmanager
def waiting(database: Database, table: Table, session: int) -> Iterator[None]:
    """Somebody waits for these rows, which the session must let go: MariaDB shows no other locks."""
    engine = database.engine()
    begun = threading.Event()

    def wait() -> None:
        with engine.begin() as connection:
            begun.set()
            connection.execute(select(table).with_for_update())

    waiter = threading.Thread(target=wait)
    waiter.start()
    begun.wait()
    if database.name == "mariadb":
        with engine.connect() as connection:
            while not connection.execute(WAITS, {"session": session}).scalar_one():
                waiter.join(0.15)  # the server answers from a copy that is renewed ten times a second
    yield
    waiter.join()


def soon(look: Callable[[], list[str]], said: str) -> list[str]:
    """What is seen once all of it says this. MariaDB shows no lock in a page of the table that is in use just
    then, and answers from a copy that is made again after a tenth of a second without a question."""
    end = time.monotonic() + 20
    found = look()
    while time.monotonic() < end and not all(said in each for each in found):
        time.sleep(0.15)
        found = look()
    return found


@on("postgresql", "mariadb", "mysql")
def test_a_lock_and_a_role_that_may_only_look(migrated: Database) -> None:
    """It is told who has locked the row, or what it needs to see that."""
    engine = migrated.engine()
    (first,) = publish(engine, "a1")
    owned(engine)
    with engine.connect() as holder, role(migrated) as app:
        for right in rights("postgresql" if migrated.name == "postgresql" else "mariadb", "look"):
            app.grant(right)
        holder.execute(select(TABLES.message).with_for_update())
        database = app.database
        found = why(database.engine(), first)
        database.dispose()
        holder.rollback()
    assert re.search(SEEN[migrated.name], found), found


SEEN = {
    "postgresql": r"^its row is locked by session \d+ \(user \w+\); its turn comes",
    "mariadb": r"^its turn comes: .* \(not seen: other sessions' locks: grant PROCESS to this role\)$",
    "mysql": r"^its turn comes: .* \(not seen: other sessions' locks: grant PROCESS, and SELECT on .*\)$",
}


def test_a_table_is_locked(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while an index is made: no row can be changed."""
    monkeypatch.setattr(looking, "MOMENT", 0.0)
    (first,) = publish(engine, "a1")
    owned(engine)
    with engine.begin() as connection:
        connection.execute(text("LOCK outbox_message IN SHARE MODE"))
        assert why(engine, first).startswith("its row is locked by session ")


def test_who_has_locked_a_row_waits_for_another(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one at the end of the chain is named, too: to end the first one would help nobody."""
    monkeypatch.setattr(looking, "MOMENT", 0.0)
    (first,) = publish(engine, "a1")
    owned(engine)
    with engine.connect() as last:
        session = last.execute(text("SELECT pg_backend_pid()")).scalar_one()
        last.execute(select(TABLES.bucket).with_for_update())

        def wait() -> None:
            with engine.begin() as connection:
                connection.execute(select(TABLES.message).with_for_update())
                connection.execute(select(TABLES.bucket).with_for_update())

        waiter = threading.Thread(target=wait)
        waiter.start()
        (found,) = soon(lambda: [why(engine, first)], "which itself waits for")
        last.rollback()
    waiter.join()
    assert re.search(rf"^its row is .*, which itself waits for session {session} \(.*\), since 2", found)


def test_a_topic_that_the_broker_rejects(engine: Engine) -> None:
    """It says when it is tried again, and why not now."""
    (first,) = publish(engine, "a1", topic="mail")
    now = datetime.now(UTC)
    times = {"since": now.isoformat(), "until": (now + timedelta(seconds=60)).isoformat()}
    topic = {"topic": "mail", "reason": "no queue is bound there", "known": 1} | times
    owned(engine, lanes=json.dumps({"topics": [topic]}))
    said = r"^the broker rejects its topic, mail, and relay shop-1 tries it again in \d+ s: no queue is bound"
    assert re.search(said, why(engine, first))


def test_an_old_generation(engine: Engine) -> None:
    """A message in a new bucket waits for those of its key in the old one."""
    (first,) = publish(engine, "a1")
    outbox.set_bucket_count(engine, 16)
    (second,) = publish(engine.execution_options(), "a2")
    owned(engine)
    with engine.begin() as connection:
        newest = connection.execute(TABLES.bucket.select().order_by(TABLES.bucket.c.bucket.desc())).first()
        assert newest is not None
        connection.execute(
            update(TABLES.message).where(TABLES.message.c.id == second).values(bucket=newest.bucket)
        )
    said = why(engine, second)
    assert said.startswith(f"it is behind message {first} of its key, in a bucket of another generation: ")


def test_what_was_sent(engine: Engine) -> None:
    """By id and by key, where the relay keeps records; each message names itself for a decision."""
    (sent,) = publish(engine, "a1")
    Relay(engine, Recorder(), keep_sent=60).run_once()
    assert outbox.trace(engine, message_id=sent) == []
    (by_id,) = outbox.sent_messages(engine, message_id=sent)
    assert outbox.sent_messages(engine, key="a") == [by_id]
    assert (by_id.id, by_id.topic, by_id.key) == (sent, "orders", "a")
    publish(engine, "b1", "b2")
    relay(engine, Recorder({"b1": [Unavailable("full", 60.0)]}))
    (waiting, _) = outbox.trace(engine, key="b")
    assert outbox.drop_all(engine, "waiting", seen=waiting.seen) == 1
    assert len(outbox.trace(engine, key="b")) == 1


def test_on_each_database(migrated: Database) -> None:
    """The same statements, by id and by key."""
    engine = migrated.engine()
    first, _ = publish(engine, "a1", "a2")
    (later,) = publish(engine, "a3", delay=3_600)
    owned(engine)
    assert why(engine, first).startswith("its turn comes")
    assert why(engine, later).startswith("it is not due before")
    assert len(outbox.trace(engine, key="a")) == 3
    assert not outbox.trace(engine, message_id="nobody")
    (keyless,) = publish(engine, "-1")
    assert outbox.read_payload(engine, first, key="a") == b"a1"
    assert outbox.read_payload(engine, later, key="a") == b"a3"
    assert outbox.read_payload(engine, keyless) == b"-1"
    assert outbox.read_payload(engine, "nobody") is None
    assert not outbox.sent_messages(engine, message_id="nobody")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "message_id, key: expected one of the two"),
        ({"message_id": "a", "key": "b"}, "message_id, key: expected one of the two"),
        ({"key": ""}, "key=''"),
        ({"key": "a", "limit": 0}, "limit=0"),
    ],
)
def test_bad_input(sqlite: Database, options: dict[str, object], said: str) -> None:
    """Each is refused by name."""
    for function in (outbox.trace, outbox.sent_messages):
        with pytest.raises(InvalidOption, match=said):
            function(sqlite.engine(), **options)  # type: ignore[arg-type]
