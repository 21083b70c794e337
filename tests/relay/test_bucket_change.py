"""The number of buckets changes while messages are published and sent, so that one key has messages in
buckets of several generations."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from string import ascii_lowercase

import pytest
from sqlalchemy import Engine, delete, event, insert, select, update
from sqlalchemy.orm import Session

import outbox
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.transactions import memories
from inbox_outbox_base.transactions.memories import tenant_of
from outbox import Envelope, Outbox, Outcome, Refused, Relay, set_bucket_count
from outbox._operating import bucket_count
from outbox._operating.transact import transact
from outbox._publishing import buckets
from outbox._publishing.buckets import Generation, bucket_of, newest
from outbox._relaying import old_buckets, strays
from outbox._relaying.old_buckets import Retirement
from outbox.errors import InvalidOption, RelayRunning, WrongBucketCount, WrongState
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    count,
    dead,
    messages,
    name_of,
    publish,
    relay,
    waiting,
)
from tests.support.processes import wait_until
from tests.support.relay.crashes import engine_of, running

KEY = next(each for each in ascii_lowercase if bucket_of(each, BUCKETS) > 40)
"""A key whose old bucket goes to the second of two relays."""
OLD, NEW = range(BUCKETS), 7


@pytest.fixture
def engine(migrated: Database) -> Engine:
    return engine_of(migrated)


@pytest.fixture
def is_always_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs read the number of buckets for each message, instead of remembering it."""
    monkeypatch.setattr(memories, "BELIEVED", 0.0)


def generation(engine: Engine) -> Generation:
    with engine.connect() as connection:
        return newest(connection, TABLES)


def believe(engine: Engine, believed: Generation) -> None:
    """Let the programs that use this engine assume this generation."""
    with engine.connect() as connection:
        place = tenant_of(connection), None
    buckets._newest.of(engine.pool)[place] = buckets._Known(believed, time.monotonic())


def publish_believing(engine: Engine, believed: Generation, name: str) -> None:
    """Publish as a program that assumes this generation."""
    believe(engine, believed)
    publish(engine, name)


def publish_to(engine: Engine, believed: Generation, name: str) -> int:
    """Publish as a program that assumes this generation; return the message's bucket."""
    publish_believing(engine, believed, name)
    return int(waiting(engine)[name].bucket)


def let_a_minute_pass(engine: Engine) -> None:
    """Make what the programs that use this engine believe a minute older."""
    for known in buckets._newest.of(engine.pool).values():
        known.read -= memories.BELIEVED
        if known.older_since is not None:
            known.older_since -= memories.BELIEVED


def let_time_pass(engine: Engine, days: float = 2) -> None:
    """Make the buckets of an earlier change this many days older."""
    past = datetime.now(UTC) - timedelta(days=days)
    with engine.begin() as connection:
        bucket = TABLES.bucket
        connection.execute(update(bucket).where(bucket.c.added_at.is_not(None)).values(added_at=past))


@spread("first", ["old", "new"])
def test_a_message_waits_for_an_earlier_one_of_another_generation(engine: Engine, first: str) -> None:
    """While one relay sends a key's message from an old bucket, no other relay sends the key's next message
    from a new bucket. The reverse holds too; it happens when a program has not noticed the change yet."""
    before = generation(engine)
    set_bucket_count(engine, NEW)
    after = generation(engine)
    sides = [before, after] if first == "old" else [after, before]
    assert publish_to(engine, sides[0], f"{KEY}1") in sides[0].buckets
    may_end, sent = threading.Event(), list[str]()

    def answer(message: Envelope) -> Outcome:
        sent.append(name_of(message))
        assert sent[-1] != f"{KEY}1" or may_end.wait(60)
        return ACCEPTED

    with running(Relay(engine, Recorder(answer), poll=0.05)):
        wait_until(lambda: sent == [f"{KEY}1"])
        with running(Relay(engine, Recorder(answer), poll=0.05)):
            wait_until(lambda: [each.buckets > 30 for each in outbox.status(engine).relays] == [True, True])
            assert publish_to(engine, sides[1], f"{KEY}2") in sides[1].buckets
            publish_believing(engine, sides[1], "y1")
            wait_until(lambda: "y1" in sent)
            publish_believing(engine, sides[1], "z1")
            wait_until(lambda: "z1" in sent)
            assert f"{KEY}2" not in sent
            may_end.set()
            wait_until(lambda: count(engine, TABLES.message) == 0)
    assert sent == [f"{KEY}1", "y1", "z1", f"{KEY}2"]


