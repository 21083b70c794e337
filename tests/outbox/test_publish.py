"""Messages are written in the caller's transaction: they are sent if and only if it commits."""

import threading
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from inbox import migration
from inbox.schema import utcnow
from outbox import Message, Outbox, schema
from outbox._publishing.buckets import bucket_of
from outbox._publishing.ids import new_id
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on, spread
from tests.support.published import (
    TOPIC,
    WAYS,
    Handle,
    Way,
    break_off,
    relayed,
    texts,
    waiting,
)

pytestmark = pytest.mark.mysql

OUTBOX = Outbox()
KEYS = [
    "a",
    "A",
    "a ",
    " a",
    "Ä",
    "A\u0308",
    "ß",
    "ss",
    "K",
    "\u212a",
    "🙂",
    "a\tb",
    "a\nb",
    "'; --",
    "%s",
    "fi",
    "\ufb01",
]

every_way = spread("way", WAYS.values(), where=("sqlite", *WITH_WRITERS, "psycopg2", "mysqldb"))


@every_way
def test_committed_messages_are_sent(engine: Engine, way: Way) -> None:
    """Messages are sent after their transaction has committed, each once, in order."""
    with way(engine) as handle:
        accounts.add(handle)
        ids = [OUTBOX.publish(handle, TOPIC, text, key="k") for text in ("1", "2")]
        ids += OUTBOX.publish_many(handle, [Message(TOPIC, text, "k") for text in ("3", "4")])
    assert accounts.total(engine) == 1
    sent = relayed(engine)
    assert [(message.id, message.payload) for message in sent] == list(
        zip(ids, [b"1", b"2", b"3", b"4"], strict=True)
    )
    assert relayed(engine) == []


@every_way
def test_messages_of_a_rollback_are_not_sent(engine: Engine, way: Way) -> None:
    """An exception in the block rolls back the messages together with the business rows; later only what is
    published and committed afterwards is sent."""
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            break_off(way, engine, add_and_publish)
    with way(engine) as handle:
        OUTBOX.publish(handle, TOPIC, "ever", key="k")
    assert accounts.total(engine) == 0
    assert count(engine, "delayed") == 0
    assert texts(engine) == ["ever"]


def add_and_publish(handle: Handle) -> None:
    """Write a business row, and publish a message and a delayed one."""
    accounts.add(handle)
    OUTBOX.publish(handle, TOPIC, "never", key="k")
    OUTBOX.publish(handle, TOPIC, "never", delay=0.001)


@spread("way", WAYS.values(), where=WITH_WRITERS)
def test_nothing_is_sent_before_the_commit(engine: Engine, way: Way) -> None:
    """While the transaction is open, a relay finds nothing."""
    with way(engine) as handle:
        OUTBOX.publish(handle, TOPIC, "later", key="k")
        assert texts(engine) == []
    assert texts(engine) == ["later"]


@every_way
def test_many_in_one_call(engine: Engine, way: Way) -> None:
    """`publish_many` writes none, one or thousands of messages in order, and returns their ids in that
    order."""
    before = 0
    for size in (0, 1, 5_000):
        messages = [
            Message(TOPIC, str(number), f"key-{number % 7}", {"n": str(number)}) for number in range(size)
        ]
        with way(engine) as handle:
            ids = OUTBOX.publish_many(handle, iter(messages))
        rows = waiting(engine)[before:]
        assert [(row.id, row.payload.decode(), row.key) for row in rows] == [
            (id_, message.payload, message.key) for id_, message in zip(ids, messages, strict=True)
        ]
        assert len(set(ids)) == size
        before += size


@every_way
def test_many_are_all_or_none(engine: Engine, way: Way) -> None:
    """A batch writes nothing if one of its messages exceeds a limit, or if it is rolled back."""
    messages = [Message(TOPIC, "x")] * 100
    with way(engine) as handle, pytest.raises(ValueError, match="topic=''"):
        OUTBOX.publish_many(handle, [*messages, Message("", "x")])
    with pytest.raises(ZeroDivisionError):
        break_off(way, engine, lambda handle: OUTBOX.publish_many(handle, messages))
    assert texts(engine) == []


