"""What a KafkaConsumer runs, in which order, and what it commits: with a real Kafka and an inbox on
PostgreSQL."""

import json
import re
import struct
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from inbox import Delivery, Outcome, Verdict, message_key
from outbox import Outbox, Relay
from outbox.kafka import KafkaPublisher
from tests.support.brokers import kafka_native
from tests.support.brokers.consumers import Counted, running, taking
from tests.support.brokers.kafka_consumers import applied, applied_by_key, applying, consumer, make_table
from tests.support.brokers.kafka_topics import Topics, id_of, wait_until
from tests.support.database import Database
from tests.support.listeners import Fault

pytest_plugins = ["tests.support.brokers.kafka_fixtures"]


def test_from_the_outbox_to_the_inbox(topics: Topics, postgres: Database) -> None:
    """A message of a committed transaction takes effect once; a message that was rolled back never does."""
    engine, topic = postgres.engine(), topics.new(partitions=2)
    make_table(engine)
    for number in range(20):
        with engine.connect() as connection:
            for key in "ab":
                Outbox().publish(connection, topic, f"{key}-{number}", key=key)
            if number % 4:
                connection.commit()
    sender = KafkaPublisher({"bootstrap.servers": topics.address})
    Relay(engine, sender).run_once()
    sender.close()
    with running(consumer(topics.address, topic, applying(engine))):
        wait_until(lambda: len(applied(engine)) >= 30)
    expected = {key: [f"{key}-{number}" for number in range(20) if number % 4] for key in "ab"}
    assert applied_by_key(engine) == expected


def test_records_of_others(topics: Topics) -> None:
    """A record that no outbox has sent gets an id that begins with its place in Kafka, and Kafka's time. A
    record without a value is a tombstone, and what is not valid UTF-8 becomes text with escapes."""
    topic, seen = topics.new(), list[Delivery]()
    before = datetime.now(UTC).timestamp()
    topics.put(topic, "a", key="k", note="größer")
    topics.put_raw(topic, None, b"\xff")
    topics.put_raw(topic, b"b", b"\xfe", {"outbox-created-at": b"yesterday", "empty": None, "odd": b"\xfd"})

    with running(consumer(topics.address, topic, taking(seen.append))):
        wait_until(lambda: len(seen) >= 3)
    assert [each.id.rpartition("-")[0] for each in seen] == [f"{topic}-0-{offset}" for offset in range(3)]
    assert [each.place for each in seen] == [f"{topic} [0] at {offset}" for offset in range(3)]
    assert [each.payload for each in seen] == [b"a", None, b"b"]
    octets = "application/octet-stream"
    assert [each.content_type for each in seen] == [octets, "", octets]
    assert all(each.created_at and each.created_at.timestamp() > before - 60 for each in seen)
    assert [each.key for each in seen] == ["k", "\\xff", "\\xfe"]
    assert [dict(each.headers) for each in seen] == [{"note": "größer"}, {}, {"empty": "", "odd": "\\xfd"}]


def test_a_topic_that_is_created_again(topics: Topics, postgres: Database) -> None:
    """Records of other producers are taken once each, although a topic that is deleted and created again has
    other records in the same places, and a record that is delivered again is a duplicate."""
    engine, topic = postgres.engine(), topics.new()
    make_table(engine)

    def deliver(count: int, group: str) -> None:
        handler = Counted(applying(engine))
        with running(consumer(topics.address, topic, handler, group)):
            wait_until(lambda: handler.count >= count)

    for turn, values in enumerate((["a", "b"], ["b", "a", "c"])):
        if turn:
            topics.make_again(topic)
        topics.put(topic, *values, note="n")
        deliver(len(values), "payments")
        deliver(len(values), f"again-{turn}")
    assert applied(engine) == ["a", "b", "b", "a", "c"]


def test_binary_keys(topics: Topics, postgres: Database) -> None:
    """Keys that are not text, such as those of Avro's serializers and Java's longs, are taken, each as a key
    of its own."""
    engine, topic = postgres.engine(), topics.new()
    make_table(engine)
    keys = [b"\0\0\0\0\7order-1", struct.pack(">q", 42), b"\xff\xfe", b"\xff\\xfe", b"\\", b"plain"]
    keys += [b"a\0b", rb"a\x00b", rb"\=a\x00b"]  # text that looks like the form of a binary key
    for key in keys:
        topics.put_raw(topic, b"1", key)
        topics.put_raw(topic, b"2", key, {"note": b"\0"})
    with running(consumer(topics.address, topic, applying(engine, key=message_key))):
        wait_until(lambda: len(applied(engine)) >= len(keys))
    long = "\\x00" * 7 + "*"
    shown = ["\\x00\\x00\\x00\\x00\aorder-1", long, "\\xff\\xfe", "\\xff\\\\xfe", "\\", "plain"]
    shown += ["a\\x00b", "\\=a\\x00b", "\\=\\=a\\x00b"]
    assert applied_by_key(engine) == {key: ["1"] for key in shown}


