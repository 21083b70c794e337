"""Invalid messages and options are rejected before anything is written, with an error that names them."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, delete, event, inspect
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from inbox.errors import InboxError, UnsupportedDatabase
from inbox.errors import InvalidOption as InboxInvalidOption
from inbox.errors import TablesMissing as InboxTablesMissing
from outbox import Message, Outbox, Relay, pause, schema
from outbox.errors import (
    InvalidMessage,
    InvalidOption,
    OutboxError,
    TablesMissing,
    UnusableConnection,
    WrongBucketCount,
)
from tests.exactly_once.test_bad_input import ADDRESS, SECRET
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import Recorder
from tests.support.published import TOPIC, WAYS, Way, texts, waiting

OUTBOX = Outbox()
ways = ["connection", "session", "session on a connection"]  # savepoints have a test of their own
every_way = [WAYS[name] for name in ways]


@pytest.fixture
def connection(migrated: Database) -> Iterator[Connection]:
    """A transaction in which a message is published afterwards, which shows that it is still usable."""
    with migrated.engine().begin() as connection:
        yield connection
        OUTBOX.publish(connection, TOPIC, "a")
    assert texts(migrated.engine()) == ["a"]


LONE = "\ud800"
BAD: list[tuple[dict[str, Any], str]] = [
    ({"topic": ""}, r"^topic='': 0 bytes of UTF-8, expected 1 to 249$"),
    ({"topic": "t" * 250}, r"^topic='t{79}: 250 bytes"),
    ({"topic": "ä" * 125}, r"^topic=.*: 250 bytes"),
    ({"topic": "a\0"}, r"^topic='a\\x00': contains a NUL"),
    ({"topic": LONE}, r"^topic=.*lone surrogate"),
    ({"topic": None}, "^topic=None: expected a string"),
    ({"topic": "*"}, r"^topic='\*': expected a topic's own name"),
    ({"topic": b"orders"}, "^topic=b'orders': expected a string"),
    ({"key": ""}, r"^key='': 0 bytes"),
    ({"key": "k" * 513}, r"^key=.*: 513 bytes of UTF-8, expected 1 to 512"),
    ({"key": "🙂" * 129}, r"^key=.*: 516 bytes"),
    ({"key": "a\0b"}, "^key=.*NUL"),
    ({"key": LONE}, "^key=.*lone surrogate"),
    ({"key": 7}, "^key=7: expected a string"),
    ({"key": ("a", "b")}, r"^key=\('a', 'b'\): expected a string"),
    ({"headers": "a"}, "^headers='a': expected a mapping"),
    ({"headers": ["a"]}, r"^headers=\['a'\]: expected a mapping"),
    ({"headers": {"a": 1}}, r"^headers\['a'\]=1: expected a string"),
    ({"headers": {"a": b"1"}}, r"^headers\['a'\]=b'1': expected a string"),
    ({"headers": {1: "a"}}, "^headers=1: expected a string"),
    ({"headers": {"": "a"}}, "^headers='': 0 bytes"),
    ({"headers": {"n" * 129: "a"}}, r"^headers='n{79}: 129 bytes of UTF-8, expected 1 to 128"),
    ({"headers": {"content-type": "text/plain"}}, r"^headers\['content-type'\]: publishers and"),
    ({"headers": {"outbox-key": "a"}}, r"^headers\['outbox-key'\]: publishers and consumers write"),
    ({"headers": {"inbox-id": "ann"}}, r"^headers\['inbox-id'\]: publishers and consumers write"),
    ({"id": "inbox-again-1"}, "^id='inbox-again-1': only what is delivered again"),
    ({"headers": {"a": "\0"}}, r"^headers\['a'\]=.*NUL"),
    ({"headers": {"a": LONE}}, r"^headers\['a'\]=.*lone surrogate"),
    (
        {"headers": {str(n): "v" * 8_000 for n in range(9)}},
        r"^headers of 72,\d{3} bytes: expected at most 65,536",
    ),
    ({"delay": -1}, "^delay=-1: expected zero or more"),
    ({"delay": timedelta(seconds=-1)}, "^delay=.*: expected zero or more"),
    ({"delay": float("nan")}, "^delay=nan"),
    ({"delay": float("inf")}, "^delay=inf"),
    ({"delay": timedelta.max}, "^delay="),
    ({"delay": "5"}, "^delay='5': expected seconds"),
    ({"delay": True}, "^delay=True: expected seconds"),
    ({"available_at": datetime(2026, 1, 1)}, "^available_at=.*: expected a datetime with a time zone"),  # noqa: DTZ001
    ({"available_at": "2026-01-01"}, "^available_at='2026-01-01': expected a datetime"),
    ({"available_at": 5}, "^available_at=5: expected a datetime"),
    ({"delay": 0, "available_at": datetime.now(UTC)}, "^delay=0, available_at=.*: expected at most one"),
    ({"content_type": ""}, "^content_type='': 0 bytes"),
    ({"content_type": "c" * 256}, "^content_type=.*256 bytes of UTF-8, expected 1 to 255"),
    ({"content_type": 1}, "^content_type=1: expected a string"),
]


@on("sqlite")
def test_invalid_messages(connection: Connection) -> None:
    """`publish` and `publish_many` raise an error that names the argument and its value, and the transaction
    stays usable."""
    for given, told in BAD:
        message: dict[str, Any] = {"topic": TOPIC, "payload": "never"} | given
        with case(given):
            with pytest.raises(InvalidOption, match=told) as caught:
                OUTBOX.publish(connection, **message)
            with pytest.raises(InvalidOption, match=told):
                OUTBOX.publish_many(connection, [Message(TOPIC, "never"), Message(**message)])
            assert isinstance(caught.value, OutboxError)
            assert isinstance(caught.value, InboxInvalidOption)
            assert isinstance(caught.value, ValueError)
            assert len(str(caught.value)) < 300


def fitting(total: int, names: list[str]) -> dict[str, str]:
    """Headers whose JSON has this many bytes in total."""
    overhead = 2 + len(names) * len('"n":"",') - 1
    share, rest = divmod(total - overhead, len(names))
    return {name: "v" * (share + (rest if name == names[0] else 0)) for name in names}


@spread("way", every_way)
def test_the_limits_themselves_are_taken(migrated: Database, way: Way) -> None:
    """A message at exactly the limits is accepted on every database, and is stored unchanged."""
    engine = migrated.engine()
    largest: dict[str, Any] = {
        "topic": "t" * 249,
        "key": "ä" * 256,
        "payload": b"p" * 1_000_000,
        "content_type": "c" * 255,
        "headers": fitting(65_536, ["a", "b"]),
    }
    with way(engine) as handle:
        OUTBOX.publish(handle, **largest)
        with pytest.raises(
            InvalidMessage, match="payload of 1,000,001 bytes: expected at most largest_payload=1,000,000"
        ):
            OUTBOX.publish(handle, **largest | {"payload": b"p" * 1_000_001})
        with pytest.raises(InvalidMessage, match="headers of 65,537 bytes"):
            OUTBOX.publish(handle, **largest | {"headers": fitting(65_537, ["a", "b"])})
        OUTBOX.publish(handle, "t", "p", key="k", headers={"n": ""}, content_type="c")
        Outbox(largest_payload=3).publish(handle, "t", "ppp")
        with pytest.raises(InvalidMessage, match="payload of 4 bytes: expected at most largest_payload=3"):
            Outbox(largest_payload=3).publish(handle, "t", "pppp")
    rows = waiting(engine)
    assert len(rows) == 3
    assert len(rows[0].payload) == 1_000_000
    assert (rows[0].topic, rows[0].key, rows[0].content_type) == ("t" * 249, "ä" * 256, "c" * 255)


def test_a_larger_limit_is_the_database_s(migrated: Database) -> None:
    """A larger `largest_payload` allows larger payloads."""
    engine = migrated.engine()
    with engine.begin() as connection:
        Outbox(largest_payload=5_000_000).publish(connection, TOPIC, b"p" * 5_000_000)
    assert [len(row.payload) for row in waiting(engine)] == [5_000_000]


@on("sqlite")
def test_only_messages_are_accepted(connection: Connection) -> None:
    """`publish_many` rejects anything that is not an instance of `Message`."""
    for given in (("orders", "a"), {"topic": "orders"}, "orders", None):
        with case(given), pytest.raises(InvalidMessage, match=r"^messages: .*: expected a Message"):
            OUTBOX.publish_many(connection, [Message(TOPIC, "never"), given])  # type: ignore[list-item]


WRONG_OPTIONS: list[dict[str, Any]] = [
    {"serializer": "json"},
    {"largest_payload": 0},
    {"largest_payload": 1.5},
    {"largest_payload": "1"},
    {"trace": 1},
    {"trace": None},
    {"wake": "no"},
    {"cloudevents": ""},
    {"cloudevents": "my shop"},
    {"cloudevents": "/ä"},
    {"cloudevents": "/%zz"},
    {"cloudevents": "1a:b"},
    {"cloudevents": ":b"},
    {"cloudevents": "/a#b#c"},
    {"cloudevents": "/shop", "event_type": ""},
    {"cloudevents": "/shop", "event_mode": "batch"},
    {"event_type": "order"},
    {"event_mode": "structured"},
    {"cloudevents": 1},
    {"cloudevents": "s" * 2_001},
    {"buckets": 0},
    {"buckets": True},
]


@pytest.mark.parametrize("given", WRONG_OPTIONS, ids=str)
def test_invalid_options(given: dict[str, Any]) -> None:
    """The constructor of `Outbox` raises an error that names the option and the value."""
    *_, (name, value) = given.items()
    with pytest.raises(InvalidOption, match=rf"^{name}=") as caught:
        Outbox(**given)
    assert repr(value)[:50] in str(caught.value)


def test_only_connections_and_sessions_are_accepted() -> None:
    """An Engine, a URL and other objects without a transaction of the caller are rejected: the error says
    what is expected, and contains no password."""
    engine = create_engine(ADDRESS)
    handles = [engine, ADDRESS, engine.url, sessionmaker(engine), None, create_async_engine(ADDRESS)]
    for handle in handles:
        for publish in (
            lambda handle: OUTBOX.publish(handle, TOPIC, "a"),
            lambda handle: OUTBOX.publish_many(handle, [Message(TOPIC, "a")]),
        ):
            with pytest.raises(
                InvalidOption, match=r"^connection=.*expected a Connection or a Session"
            ) as caught:
                publish(handle)
            assert SECRET not in str(caught.value)
    engine.dispose()


@on("sqlite")
def test_a_closed_connection_is_refused(migrated: Database) -> None:
    """A closed connection raises `UnusableConnection`, which is also SQLAlchemy's `InvalidRequestError`."""
    connection = migrated.engine().connect()
    connection.close()
    with pytest.raises(UnusableConnection, match="closed") as caught:
        OUTBOX.publish(connection, TOPIC, "a")
    assert isinstance(caught.value, InvalidRequestError)


