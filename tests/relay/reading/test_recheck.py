"""PostgreSQL: sequences that were drawn in ways a relay cannot see hide no message from it."""

import logging
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, insert, select, update

from inbox_outbox_base.databases.letter import Place
from inbox_outbox_base.databases.postgresql.relaying import PostgreSQLRelaying
from inbox_outbox_base.databases.relaying import Scan
from outbox import Relay, Unavailable, retry
from outbox._relaying import strays
from outbox._relaying.reading import recheck
from outbox._relaying.settings import RelaySettings
from outbox.errors import UnsafeSequence
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.outages import END_OTHERS
from tests.support.outbox_publishers import ACCEPTED, TABLES, Recorder, accept, count, publish, waiting
from tests.support.processes import wait_until
from tests.support.together import Task

DEAD_ROWS = 20_000


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays of this process tend their buckets and recheck the table all the time."""
    monkeypatch.setattr(RelaySettings, "tend_every", 0)
    monkeypatch.setattr(recheck, "EVERY", 0.1)
    monkeypatch.setattr(recheck, "_STEP", 0)


Marks = dict[int, int]
"""A relay's marks, by bucket."""


@contextmanager
def running(engine: Engine, publisher: Recorder, **options: Any) -> Iterator[Marks]:
    """Run a relay; yield the marks below which it last searched for overlooked messages. The engine is the
    relay's own: on a new connection a relay forgets its marks."""
    marks: Marks = {}

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if "message.ctid" in statement:
            marks.update(zip(numbers_in(parameters["buckets"]), numbers_in(parameters["marks"]), strict=True))

    relay = Relay(engine, publisher, poll=0.02, **options)
    task = Task(relay.run)
    try:
        yield marks
    finally:
        relay.stop()
        task.result()


def draw_many_at_a_time(engine: Engine, cached: int) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER SEQUENCE outbox_message_sequence_seq CACHE {cached}")


def test_a_sequence_with_a_cache_is_refused(postgres: Database) -> None:
    """A relay does not start if the sequence has a cache: the error names the table, the cache and the
    remedy, and nothing is sent."""
    engine = postgres.engine()
    draw_many_at_a_time(engine, 50)
    publish(engine, "a1")
    publisher = Recorder()
    relay = Relay(engine, publisher)
    for begin in (relay.run_once, relay.run):
        with pytest.raises(UnsafeSequence, match=r"outbox_message\.sequence has CACHE 50.*CACHE 1"):
            begin()
    assert not publisher.sent
    assert count(engine, TABLES.relay) == 0
    draw_many_at_a_time(engine, 1)
    assert relay.run_once() == 1


def test_a_sequence_that_is_given_a_cache(postgres: Database) -> None:
    """A running relay ends with the same error when the sequence gets a cache; what it has sent is recorded,
    and its buckets are free."""
    engine = postgres.engine()
    publisher = Recorder()
    relay = Relay(engine, publisher)
    task = Task(relay.run)
    publish(engine, "a1")
    wait_until(lambda: publisher.sent)
    draw_many_at_a_time(engine, 50)
    with pytest.raises(UnsafeSequence, match="CACHE 50"):
        task.result()
    assert not waiting(engine)
    assert count(engine, TABLES.relay) == 0


@pytest.mark.parametrize("is_reconnected", [False, True])
def test_a_sequence_behind_the_messages_is_refused(postgres: Database, is_reconnected: bool) -> None:
    """After a copy of the rows without their sequence, a relay does not start, and a running one ends, even
    if it gets a new connection at that moment: the error has the statement that repairs it. Nothing is sent
    before."""
    engine = postgres.engine()
    publish(engine, "a1", "a2", "b1")
    set_back = "SELECT setval('outbox_message_sequence_seq', 1, false)"
    with engine.begin() as connection:
        connection.exec_driver_sql(set_back)
    publisher = Recorder({"a4": [Unavailable("away")] * 100})
    relay = Relay(engine, publisher)
    for begin in (relay.run_once, relay.run):
        with pytest.raises(UnsafeSequence, match="is at 0, but there are rows up to 3") as raised:
            begin()
    assert not publisher.sent
    assert count(engine, TABLES.relay) == 0
    (repair,) = re.findall(r"SELECT setval\(.*?\)", str(raised.value))
    with engine.begin() as connection:
        connection.exec_driver_sql(repair)
    publish(engine, "a3", "a4")
    task = Task(relay.run)
    wait_until(lambda: publisher.of("a") == ["a1", "a2", "a3"])
    with engine.begin() as connection:
        connection.exec_driver_sql(set_back)
        if is_reconnected:
            connection.exec_driver_sql(END_OTHERS)
    with pytest.raises(UnsafeSequence, match="there are rows up to 5"):
        task.result()