def test_what_no_python_producer_would_write(topics: Topics) -> None:
    """Timestamps in micro- and nanoseconds are understood, one before the year 1 is ignored, and a
    record with a header name that is not valid UTF-8 has no headers. No record stops its partition or the
    consumer."""
    topic, seen = topics.new(message_timestamp_after_max_ms=str(2**63 - 1)), list[Delivery]()
    topics.put(topic, *(["common"] * 100), a="b")  # warms up the interpreter, whose faster code checks less
    now = time.time_ns()
    for timestamp in (now // 1_000_000, now // 1_000, now, -(2**62)):
        topics.put_raw(topic, b"a", timestamp=timestamp)
    kafka_native.put(topics.address, topic, b"b", "größe".encode("latin-1"))
    topics.put(topic, "end")

    with running(consumer(topics.address, topic, taking(seen.append))):
        wait_until(lambda: len(seen) >= 106)
    seen = seen[100:]
    times = [each.created_at for each in seen]
    assert times[0] is not None
    assert times[1:4] == [times[0], times[0], None]
    assert [each.payload for each in seen[4:]] == [b"b", b"end"]
    assert seen[4].headers == {}


def test_those_behind_a_failure_wait(topics: Topics, postgres: Database) -> None:
    """A message that fails twice and then succeeds blocks later messages of its partition, but no other
    partition. Its attempts are counted."""
    engine, topic, attempts = postgres.engine(), topics.new(partitions=2), list[int]()
    make_table(engine)
    is_other_done = threading.Event()

    def fail_twice(delivery: Delivery) -> None:
        if delivery.payload == b"other":
            is_other_done.set()
        if delivery.payload == b"b":
            attempts.append(delivery.attempt)
            if delivery.attempt < 3:
                assert is_other_done.wait(30)
                raise Fault("not yet")

    topics.put_raw(topic, b"other", partition=1)
    for value in b"abcd":
        topics.put_raw(topic, bytes([value]), b"k", partition=0)
    with running(consumer(topics.address, topic, applying(engine, before=fail_twice))):
        wait_until(lambda: len(applied(engine)) >= 5)
    assert applied_by_key(engine)["k"] == ["a", "b", "c", "d"]
    assert attempts == [1, 2, 3]
    assert topics.committed("payments", topic) == {0: 4, 1: 1}


def test_events_of_other_producers(topics: Topics) -> None:
    """A CloudEvent is identified by its source and id, in both content modes, so one that is sent twice is
    one message. Other records are identified by their place and contents."""
    topic = topics.new()
    named = [("/a", "b"), ("/a", "b"), ('/a"', ",b"), ("/a", "x" * 600), ("/a", "x" * 599 + "y"), ("", "b")]
    binary = [{"ce_specversion": "1.0", "ce_source": source, "ce_id": each} for source, each in named]
    headers = [*binary, {"ce_source": "/a", "ce_id": "b"}]
    structured: list[Any] = [{"source": "/a", "id": "b"}, {"source": "/a", "id": 1}, ["/a"]]
    kind: dict[str, bytes | None] = {"content-type": b"application/cloudevents+json; charset=utf-8"}
    for each in headers:
        topics.put(topic, "1", **each)
    for value in structured:
        topics.put_raw(topic, json.dumps(value).encode(), headers=kind)
    topics.put_raw(topic, b"{", headers=kind)
    ids = [re.sub("-[0-9a-f]{32}$", "", id_of(record)) for record in topics.log(topic)]
    places = [f"{topic}-0-{number}" for number in range(11)]
    assert ids[:3] == ['["/a","b"]', '["/a","b"]', '["/a\\"",",b"]']
    assert ids[3] != ids[4]
    assert max(map(len, ids)) < 128
    assert ids[5:7] == places[5:7]
    assert ids[7:] == ['["/a","b"]', *places[8:]]


def test_a_long_handler_stays_in_its_group(topics: Topics) -> None:
    """A handler that takes longer than `max.poll.interval.ms` keeps its partition: nothing is delivered
    twice."""
    topic, begun, ended = topics.new(), list[bytes](), list[bytes]()

    def take_long(delivery: Delivery) -> Outcome:
        begun.append(delivery.payload)
        if delivery.payload == b"long":
            time.sleep(5)
        ended.append(delivery.payload)
        return Outcome(Verdict.NEW)

    topics.put(topic, "long", "b")
    settings = {"max.poll.interval.ms": 2_000}
    with running(consumer(topics.address, topic, take_long, batch=1, config=settings, grace=1)):
        wait_until(lambda: b"b" in ended)
    assert begun == [b"long", b"b"]
    assert topics.committed("payments", topic) == {0: 2}


def test_concurrency_by_key(topics: Topics, postgres: Database) -> None:
    """With `key`, messages with different keys run at the same time within a partition, and messages with the
    same key run in order."""
    engine, topic = postgres.engine(pool_size=8), topics.new()
    make_table(engine)
    side_by_side, most = list[str](), list[int]()

    def note(delivery: Delivery) -> None:
        side_by_side.append(delivery.id)
        time.sleep(0.02)
        most.append(len(side_by_side))
        side_by_side.remove(delivery.id)

    written = topics.put_by_key(topic, "abc", each=20)
    with running(
        consumer(topics.address, topic, applying(engine, before=note), key=message_key, concurrency=3)
    ):
        wait_until(lambda: len(applied(engine)) >= 60)
    assert applied_by_key(engine) == written
    assert max(most) == 3


@pytest.mark.parametrize("size", [10, 100_000], ids=["many", "large"])
def test_more_than_it_holds(topics: Topics, size: int) -> None:
    """A consumer that is slower than its topic fetches as much as it can hold, by number or by size, and the
    rest later."""
    topic, taken = topics.new(), list[bytes]()
    count = 25_000 if size == 10 else 400
    written = [f"{number:0{size}}" for number in range(count)]
    topics.put(topic, *written)

    def take(delivery: Delivery) -> Outcome:
        taken.append(delivery.payload)
        return Outcome(Verdict.NEW)

    with running(consumer(topics.address, topic, take, batch=50)):
        wait_until(lambda: len(taken) >= count)
    assert [payload.decode() for payload in taken] == written