def _by_engine_option(database: Database) -> Engine:
    return database.engine(isolation_level="AUTOCOMMIT")


def _by_execution_option(database: Database) -> Engine:
    return database.engine().execution_options(isolation_level="AUTOCOMMIT")


@spread("make", [_by_engine_option, _by_execution_option])
def test_autocommit_is_refused(migrated: Database, make: Callable[[Database], Engine]) -> None:
    """AUTOCOMMIT is rejected by `publish` itself, not only at the end of the block: there is no transaction
    that a message could join."""
    for name in ways:
        refused = pytest.raises(UnusableConnection, match=r"AUTOCOMMIT.*outbox row")
        with case(name), WAYS[name](make(migrated)) as handle, refused:
            OUTBOX.publish(handle, TOPIC, "never")
    assert texts(migrated.engine()) == []


def test_a_savepoint_that_would_commit_by_itself(migrated: Database) -> None:
    """Python's SQLite driver commits at the end of its outermost savepoint: a message there could not be
    rolled back, so it is rejected. On other databases it is accepted, and rolled back with the
    transaction."""
    engine = migrated.engine()
    with engine.connect() as connection:
        with connection.begin_nested():
            if migrated.name == "sqlite":
                for delay in (None, 60):
                    with pytest.raises(UnusableConnection, match="inside a savepoint"):
                        OUTBOX.publish(connection, TOPIC, "never", delay=delay)
            else:
                OUTBOX.publish(connection, TOPIC, "never")
        connection.rollback()
        OUTBOX.publish(connection, TOPIC, "1", key="k")
        with connection.begin_nested():
            OUTBOX.publish(connection, TOPIC, "2", key="k")
        connection.commit()
    assert texts(engine) == ["1", "2"]