@pytest.mark.parametrize("size", [1, 2_000])
def test_two_messages_with_one_number(postgres: Database, size: int) -> None:
    """After a copy of rows, messages of several buckets have the same numbers: each is sent with its own
    payload, large ones too, those of a key in their order, and one that cannot be sent hides no other."""
    engine = postgres.engine()
    names = {each: each + "." * size for each in ("a1", "a2", "b1", "b2", "c1", "c2")}
    publisher = Recorder(lambda each: Unavailable("away") if each.topic == "away" else ACCEPTED)
    publish(engine, names["a1"], names["a2"])
    used = waiting(engine)[names["a1"]].bucket
    copy(engine, {1: names["b1"], 2: names["b2"]}, (used + 1) % BUCKETS)
    copy(engine, {1: names["c1"], 2: names["c2"]}, (used + 2) % BUCKETS, topic="away")
    relay = Relay(engine, publisher, poll=0.02, batch=16_000)
    task = Task(relay.run)
    wait_until(lambda: [*waiting(engine)] == [names["c1"], names["c2"]])
    publisher.answer = accept
    wait_until(lambda: not waiting(engine))
    relay.stop()
    task.result()
    for key in "abc":
        assert publisher.of(key) == [names[f"{key}1"], names[f"{key}2"]]