@on("sqlite", "postgresql")
def test_a_relay_learns_of_new_buckets_before_it_sends(engine: Engine) -> None:
    """Even a relay that neither polls nor is notified does not send a message from an old bucket before an
    earlier one of its key from a new bucket."""
    before = generation(engine)
    publisher = Recorder()
    at_work = Relay(engine, publisher, poll=60, lease=600)
    with running(at_work):
        wait_until(lambda: outbox.status(engine).unowned == 0)
        set_bucket_count(engine, NEW)
        silent = Outbox(wake=False)
        for believed, name in ((generation(engine), "a1"), (before, "a2")):
            believe(engine, believed)
            with engine.begin() as connection:
                silent.publish_many(connection, messages([name]))
        at_work._wake_up.wake({f"{bucket_of('a', BUCKETS)}"})
        wait_until(lambda: count(engine, TABLES.message) == 0)
    assert publisher.names == ["a1", "a2"]


@pytest.mark.quick("postgresql")
@pytest.mark.usefixtures("is_always_asked")
@on("sqlite", "postgresql")
def test_more_and_fewer_buckets(engine: Engine) -> None:
    """After each change messages are sent as before, in the order of their key, and every relay has its
    share. A dead letter from before a change that is retried goes to its key's new bucket."""
    publish(engine, "a1", "b1")
    relay(engine, Recorder({"a1": [Refused("no")]}))
    names: list[str] = []
    for number in (100, 100, 3, 4_096, 1):
        names += [f"{key}{len(names)}" for key in "ab"]
        publish(engine, *names[-2:])
        set_bucket_count(engine, number)
        assert outbox.status(engine).buckets == number
    outbox.retry(engine, dead(engine)["a1"].id)
    assert [each.buckets for each in outbox.status(engine).generations] == [BUCKETS, 100, 3, 4_096, 1]
    assert [each.messages for each in outbox.status(engine).generations] == [2, 4, 2, 2, 1]
    assert len({row.bucket for row in waiting(engine).values()}) > 5
    assert not outbox.is_drained(engine)
    assert len(outbox.peek(engine, key="a")) == 6
    publisher = Recorder()
    assert relay(engine, publisher, buckets=1) == 11
    assert [publisher.of(key) for key in "ab"] == [[*names[::2], "a1"], names[1::2]]
    assert outbox.is_drained(engine)
    with pytest.raises(WrongBucketCount, match="buckets=64: the database has 1"):
        relay(engine, publisher, buckets=64)


@pytest.mark.usefixtures("is_always_asked")
@on("sqlite", "postgresql")
def test_messages_behind_one_that_is_held_in_an_old_bucket(engine: Engine) -> None:
    """Messages behind a held one wait for it, and the outbox counts as drained; other keys go on. After an
    operator releases the message, all are sent in their order."""
    publish(engine, "a1")
    publisher = Recorder({"a1": [Refused("no")]})
    relay(engine, publisher, after_dead="hold")
    set_bucket_count(engine, NEW)
    publish(engine, "a2", "b1")
    assert not outbox.is_drained(engine)
    relay(engine, publisher)
    assert outbox.is_drained(engine)
    assert publisher.names == ["a1", "b1"]
    outbox.retry(engine, outbox.peek(engine, state="held")[0].id)
    with running(Relay(engine, publisher)):
        wait_until(lambda: count(engine, TABLES.message) == 0)
    assert publisher.names == ["a1", "b1", "a1", "a2"]