def test_missing_tables_name_the_command_that_makes_them(database: Database) -> None:
    """On an empty database `publish` raises `TablesMissing`, which names the command to run; no table is
    created."""

    def publish(way: Way, engine: Engine) -> None:
        with way(engine) as handle:
            OUTBOX.publish(handle, TOPIC, "never")

    told = r"table outbox_\w+ is not in this database; create it with `inbox-outbox migrate"
    for name in ways:
        engine = database.engine()
        with case(name), pytest.raises(TablesMissing, match=told) as caught:
            publish(WAYS[name], engine)
        assert isinstance(caught.value, InboxTablesMissing)
        assert isinstance(caught.value, LookupError)
        assert inspect(engine).get_table_names() == []


def test_missing_tables_in_a_schema(postgres: Database) -> None:
    """The same for a schema that does not exist; tables in other schemas do not count."""
    with postgres.engine().connect() as connection, pytest.raises(TablesMissing, match=r"nowhere\.outbox_"):
        Outbox(schema="nowhere").publish(connection, TOPIC, "never")


@on("sqlite", "mariadb", "mysql")
def test_a_schema_where_there_are_none(migrated: Database) -> None:
    """Only PostgreSQL has schemas inside a database: on others every function rejects the option."""
    engine = migrated.engine()
    uses: list[Callable[[], object]] = [
        lambda: Relay(engine, Recorder(), schema="other"),
        lambda: pause(engine, "t", schema="other"),
    ]
    with engine.connect() as connection:
        uses.append(lambda: Outbox(schema="other").publish(connection, TOPIC, "never"))
        for use in uses:
            with pytest.raises(InvalidOption, match="schema='other': only PostgreSQL"):
                use()