@pytest.mark.usefixtures("often")
def test_a_bucket_that_does_not_exist_has_the_same_number(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copied message of a bucket that does not exist waits while its key's bucket has another message with
    its number; the relay goes on."""
    monkeypatch.setattr(strays, "_EVERY", 0.1)
    engine = postgres.engine()
    publisher = Recorder(lambda each: Unavailable("away") if each.topic == "away" else ACCEPTED)
    publish(engine, "a1", "b1", topic="away")
    copy(engine, {1: "a2", 2: "c1"}, 1_000)
    with running(postgres.engine(), publisher):
        wait_until(lambda: set(waiting(engine)) == {"a1", "a2", "b1"})
        publisher.answer = accept
        wait_until(lambda: not waiting(engine))
    assert publisher.of("a") == ["a1", "a2"]


def test_what_is_asked_of_two_messages_with_one_number(postgres: Database) -> None:
    """The same for what a relay asks about rows: each answer is that of the bucket."""
    engine, database = postgres.engine(), PostgreSQLRelaying(TABLES)
    copy(engine, {1: "a1"}, 0)
    copy(engine, {1: "b1"}, 1)
    hold(engine, 1)
    places: list[Place] = [(0, 1), (1, 1)]
    with engine.begin() as connection:
        letters = database.fetch(connection, places, 10)
        assert {each.bucket: each.payload for each in letters} == {0: b"a1", 1: b"b1"}
        assert database.payloads(connection, letters) == {(0, 1): b"a1", (1, 1): b"b1"}
        assert database.progress(connection, places) == {(0, 1): 0, (1, 1): math.inf}
        known = Scan([(0, 0), (1, 0)], 10, 10, {0: [1]}, [], 10)
        assert [each.bucket for each in database.scan(connection, known).letters] == [1]


@pytest.mark.usefixtures("often")
def test_a_message_with_a_low_number(postgres: Database, caplog: pytest.LogCaptureFixture) -> None:
    """Rows that appear below messages sent long ago are sent too, in the order of their sequences within a
    key, and are counted in the log."""
    engine = postgres.engine()
    publisher = Recorder()
    with caplog.at_level(logging.WARNING, "outbox.relay"), running(postgres.engine(), publisher) as marks:
        let_numbers_grow(engine, publisher, marks)
        copy(engine, {2: "a2", 1: "a1", 3: "b1"})
        wait_until(lambda: not waiting(engine))
    assert publisher.of("a") == ["a1", "a2"]
    assert publisher.of("b") == ["b1"]
    found = re.findall(r"(\d+) messages had been overlooked, in buckets ([\d, ]+), and", caplog.text)
    assert sum(int(number) for number, _ in found) == 3


@pytest.mark.usefixtures("often")
def test_numbers_that_a_session_has_left(postgres: Database) -> None:
    """The sequence had a cache for a while, and one program still uses sequences of that time after all
    others have moved on: its messages are sent."""
    engine, other = postgres.engine(), postgres.engine(pool_size=1)
    draw_many_at_a_time(engine, 50)
    publish(other, "a1")
    draw_many_at_a_time(engine, 1)
    publisher = Recorder()
    with running(postgres.engine(), publisher) as marks:
        let_numbers_grow(engine, publisher, marks)
        publish(other, "a2", "b1")
        wait_until(lambda: not waiting(engine))
    assert publisher.of("a") == ["a1", "a2"]


@pytest.mark.usefixtures("often")
def test_behind_a_message_that_is_held(postgres: Database) -> None:
    """The same where scans of a bucket start behind a held message: that message keeps waiting for an
    operator, and no message of its key overtakes it."""
    engine = postgres.engine()
    publish(engine, "a1")
    hold(engine)
    publisher = Recorder()
    bucket = waiting(engine)["a1"].bucket
    with running(postgres.engine(), publisher, after_dead="hold") as marks:
        let_numbers_grow(engine, publisher, marks, held=bucket)
        copy(engine, {5: "z1", 6: "a2"}, bucket)
        wait_until(lambda: publisher.of("z") == ["z1"])
        copy(engine, {1: "y1"}, (bucket + 1) % BUCKETS)  # it has the number of the message that is held
        wait_until(lambda: publisher.of("y") == ["y1"])
        time.sleep(0.5)
        assert list(waiting(engine)) == ["a1", "a2"]
        retry(engine, waiting(engine)["a1"].id)
        wait_until(lambda: not waiting(engine))
    assert publisher.of("a") == ["a1", "a2"]


@pytest.mark.usefixtures("often")
def test_dead_rows_are_read_a_few_at_a_time(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an old transaction prevents vacuum from removing the rows of sent messages, a recheck reads each
    page about once, in several steps."""
    monkeypatch.setattr(recheck, "_LEAST_PAGES", 50)
    monkeypatch.setattr(recheck, "_STEPS", 4)
    engine, relays = postgres.engine(), postgres.engine()
    asked: dict[str, tuple[str, Any]] = {}

    @event.listens_for(relays, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if "ctid" in statement:
            asked[parameters["first"]] = (statement, parameters)

    with postgres.engine().connect().execution_options(isolation_level="REPEATABLE READ") as old:
        old.execute(select(func.count()).select_from(TABLES.message))
        publisher = Recorder()
        with running(relays, publisher) as marks:
            publish(engine, *(f"-{number}" for number in range(DEAD_ROWS)))
            wait_until(lambda: not waiting(engine))
            let_numbers_grow(engine, publisher, marks)
            asked.clear()
            wait_until(lambda: len(asked) >= 4)
            steps = [*asked.values()][:4]  # a later pass may divide the pages differently
        pages = pages_of(postgres.engine())
        plans = [explained(postgres.engine(), *each) for each in steps]
    assert all("Tid Range Scan" in str(plan) for plan in plans)
    assert max(buffers(plan) for plan in plans) < pages / 2
    assert sum(buffers(plan) for plan in plans) < 1.5 * pages


def let_numbers_grow(engine: Engine, publisher: Recorder, marks: Marks, held: int | None = None) -> None:
    """Have messages sent until the relay's marks are above the first messages, except in the bucket of a held
    one."""
    publish(engine, *(f"-{number}" for number in range(5 * BUCKETS)))
    with engine.connect() as connection:
        number = connection.exec_driver_sql("SELECT last_value FROM outbox_message_sequence_seq").scalar_one()
    for _ in range(2):
        expected = len(publisher.accepted) + 5 * BUCKETS
        publish(engine, *(f"-{number}" for number in range(5 * BUCKETS)))
        wait_until(lambda: len(publisher.accepted) >= expected)  # noqa: B023 - it is called at once
    wait_until(lambda: all(marks.get(each, 0) >= number for each in range(BUCKETS) if each != held))


def numbers_in(array: str) -> list[int]:
    return [int(each) for each in array.strip("{}").split(",")]


def copy(engine: Engine, names: dict[int, str], bucket: int = 0, topic: str = "orders") -> None:
    """Insert messages with these sequences."""
    rows = [
        {
            "bucket": bucket,
            "sequence": number,
            "id": f"copy-{name[:2]}",
            "key": name[0],
            "payload": name.encode(),
            "topic": topic,
            "content_type": "text/plain",
        }
        for number, name in names.items()
    ]
    with engine.begin() as connection:
        connection.execute(insert(TABLES.message), rows)


def hold(engine: Engine, bucket: int | None = None) -> None:
    """Make all messages, or those of a bucket, held ones, which wait for an operator."""
    chosen = update(TABLES.message).values(state="held", error="no")
    if bucket is not None:
        chosen = chosen.where(TABLES.message.c.bucket == bucket)
    with engine.begin() as connection:
        connection.execute(chosen)


def pages_of(engine: Engine) -> int:
    with engine.connect() as connection:
        size = connection.exec_driver_sql("SELECT pg_relation_size('outbox_message') / 8192")
        return int(size.scalar_one())


def explained(engine: Engine, statement: str, parameters: Any) -> Any:
    """The plan with which a statement ran."""
    with engine.connect() as connection:
        asked = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
        return connection.exec_driver_sql(asked, parameters).scalar_one()[0]["Plan"]


def buffers(plan: Any) -> int:
    """How many pages the plan read."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.usefixtures("often")
def test_a_look_that_always_fails(postgres: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A recheck that always fails is logged once a minute; the relay goes on, and keeps trying."""
    engine, relays = postgres.engine(), postgres.engine()
    failed: list[str] = []

    @event.listens_for(relays, "before_cursor_execute", retval=True)
    def fail(*args: Any) -> tuple[str, Any]:
        if "message.ctid" not in args[2]:
            return args[2], args[3]
        failed.append(args[2])
        return "SELECT 1 / 0", None

    publisher = Recorder()
    with caplog.at_level(logging.WARNING, "outbox.relay"), running(relays, publisher):
        publish(engine, "a1")
        wait_until(lambda: len(failed) >= 3)
        publish(engine, "a2")
        wait_until(lambda: publisher.of("a") == ["a1", "a2"])
    assert caplog.text.count("the search for overlooked messages failed: ") == 1
