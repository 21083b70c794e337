"""Refused messages: what is recorded of them, when, and what operators see."""

import asyncio
import logging
import operator
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, insert, select, text, update
from sqlalchemy.pool import StaticPool

import inbox
from inbox import (
    AsyncInbox,
    AsyncListener,
    AsyncStatusInbox,
    Claim,
    Count,
    Delivery,
    Event,
    EventKind,
    Inbox,
    Listener,
    Outcome,
    RefusedMessage,
    SqlStore,
    StatusInbox,
    Verdict,
)
from inbox._listening.handler_counts import flush_async
from inbox._refusing import recording, writing
from inbox._refusing.refusal import RefusalNote
from inbox.errors import GiveUp, InvalidOption, PayloadMismatch, TablesMissing
from inbox.schema import metadata_for, tables
from inbox_outbox_base.checks.keys import digest
from inbox_outbox_base.transactions.connect import in_background
from outbox import DirectDelivery, Outbox, Relay
from tests.support.cli import as_json, in_this_process, succeeded
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on
from tests.support.together import together

TABLE = tables().refused
OLD = datetime.now(UTC) - timedelta(days=30)
Refusals = Callable[..., list[RefusedMessage]]


@pytest.fixture(autouse=True)
def written() -> Iterator[None]:
    """A test has a recorder of its own, and nothing of it is written during the next one."""
    recording._forget()
    yield
    recording.flush()


def delivery(key: str, payload: bytes = b"1", *, made: datetime | None = None) -> Delivery:
    return Delivery(
        id=f"id-{key}",
        topic="orders",
        key=key,
        payload=payload,
        content_type="",
        headers={"secret": "x"},
        attempt=1,
        created_at=made,
        place="orders [3] at 4711",
    )


def billing(engine: Engine, **options: Any) -> Callable[[Delivery], Outcome]:
    """A handler that cannot stand the payload "bad"."""
    mine = Inbox("billing", **options)

    @mine.handler(
        engine, key=lambda m: m.key, payload=lambda m: m.payload, message_time=lambda m: m.created_at
    )
    def bill(connection: Connection, message: Delivery) -> None:
        if message.payload == b"bad":
            raise ValueError("no such article")

    return bill


def decide(handler: Callable[[Delivery], Outcome], *messages: Delivery) -> list[str]:
    listener = Listener(max_attempts=1, failures=lambda _: 0)
    return [each.action.value for each in listener.decide(messages, handler)]


def listed(engine: Engine, count: int = 1, **options: Any) -> list[RefusedMessage]:
    """What is recorded, once there is so much."""
    deadline = time.monotonic() + 10
    while len(found := inbox.refused(engine, **options)) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_what_a_listener_refuses_is_listed(engine: Engine) -> None:
    """A mismatch with both digests, a message that is too old, and one that was given up, each with where it
    came from and how often; nothing of its payload and headers. What was taken is not there."""
    bill = billing(engine)
    sent = [delivery("a"), delivery("a"), delivery("b", b"bad"), delivery("c", made=OLD)]
    assert decide(bill, *sent) == ["ack", "ack", "dead_letter", "dead_letter"]
    assert decide(bill, delivery("a", b"2"), delivery("a", b"3")) == ["dead_letter", "dead_letter"]
    found = {each.key: each for each in listed(engine, 3)}
    recording.flush()
    found = {each.key: each for each in inbox.refused(engine)}
    assert {each.kind for each in found.values()} == {"mismatch", "dead", "too_old"}
    one = found["a"]
    assert (one.consumer, one.kind, one.times, one.error) == ("billing", "mismatch", 2, None)
    assert (one.digest, one.stored_digest) == tuple(hexadecimal(each) for each in (b"3", b"1"))
    assert (one.message_id, one.topic, one.place) == ("id-a", "orders", "orders [3] at 4711")
    assert timedelta() <= one.last_seen - one.first_seen < timedelta(minutes=1)
    assert abs(datetime.now(UTC) - one.last_seen) < timedelta(minutes=1)
    assert (found["b"].kind, found["b"].stored_digest) == ("dead", None)
    assert "no such article" in str(found["b"].error)
    assert found["c"].kind == "too_old"
    with engine.connect() as connection:
        assert "secret" not in str(connection.execute(select(TABLE)).all())


def hexadecimal(payload: bytes) -> str:
    its = digest(payload)
    assert its is not None
    return its.hex()