@on("sqlite")
def test_a_source_of_messages_that_raises_writes_nothing(engine: Engine) -> None:
    """`publish_many` reads all messages before it writes the first one."""
    with engine.begin() as connection, pytest.raises(ZeroDivisionError):
        OUTBOX.publish_many(connection, (Message(TOPIC, str(1 // number)) for number in (1, 0)))
    assert texts(engine) == []


@every_way
def test_every_key_comes_through_byte_for_byte(engine: Engine, way: Way) -> None:
    """Keys and topics that differ only in case, spaces or Unicode composition stay different, and are sent
    unchanged."""
    with way(engine) as handle:
        for key in KEYS:
            OUTBOX.publish(handle, f"topic {key}", key, key=key, headers={key: key, "empty": ""})
    sent = relayed(engine)
    assert sorted(message.key or "" for message in sent) == sorted(KEYS)
    for message in sent:
        assert message.key is not None
        assert message.topic == f"topic {message.key}"
        assert message.payload == message.key.encode()
        assert message.headers == {message.key: message.key, "empty": ""}


def test_what_an_envelope_says(engine: Engine) -> None:
    """An envelope has the topic, key, payload, content type and headers that were published, and the time of
    the database's clock."""
    with engine.connect() as connection:
        before = connection.scalar(select(utcnow()))
    payload = bytes(range(256)) * 20
    with engine.begin() as connection:
        id_ = OUTBOX.publish(connection, TOPIC, payload, headers={"a": "ä"}, content_type="image/png")
    (message,) = relayed(engine)
    assert (message.id, message.topic, message.key, message.payload) == (id_, TOPIC, None, payload)
    assert (message.content_type, message.headers, message.attempt) == ("image/png", {"a": "ä"}, 1)
    with engine.connect() as connection:
        after = connection.scalar(select(utcnow()))
    assert before is not None
    assert after is not None
    assert before <= message.created_at <= after
    assert message.created_at.tzinfo is UTC


def test_ids_are_unique_and_grow_with_time() -> None:
    """Ids are UUIDs of version 7: unique across threads, and their first 48 bits are the current time in
    milliseconds."""
    drawn: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda ids=ids: ids.extend(new_id() for _ in range(5_000))) for ids in drawn
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [UUID(each) for ids in drawn for each in ids]
    assert len(set(everything)) == 20_000
    assert {(each.version, each.variant) for each in everything} == {(7, UUID(int=0x8 << 60).variant)}
    assert all(str(UUID(each)) == each for each in drawn[0])
    for ids in drawn:
        milliseconds = [UUID(each).int >> 80 for each in ids]
        assert milliseconds == sorted(milliseconds)
    now = datetime.now(UTC).timestamp() * 1000
    assert abs((everything[-1].int >> 80) - now) < timedelta(hours=1).total_seconds() * 1000


@pytest.mark.parametrize(
    ("key", "bucket"),
    [("order-42", 30), ("a", 3), ("A", 11), ("Ä", 11), ("🙂", 41), ("x" * 512, 29)],
)
def test_the_bucket_of_a_key_never_changes(key: str, bucket: int) -> None:
    """The bucket of a key stays the same in all versions: otherwise old rows and old processes would break
    the order."""
    assert bucket_of(key, 64) == bucket


@on("sqlite")
def test_a_row_stands_in_the_bucket_of_its_key(engine: Engine) -> None:
    """All messages of a key are in one bucket; messages without a key are spread over the buckets."""
    with engine.begin() as connection:
        for _ in range(3):
            OUTBOX.publish(connection, TOPIC, "x", key="order-42")
        OUTBOX.publish(connection, TOPIC, "x", key="order-42", delay=60)
        ids = [OUTBOX.publish(connection, TOPIC, "x") for _ in range(200)]
    rows = waiting(engine)
    assert {row.bucket for row in rows if row.key} == {bucket_of("order-42", schema.BUCKETS)}
    assert {row.id: row.bucket for row in rows if row.key is None} == {
        id_: bucket_of(id_, schema.BUCKETS) for id_ in ids
    }
    with engine.connect() as connection:
        assert connection.scalars(select(schema.tables().delayed.c.bucket)).all() == [rows[0].bucket]


def test_in_a_schema(postgres: Database) -> None:
    """On PostgreSQL the tables can be in their own schema; tables in other schemas are not touched."""
    engine = postgres.engine()
    migration.migrate(engine, schema='Äpp "x"')
    there = Outbox(schema='Äpp "x"')
    with engine.begin() as connection:
        there.publish(connection, TOPIC, "there", key="k")
        OUTBOX.publish(connection, TOPIC, "here", key="k")
    with Session(engine) as session:
        there.publish(session, TOPIC, "there, too", key="k")
        session.commit()
    assert texts(engine, schema='Äpp "x"') == ["there", "there, too"]
    assert texts(engine) == ["here"]


@on("sqlite")
def test_a_scoped_session_is_the_session_of_its_scope(engine: Engine) -> None:
    """`publish` accepts a scoped_session, which is all that many applications have."""
    session = scoped_session(sessionmaker(engine))
    accounts.add(session())
    OUTBOX.publish(session, TOPIC, "a", key="k")
    OUTBOX.publish_many(session, [Message(TOPIC, "b", "k")])
    session.commit()
    OUTBOX.publish(session, TOPIC, "never")
    session.remove()
    assert accounts.total(engine) == 1
    assert texts(engine) == ["a", "b"]


def count(engine: Engine, table: str) -> int:
    """How many rows one of the outbox's tables has."""
    with engine.connect() as connection:
        chosen = getattr(schema.tables(), table)
        return connection.execute(select(func.count()).select_from(chosen)).scalar_one()