def test_a_missing_business_table_is_the_callers_error(migrated: Database) -> None:
    """Only errors about the outbox's own tables are replaced: an error about a business table reaches the
    caller unchanged."""
    with Session(migrated.engine()) as session:
        OUTBOX.publish(session, TOPIC, "never")
        with pytest.raises(Exception, match="no_such_table") as caught:
            session.connection().exec_driver_sql("SELECT * FROM no_such_table")
    assert not isinstance(caught.value, InboxError)


@on("sqlite")
@pytest.mark.parametrize("way", every_way)
def test_another_number_of_buckets_is_refused(migrated: Database, way: Way) -> None:
    """A program that expects another number of buckets than the database has would break the order of keys:
    `publish` rejects it before anything is written. The right number is accepted, and so is an `Outbox` that
    expects none."""
    engine = migrated.engine()
    tables = schema.tables()
    with way(engine) as handle:
        Outbox(buckets=64).publish(handle, TOPIC, "a")
        for _ in range(2):
            with pytest.raises(WrongBucketCount, match="buckets=63: the database has 64"):
                Outbox(buckets=63).publish(handle, TOPIC, "never")
    with engine.begin() as connection:
        connection.execute(delete(tables.bucket).where(tables.bucket.c.bucket >= 32))
    other = migrated.engine()
    with way(other) as handle:
        with pytest.raises(WrongBucketCount, match="buckets=64: the database has 32"):
            Outbox(buckets=64).publish(handle, TOPIC, "never")
        Outbox(buckets=32).publish(handle, TOPIC, "b")
        Outbox().publish(handle, TOPIC, "c", key="order-42")
    rows = waiting(engine)
    assert [row.payload for row in rows] == [b"a", b"b", b"c"]
    assert rows[2].bucket == 30 % 32


@on("sqlite")
def test_the_buckets_are_counted_once(migrated: Database) -> None:
    """An `Outbox` queries the number of buckets once for each engine."""
    engine, outbox, asked = migrated.engine(), Outbox(), []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: object, __: object, statement: str, *___: object) -> None:
        asked.extend([statement] if "outbox_bucket" in statement else [])

    for _ in range(3):
        with engine.begin() as connection:
            outbox.publish(connection, TOPIC, "a")
    assert len(asked) == 1


def test_an_unknown_dialect_is_refused() -> None:
    """The error names the dialect and the supported ones."""
    engine = create_engine("other://")
    with engine.connect() as connection, pytest.raises(UnsupportedDatabase, match=r"dialect='other'.*sqlite"):
        OUTBOX.publish(connection, TOPIC, "never")
    engine.dispose()