@on("sqlite", "postgresql", "mariadb")
def test_asynchronous_inboxes(migrated: Database) -> None:
    """The same with an AsyncListener; what is left is written when a consumer ends."""

    async def main() -> None:
        engine = migrated.async_engine()
        mine = AsyncInbox("billing")
        orders = AsyncStatusInbox("orders", store=SqlStore(engine))
        lost: Any = operator.itemgetter("order")

        async def unkeyed(*_: object) -> None: ...

        for handle in (mine.handler(engine, key=lost)(unkeyed), orders.handler(key=lost)(unkeyed)):
            await AsyncListener(max_attempts=1, failures=lambda _: 0).decide([delivery("x")], handle)

        @mine.handler(engine, key=lambda m: m.key, payload=lambda m: m.payload)
        async def bill(connection: Any, message: Delivery) -> None: ...

        listener = mine.listener()
        for number in range(3):
            await listener.decide([delivery("a", b"%d" % number)], bill)
            await asyncio.sleep(0.1)
        await flush_async(bill)
        found = {(each.consumer, each.key, each.times) for each in inbox.refused(migrated.engine())}
        assert found == {("billing", "a", 2), ("billing", None, 1), ("orders", None, 1)}
        await engine.dispose()

    asyncio.run(main())


@on("sqlite")
def test_what_is_refused_while_a_consumer_of_its_loop_ends(
    migrated: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written afterwards."""
    write = writing.write

    async def main() -> None:
        engine = migrated.async_engine()

        def interrupted(notes: Any, _: object) -> None:
            monkeypatch.setattr(writing, "write", write)
            recording.record(note(engine.sync_engine, "k2"))
            write(notes)

        monkeypatch.setattr(writing, "write", interrupted)
        recording.record(note(engine.sync_engine, "k1"))
        for _ in range(2):
            await recording.flush_here()
        await engine.dispose()

    asyncio.run(main())
    assert sorted(str(each.key) for each in inbox.refused(migrated.engine())) == ["k1", "k2"]


@on("sqlite")
def test_a_thread_that_a_handler_leaves_behind(engine: Engine) -> None:
    """What it refuses after the listener has decided is recorded, without where it came from."""
    decide(billing(engine), delivery("a"))
    decided = threading.Event()

    def late() -> None:
        decided.wait(10)
        with pytest.raises(PayloadMismatch), Inbox("billing").transaction(engine, "a", b"2"):
            pass

    def handle(_: Delivery) -> Outcome:
        thread.append(threading.Thread(target=copy_context().run, args=(late,)))
        thread[0].start()
        return Outcome(Verdict.NEW)

    thread: list[threading.Thread] = []
    assert decide(handle, delivery("b")) == ["ack"]
    decided.set()
    thread[0].join()
    assert [(each.key, each.kind, each.place) for each in listed(engine)] == [("a", "mismatch", None)]


@on("postgresql")
def test_status_table_mode(engine: Engine) -> None:
    """Mismatches and what is too old are recorded; a dead message is in its own record only. A failure inside
    a claim, of a message of the exactly-once path, is the claim's; one around a claim is not."""
    orders, parts = StatusInbox("orders", store=SqlStore(engine), max_attempts=1), Inbox("parts")

    @orders.handler(key=lambda m: m.key, payload=lambda m: m.payload, message_time=lambda m: m.created_at)
    def order(claim: Claim, message: Delivery) -> None:
        if message.payload == b"bad":
            with parts.transaction(engine, "part"):
                raise GiveUp

    sent = delivery("a"), delivery("a", b"2"), delivery("b", b"bad"), delivery("b", b"bad")
    assert decide(order, *sent, delivery("c", made=OLD)) == ["ack", *4 * ["dead_letter"]]
    recording.flush()
    found = [(each.consumer, each.key, each.kind) for each in listed(engine, 2)]
    assert sorted(found) == [("orders", "a", "mismatch"), ("orders", "c", "too_old")]

    def part(message: Delivery) -> Outcome:
        with orders.claim(message.key or ""), parts.transaction(engine, message.key or ""):
            raise GiveUp

    assert decide(part, delivery("e")) == ["dead_letter"]
    recording.flush()
    assert inbox.refused(engine, consumer="parts") == []

    @Inbox("billing").handler(engine, key=lambda m: m.key)
    def bill(_: Connection, message: Delivery) -> None:
        with orders.claim(f"part of {message.key}"):
            raise GiveUp

    def answered(message: Delivery) -> Outcome:
        try:
            return bill(message)
        except GiveUp as error:
            return Outcome(Verdict.DEAD, error=error)

    assert decide(bill, delivery("d")) == decide(answered, delivery("e")) == ["dead_letter"]
    recording.flush()
    assert [each.kind for each in listed(engine, 2, consumer="billing")] == ["dead", "dead"]


@on("sqlite", "postgresql")
def test_what_has_no_key(engine: Engine) -> None:
    """A message whose key cannot be had is counted when it is given up, without a key: the last one with its
    id, place and error. One that an inbox around the handler knows, or has a record of, is counted there."""
    mine, others = Inbox("mine"), StatusInbox("others", store=SqlStore(engine), max_attempts=1)

    def taking(*_: object) -> None: ...

    lost: Any = operator.itemgetter("order")  # of a Delivery
    handlers: list[Callable[[Delivery], Outcome]] = [
        mine.handler(engine, key=lost)(taking),
        mine.handler(engine, key=lambda _: None)(taking),  # type: ignore[arg-type, return-value]
        mine.handler(engine, key=lambda m: m.key, payload=lost)(taking),
        others.handler(key=lost)(taking),
        others.handler(key=lambda _: "k" * 600)(taking),
    ]
    sent = delivery("a")
    assert [decide(each, sent) for each in handlers] == 5 * [["dead_letter"]]
    assert [each.action.value for each in Listener().decide([sent], handlers[1])] == ["dead_letter"]

    def inside(_: object, message: Delivery) -> None:
        handlers[0](message)

    arounds = Inbox("around").handler(engine, key=lambda m: m.key), others.handler(key=lambda m: m.key)
    for handler in (arounds[0](inside), arounds[1](inside)):
        assert decide(handler, sent) == ["dead_letter"]
    recording.flush()
    found = sorted((each.consumer, each.key, each.times, each.kind) for each in inbox.refused(engine))
    assert found == [("around", "a", 1, "dead"), ("mine", None, 4, "dead"), ("others", None, 2, "dead")]
    (one,) = inbox.refused(engine, consumer="mine")
    assert (one.message_id, one.topic, one.place) == ("id-a", "orders", "orders [3] at 4711")
    assert "key=None" in str(one.error)
    given_up = {each.consumer: each.given_up.number for each in inbox.overview(engine).consumers}
    assert given_up == {"around": 1, "mine": 1, "others": 1}


@on("sqlite")
def test_direct_delivery(engine: Engine) -> None:
    """A relay that runs the handlers itself records them as well."""
    with engine.begin() as connection:
        Inbox("billing").accept(connection, "a", b"1")
        Outbox().publish(connection, "orders", b"2", key="a", id="m-1")
    relay = Relay(engine, DirectDelivery({"orders": billing(engine)}))
    relay.run_once()
    relay.stop()
    relay.run()
    found = [(each.kind, each.topic, each.message_id, each.place) for each in listed(engine)]
    assert found == [("mismatch", "orders", "m-1", "outbox")]


@on("sqlite")
@pytest.mark.parametrize("records", ["listening", "always", "never"])
def test_without_a_listener(engine: Engine, records: Any) -> None:
    """`record_refusals="always"` records what every method refuses, also from memory, whatever becomes of the
    caller's transaction; by default only a listener's messages are recorded, and with "never" none."""
    events: list[Event] = []
    mine = Inbox("billing", record_refusals=records, remember=10, on_event=events.append)
    bill = mine.handler(engine, key=lambda m: m[0], payload=lambda m: m[1])(lambda *_: None)
    for key in "abcde":
        bill((key, b"1"))
    with pytest.raises(PayloadMismatch):
        bill(("a", b"2"))
    fresh = Inbox("billing", record_refusals=records, on_refusal="return", on_event=events.append)
    with fresh.transaction(engine, "b", b"2") as work:
        assert work.verdict is Verdict.MISMATCH
    with engine.connect() as connection:
        assert fresh.accept(connection, "c", b"2") is Verdict.MISMATCH
        assert fresh.take(connection, "d", b"2").result is None
        assert fresh.accept_many(connection, ["e"], [b"2"]) == [Verdict.MISMATCH]
        assert fresh.accept_many(connection, ["f"], message_times=[OLD]) == [Verdict.TOO_OLD]
    recording.flush()
    expected = list("abcdef") if records == "always" else []
    assert sorted(str(each.key) for each in listed(engine, len(expected))) == expected
    decide(billing(engine, record_refusals=records), delivery("a", b"2"))
    recording.flush()
    assert bool(inbox.refused(engine)) is (records != "never")
    both = {(each.digest, each.stored_digest) for each in events if each.kind is EventKind.MISMATCH}
    assert both == {(hexadecimal(b"2"), hexadecimal(b"1"))}


def test_an_invalid_option() -> None:
    """Its error names the option and the value."""
    with pytest.raises(InvalidOption, match="record_refusals='sometimes'"):
        Inbox("billing", record_refusals="sometimes")  # type: ignore[arg-type]


@on("sqlite")
def test_a_flood_is_written_once_a_second(engine: Engine) -> None:
    """A thousand mismatches are a few writes; all of them are counted."""
    commits: list[Connection] = []
    bill = billing(engine)
    decide(bill, *(delivery(str(number)) for number in range(10)))
    recording.flush()
    event.listen(engine, "commit", commits.append)
    began = time.monotonic()
    for _ in range(10):
        decide(bill, *(delivery(str(number), b"2") for number in range(10)))
    recording.flush()
    seconds = time.monotonic() - began
    assert sum(each.times for each in listed(engine, 10)) == 100
    assert len(commits) <= 2 * (2 + seconds)  # a write reads first


def test_only_so_many_keys_are_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limits, of the table and of the memory, refusals are counted together."""
    monkeypatch.setattr(writing, "MOST", 3)
    queue = recording.RefusalQueue()
    monkeypatch.setattr(recording, "MOST_WAITING", 5)
    for _ in range(2):
        for number in range(8):
            queue.add(note(engine, f"k{number}"))
        queue.write()
    found = {each.key: each.times for each in inbox.refused(engine)}
    assert found == {"k0": 2, "k1": 2, "k2": 2, None: 10}
    assert not queue


def note(engine: Engine, key: str) -> RefusalNote:
    return RefusalNote(engine, TABLE, "billing", key, Verdict.MISMATCH, b"2", b"1")


@pytest.mark.quick("postgresql", "mariadb")
@on(*WITH_WRITERS)
def test_two_processes_refuse_the_same_keys(engine: Engine) -> None:
    """None of their counts is lost."""
    notes = [note(engine, f"k{number}") for number in range(50)]

    def write() -> None:
        for _ in range(5):
            writing.write(notes)

    together([write] * 3)
    found = inbox.refused(engine)
    assert (len(found), {each.times for each in found}) == (50, {15})


@on("sqlite")
def test_a_missing_table_is_one_warning(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stops nothing; what was refused meanwhile is recorded once the table is there."""
    engine = database.engine()
    metadata_for("inbox").create_all(engine)
    TABLE.drop(engine)
    monkeypatch.setattr(recording, "PAUSE", 0.01)
    monkeypatch.setattr(recording, "LONG_PAUSE", 0.01)
    bill = billing(engine)
    with caplog.at_level(logging.WARNING, logger="inbox.refused"):
        for payload in (b"1", b"2", b"3"):
            decide(bill, delivery("a", payload))
            time.sleep(0.1)
        assert [each.name for each in caplog.records if each.name == "inbox.refused"] == ["inbox.refused"]
    assert "cannot be recorded yet: no such table" in caplog.text
    with pytest.raises(TablesMissing, match="inbox_refused"):
        inbox.refused(engine)
    TABLE.create(engine)
    assert [each.times for each in listed(engine)] == [2]


@on("sqlite")
def test_a_missing_table_delays_no_other(migrated: Database, tmp_path: Path) -> None:
    """What is for another database is written; what cannot be written is kept."""
    broken, engine = create_engine(f"sqlite:///{tmp_path / 'empty.db'}"), migrated.engine()
    queue = recording.RefusalQueue()
    for each in (broken, engine):
        queue.add(note(each, "k1"))
    queue.write()
    assert [each.key for each in inbox.refused(engine)] == ["k1"]
    assert queue.is_stuck
    assert queue.seconds_left > recording.LONG_PAUSE / 2
    queue.add(note(engine, "k2"))
    assert queue.seconds_left <= recording.PAUSE
    queue.write()
    assert len(inbox.refused(engine)) == 2
    broken.dispose()


def test_a_pool_with_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Its connection may be in a transaction, so nothing is written, and one WARNING says so."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    metadata_for("inbox").create_all(engine)
    bill = billing(engine)
    decide(bill, delivery("a"), delivery("a", b"2"), delivery("a", b"3"))
    assert [each.name for each in caplog.records].count("inbox.refused") == 1
    assert inbox.refused(engine) == []
    engine.dispose()


PROGRAM = """
import sys
from sqlalchemy import create_engine
from tests.operating.test_refused import billing, decide, delivery
bill = billing(create_engine(sys.argv[1]))
for number in range(50):
    decide(bill, delivery("a", b"%d" % number))
"""


@on("sqlite")
def test_the_end_of_a_process(migrated: Database) -> None:
    """A process that ends normally has written all of its refusals."""
    url = migrated.url.render_as_string(hide_password=False)
    subprocess.run([sys.executable, "-c", PROGRAM, url], check=True, timeout=60)
    assert [each.times for each in inbox.refused(migrated.engine())] == [49]


def test_a_purge(engine: Engine) -> None:
    """Refusals are deleted 30 days after the last one, or when the dead retention of the purge is over."""
    with engine.begin() as connection:
        for key, days in (("a", 40), ("b", 20), ("", 40)):
            seen = datetime.now(UTC) - timedelta(days=days)
            row = {"consumer": "billing", "key": key, "verdict": "mismatch", "times": 1, "last_seen": seen}
            connection.execute(insert(TABLE), row)
    assert inbox.purge(engine, dry_run=True).rows == 2
    assert inbox.purge(engine).rows == 2
    assert [each.key for each in inbox.refused(engine)] == ["b"]
    assert inbox.purge(engine, dead_retention=timedelta(days=10)).rows == 1


def test_what_operators_see(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The overview counts the keys that were refused within a day, by verdict."""
    queue = recording.RefusalQueue()
    for number, verdict in enumerate((Verdict.MISMATCH, Verdict.MISMATCH, Verdict.TOO_OLD, Verdict.DEAD)):
        queue.add(RefusalNote(engine, TABLE, "billing", str(number), verdict, None, None))
    queue.write()
    with engine.begin() as connection:
        connection.execute(
            update(TABLE).where(TABLE.c.key == "0").values(last_seen=datetime.now(UTC) - timedelta(days=2))
        )
    (found,) = inbox.overview(engine).consumers
    assert (found.consumer, found.mismatches, found.too_old, found.given_up) == (
        "billing",
        Count(1),
        Count(1),
        Count(1),
    )
    assert found.refused == Count(3)
    assert [each.key for each in inbox.refused(engine, consumer="billing", limit=1)] != ["0"]
    assert inbox.refused(engine, consumer="other") == []


@on("postgresql")
def test_the_command(migrated: Database) -> None:
    """`inbox refused` lists them, and rows that Spark has set aside; with mismatches `health` exits with
    11."""
    engine, url = migrated.engine(), migrated.url.render_as_string(hide_password=False)
    assert "nothing was refused" in succeeded(in_this_process("inbox", "refused", url=url))
    assert in_this_process("health", url=url).returncode == 0
    writing.write([note(engine, "k1"), note(engine, "")])
    row = {"consumer": "flights", "key": "f1", "error": "too long", "content": "{}", "run": "r"}
    with engine.begin() as connection:
        connection.execute(insert(tables().rejected), row | {"batch": 0, "part": 7})
    text = succeeded(in_this_process("inbox", "refused", url=url))
    for each in ("k1", "(no key)", "rejected", "run r, batch 0, part 7", "too long"):
        assert each in text
    found = as_json(in_this_process("inbox", "refused", "--json", "--consumer", "billing", url=url))
    assert {(each["key"], each["stored_digest"]) for each in found} == {(None, None), ("k1", "31")}
    done = in_this_process("health", url=url)
    assert done.returncode == 11
    said = "2 messages of keys that were taken with another payload were refused within a day (billing)"
    assert said in done.stdout
    assert in_this_process("health", "--max-stopped", "2", url=url).returncode == 0


def test_an_engine_that_is_disposed_of_before_the_write(postgres: Database) -> None:
    """No connection of ours is left open in the engine's new pool."""
    engine = create_engine(postgres.url)
    opened, closed = [], []
    event.listen(engine, "connect", lambda connection, _: opened.append(id(connection)))
    event.listen(engine, "close", lambda connection, _: closed.append(id(connection)))
    recording.record(note(engine, "k1"))
    engine.dispose()
    recording.flush()
    assert [each.key for each in inbox.refused(postgres.engine())] == ["k1"]
    assert closed == opened


def test_an_engine_that_is_disposed_of_during_the_write(postgres: Database) -> None:
    """The connection is on its way back when the pool is replaced."""
    engine = create_engine(postgres.url)
    closed: list[object] = []
    event.listen(engine, "close", lambda connection, _: closed.append(connection))
    event.listen(engine, "reset", lambda *_: engine.dispose(), once=True)
    in_background(engine, lambda connection: connection.scalar(text("SELECT 1")), is_over=lambda: False)
    assert closed