@pytest.mark.usefixtures("is_always_asked")
@on("sqlite", "postgresql")
def test_delayed_messages_of_old_buckets(engine: Engine) -> None:
    """Delayed messages are sent when they are due, in the order of their due times, whichever bucket they are
    in."""
    now = datetime.now(UTC)
    due = {number: now - timedelta(hours=10 - number) for number in (1, 2, 3)}
    publish(engine, *(f"{key}2" for key in ascii_lowercase), available_at=due[2])
    set_bucket_count(engine, NEW)
    for number in (3, 1):
        publish(engine, *(f"{key}{number}" for key in ascii_lowercase), available_at=due[number])
    sent: list[str] = []

    def answer(message: Envelope) -> Outcome:
        sent.append(name_of(message))
        return ACCEPTED

    with running(*(Relay(engine, Recorder(answer), poll=0.05) for _ in range(3))):
        wait_until(lambda: len(sent) == 3 * len(ascii_lowercase))
    for key in ascii_lowercase:
        assert [name for name in sent if name[0] == key] == [f"{key}1", f"{key}2", f"{key}3"]


@on("sqlite")
def test_a_program_that_goes_on(
    migrated: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that publishes while another one changes the number of buckets notices the change within a
    minute, without a query for each message, and logs it."""
    caplog.set_level("INFO", "outbox.publish")
    engine, asked = migrated.engine(), list[str]()
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: asked.append(statement))
    publish(engine, "a1")
    publish(engine, "a2")
    assert len([statement for statement in asked if "outbox_bucket" in statement]) == 1
    known = generation(engine)
    set_bucket_count(migrated.engine(), NEW)
    believe(engine, known)  # another process cannot make this one forget
    asked.clear()
    publish(engine, "a3")
    assert not [statement for statement in asked if "outbox_bucket" in statement]
    assert {row.bucket for row in waiting(engine).values()} == {OLD[bucket_of("a", len(OLD))]}
    with Session(engine) as session:
        Outbox().publish_many(session, messages(["a4"]))
        monkeypatch.setattr(memories, "BELIEVED", 0.0)
        session.commit()
    assert waiting(engine)["a4"].bucket == generation(engine).bucket_of("a")
    assert "the outbox now has 7 buckets, and had 64" in caplog.text
    with pytest.raises(WrongBucketCount, match="the database has 7"), engine.begin() as connection:
        Outbox(buckets=BUCKETS).publish(connection, "orders", b"")


@on("postgresql", "mariadb")
def test_a_transaction_that_sees_an_old_state(migrated: Database) -> None:
    """A transaction with an old snapshot publishes to the buckets that it sees; they do not replace what the
    program has learned since."""
    engine = migrated.engine()
    before = generation(engine)
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(select(TABLES.bucket)).all()
        set_bucket_count(engine, NEW)
        publish(engine, "a1")
        let_a_minute_pass(engine)
        Outbox().publish_many(connection, messages(["a2"]))
        connection.commit()
    publish(engine, "a3")
    after = generation(engine)
    found = {name: row.bucket for name, row in waiting(engine).items()}
    assert found == {
        f"a{number}": each.bucket_of("a") for number, each in enumerate((after, before, after), 1)
    }


def lose_the_change(engine: Engine) -> None:
    """Take the database back to a state before the change of the number of buckets."""
    with engine.begin() as connection:
        connection.execute(delete(TABLES.bucket).where(TABLES.bucket.c.generation > 1))


@on("postgresql", "mariadb")
def test_the_database_goes_back_behind_a_change(migrated: Database) -> None:
    """A program notices within a minute that the number of buckets has gone back, and asks no more often than
    before after another minute."""
    engine, asked = migrated.engine(), list[str]()
    before = generation(engine)
    set_bucket_count(engine, NEW)
    publish(engine, "a1")
    lose_the_change(engine)
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: asked.append(statement))
    for number in (2, 3):
        let_a_minute_pass(engine)
        publish(engine, f"a{number}")
        assert waiting(engine)[f"a{number}"].bucket == before.bucket_of("a")
    asked.clear()
    publish(engine, "a4")
    assert not [statement for statement in asked if "outbox_bucket" in statement]


@on("postgresql", "mariadb")
def test_a_broken_connection_leads_to_another_state(migrated: Database) -> None:
    """After one of its connections has broken, a program asks for the number of buckets at once."""
    engine = migrated.engine()
    before = generation(engine)
    set_bucket_count(engine, NEW)
    publish(engine, "a1")
    lose_the_change(engine)
    with engine.connect() as connection:
        connection.invalidate()
    publish(engine, "a2")
    assert waiting(engine)["a2"].bucket == before.bucket_of("a")


@pytest.mark.mysql
def test_messages_in_buckets_that_do_not_exist(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that a program has published to buckets that are lost are taken in by the relays that own the
    buckets of their keys, delayed ones when they are due: each is sent once, those of a key in order and
    before later ones that wait. A WARNING says so. Until then the outbox does not count as drained."""
    monkeypatch.setattr(strays, "_MOST", 7)
    before = generation(engine)
    set_bucket_count(engine, NEW)
    publish(engine, *(f"{key}{number}" for number in (1, 2) for key in ascii_lowercase), "-1")
    publish(engine, "a0", "z0", delay=0.5)
    lose_the_change(engine)
    believe(engine, before)
    assert outbox.status(engine).stray == 2 * len(ascii_lowercase) + 3
    assert not outbox.is_drained(engine)
    publish(engine, *(f"{key}3" for key in ascii_lowercase))
    time.sleep(0.5)
    publisher = Recorder()
    with running(*(Relay(engine, publisher, poll=0.05) for _ in range(2))):
        monkeypatch.setattr(strays, "_EVERY", 0.1)
        wait_until(lambda: count(engine, TABLES.message) + count(engine, TABLES.delayed) == 0)
    sent = publisher.names
    assert len(sent) == len(set(sent)) == 3 * len(ascii_lowercase) + 3
    for key in ascii_lowercase:
        assert [name for name in publisher.of(key) if name[1] in "12"] == [f"{key}1", f"{key}2"]
    assert outbox.is_drained(engine)
    assert "messages were in buckets that do not exist" in caplog.text


@pytest.fixture
def step(engine: Engine) -> Callable[[], list[int]]:
    """A function that lets a relay look for old buckets to delete, and returns the generations that are
    left."""
    database = relaying(engine.dialect.name, TABLES)
    watch = Retirement(database)
    seeing = engine.execution_options(isolation_level=database.retiring_isolation)

    def look() -> list[int]:
        with seeing.begin() as connection:
            watch.step(connection)
        return [each.buckets for each in outbox.status(engine).generations]

    return look


@pytest.mark.mysql
@pytest.mark.usefixtures("is_always_asked")
def test_old_buckets_are_kept_as_long_as_they_are_used(engine: Engine, step: Callable[[], list[int]]) -> None:
    """Old buckets are deleted one day after a change, once no message waits or is delayed in them and no
    running transaction could still add one. Messages are sent as before, and none is in a bucket that does
    not exist."""
    publish(engine, "a1", delay=3_600)
    (second,) = publish(engine, "a2")
    open_one = engine.connect()
    if engine.dialect.name != "sqlite":
        Outbox().publish_many(open_one, messages(["a3"]))
    set_bucket_count(engine, NEW)
    assert [step(), step()] == [[64, 7], [64, 7]]
    outbox.drop(engine, second)
    assert [step(), step()] == [[64, 7], [64, 7]]
    let_time_pass(engine)
    assert [step(), step()] == [[64, 7], [64, 7]]
    with engine.begin() as connection:
        connection.execute(TABLES.delayed.delete())
    if engine.dialect.name != "sqlite":
        assert [step(), step(), step()] == [[64, 7], [64, 7], [64, 7]]
        open_one.commit()
        assert step() == [64, 7]
    open_one.close()
    publisher = Recorder()
    relay(engine, publisher)
    step()
    assert step() == [7]
    publish(engine, "a4")
    assert relay(engine, publisher) == 1
    found = outbox.status(engine)
    assert (found.buckets, found.stray, found.generations[0].messages) == (7, 0, None)
    set_bucket_count(engine, BUCKETS)
    assert [step(), step()] == [[7, 64], [7, 64]]
    assert relay(engine, publisher) == 0
    publish(engine, "a5")
    assert relay(engine, publisher) == 1


@on("sqlite", "postgresql")
def test_a_relay_deletes_old_buckets_by_itself(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays delete old buckets without being asked; afterwards all relays share the remaining buckets."""
    monkeypatch.setattr(old_buckets, "_EVERY", 0.0)
    set_bucket_count(engine, NEW)
    let_time_pass(engine)
    with running(Relay(engine, Recorder(), poll=0.05)), running(Relay(engine, Recorder(), poll=0.05)):
        wait_until(lambda: sorted(each.buckets for each in outbox.status(engine).relays) == [3, 4])


@on("sqlite")
def test_changes_that_are_rejected(engine: Engine) -> None:
    """The number of buckets cannot be changed while a relay of an older version is running (one that is lost
    does not matter), and cannot exceed 4,096."""
    with pytest.raises(InvalidOption, match="count=4097: expected at most 4,096"):
        set_bucket_count(engine, 4_097)
    now = datetime.now(UTC)
    with engine.begin() as connection:
        old = {"epoch": 1, "name": "old", "lease_until": now + timedelta(hours=1)}
        connection.execute(insert(TABLES.relay), old)
    with pytest.raises(RelayRunning, match="relay old is of an older version"):
        set_bucket_count(engine, 7)
    with engine.begin() as connection:
        connection.execute(update(TABLES.relay).values(lease_until=now - timedelta(hours=1)))
    set_bucket_count(engine, 4_096)
    assert outbox.status(engine).buckets == 4_096


@pytest.mark.quick("sqlite", "mariadb")
@on("sqlite", "postgresql", "mariadb")
def test_operators_who_are_interrupted_or_meet(engine: Engine) -> None:
    """Until a change is complete, no message goes to its buckets; another call completes or replaces it. If
    several operators make a change at the same time, each change is made completely, or not at all and with
    an error."""
    for number in (7, 8):
        transact(engine, TABLES, lambda each, number=number: bucket_count._add(each, TABLES, number))  # type: ignore[misc]
        assert generation(engine).buckets == OLD
    publisher = Recorder()
    publish(engine, "a1")
    assert relay(engine, publisher) == 1
    set_bucket_count(engine, 8)
    assert len(generation(engine).buckets) == 8
    gate = threading.Barrier(4)

    def change(number: int) -> None:
        gate.wait()
        with suppress(WrongState):
            set_bucket_count(engine, number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, (3, 4, 5, 6)))
    set_bucket_count(engine, 9)
    assert len(generation(engine).buckets) == 9
    known = outbox.status(engine).generations
    assert [each.number for each in known if each.added_at is None] == [1]
    publish(engine, "a2")
    assert relay(engine, publisher) == 1


@on("sqlite", "postgresql")
def test_without_a_change_a_relay_asks_nothing_more(engine: Engine) -> None:
    """With one generation, a relay reads the buckets when it starts, and does not look for a key's messages
    in other buckets. The fence against changes is a condition in the statements that lock its lease."""
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: asked.append(statement))
    publisher = Recorder()
    with running(Relay(engine, publisher, poll=0.05)):
        for number in range(20):
            publish(engine, f"a{number}")
            wait_until(lambda number=number: len(publisher.names) == number + 1)  # type: ignore[misc]
        wait_until(lambda: count(engine, TABLES.message) == 0)
    about = [statement for statement in asked if "generation" in statement]
    reads = [statement for statement in about if statement.startswith("SELECT outbox_bucket")]
    # When the first message is published, when the relay joins, and in its first round.
    assert len(reads) == 3
    assert {statement.split()[0] for statement in about} == {"SELECT", "INSERT", "UPDATE"}
    assert not [statement for statement in asked if "min(outbox_message.sequence)" in statement]
    set_bucket_count(engine, NEW)
    publish(engine, "a20")
    relay(engine, publisher)
    assert [statement for statement in asked if "min(outbox_message.sequence)" in statement]
