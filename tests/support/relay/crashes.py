"""What the tests with several relays share: business rows on both sides of an outbox, and between them a
broker that is a table, so that it loses nothing and records the order of arrival."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    create_engine,
    func,
    insert,
    select,
)
from sqlalchemy.exc import DBAPIError

from inbox import Inbox
from outbox import Accepted, Envelope, Message, Outbox, Outcome, Relay, Unknown
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, Recorder, count
from tests.support.together import Task

TOPIC = "orders"
PATIENCE = 60
"""Seconds that SQLite waits for its lock."""
METADATA = MetaData()


def _table(name: str, *columns: Column[Any]) -> Table:
    return Table(name, METADATA, Column("n", Integer, primary_key=True), *columns, mysql_engine="InnoDB")


def _what() -> list[Column[Any]]:
    return [Column("key", String(64)), Column("number", Integer)]


MADE = _table("made", *_what())
"""What the producers did: a row in the transaction of each message."""
ARRIVAL = _table(
    "arrival",
    *_what(),
    Column("message", String(36)),
    Column("relay", String(64)),
    Column("attempt", Integer),
)
"""What the broker was sent, in its order, every copy."""
TAKEN = _table("taken", *_what())
"""What the consumer did: but for the inbox, nothing keeps it from doing it twice."""


def open_engine(url: URL) -> Engine:
    """An engine on any of the databases, for several processes and threads; nobody closes it."""
    return create_engine(url, **_options(url))


def engine_of(database: Database) -> Engine:
    """The same for a test, whose database closes it."""
    return database.engine(**_options(database.url))


def _options(url: URL) -> dict[str, Any]:
    return {"connect_args": {"timeout": PATIENCE}} if url.get_backend_name() == "sqlite" else {}


def produce(
    connection: Connection, numbers: Iterable[int], keys: Sequence[str], topic: str = TOPIC
) -> list[str]:
    """Write a business row for each number and key, with a message about it; return the messages' ids."""
    done = [{"key": key, "number": number} for number in numbers for key in keys]
    connection.execute(insert(MADE), done)
    return Outbox().publish_many(
        connection, [Message(topic, str(each["number"]), str(each["key"])) for each in done]
    )


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a message in a broker."""

    key: str
    number: int
    message: str


def copy_in_rabbit(message: Any) -> Copy:
    """The copy that RabbitMQ received."""
    properties = message.header.properties
    return Copy(properties.headers["outbox-key"], int(message.body), properties.message_id)


class Post:
    """A publisher whose broker is the table of arrivals: a message is accepted when its row is committed."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Accept a batch; if the connection breaks, the outcome is unknown."""
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(ARRIVAL), [self._row(each) for each in batch])
        except DBAPIError as error:
            return [Unknown(type(error).__name__)] * len(batch)
        return [Accepted()] * len(batch)

    def _row(self, message: Envelope) -> dict[str, Any]:
        said = {"key": message.key, "number": int(message.payload), "message": message.id}
        return said | {"relay": self._name, "attempt": message.attempt}


class Paused(Recorder):
    """A publisher that does not answer before the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end = threading.Event(), threading.Event()

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Accept a batch."""
        self.begun.set()
        assert self.may_end.wait(60)
        return super().send(batch)


def take(engine: Engine, copy: Any) -> None:
    """Take one copy of a message that has arrived, through an inbox."""

    @Inbox("orders", wait=30).handler(engine, key=lambda copy: str(copy.message))
    def handle(connection: Connection, copy: Any) -> None:
        connection.execute(insert(TAKEN), {"key": copy.key, "number": copy.number})

    handle(copy)


def arrivals(engine: Engine, after: int = 0) -> list[Row[Any]]:
    """Every copy that the broker received, in order."""
    with engine.connect() as connection:
        return list(connection.execute(select(ARRIVAL).where(ARRIVAL.c.n > after).order_by(ARRIVAL.c.n)))


def newest(engine: Engine) -> int:
    """The number of the last copy that the broker received."""
    with engine.connect() as connection:
        return int(connection.execute(select(func.coalesce(func.max(ARRIVAL.c.n), 0))).scalar_one())


def assert_exact(engine: Engine, copies: Iterable[Any] | None = None) -> None:
    """Assert that every message was taken once, and nothing else; that the first copies of each key came in
    order; and that the outbox is empty. `copies` are the copies that the broker received, if not the
    arrivals."""
    made, taken = _done(engine, MADE), _done(engine, TAKEN)
    assert taken == made, f"lost: {made - taken}, too many: {taken - made}"
    for key, numbers in _first_appearances(copies or arrivals(engine)).items():
        assert numbers == sorted(numbers), key
    assert [count(engine, table) for table in (TABLES.message, TABLES.dead)] == [0, 0]


def ownership(engine: Engine) -> Counter[int | None]:
    """The number of buckets of each relay, by epoch, and of nobody, at one instant; relays without a bucket
    are included."""
    bucket, relay = TABLES.bucket.c, TABLES.relay.c
    both = TABLES.bucket.outerjoin(TABLES.relay, bucket.epoch == relay.epoch)
    owned = select(bucket.epoch, relay.epoch.label("relay")).select_from(both)
    with engine.connect() as connection:
        rows = connection.execute(owned).all()
    assert all(row.relay == row.epoch for row in rows), "a bucket belongs to a relay that is gone"
    return Counter(row.epoch for row in rows)


def is_shared(engine: Engine, relays: int) -> bool:
    """Whether this many relays have all the buckets, each its share."""
    owned = ownership(engine)
    return None not in owned and len(owned) == relays and max(owned.values()) - min(owned.values()) <= 1


@contextmanager
def running(*relays: Relay) -> Iterator[None]:
    """Run relays, each in its own thread, until the block ends."""
    tasks = [Task(relay.run) for relay in relays]
    try:
        yield
    finally:
        for relay in relays:
            relay.stop()
        for task in tasks:
            task.result()


def _first_appearances(copies: Iterable[Any]) -> dict[str, list[int]]:
    """For each key, the numbers of its messages in the order of their first copies."""
    appeared: dict[str, dict[str, int]] = defaultdict(dict)
    for copy in copies:
        appeared[copy.key].setdefault(copy.message, copy.number)
    return {key: list(numbers.values()) for key, numbers in appeared.items()}


def _done(engine: Engine, table: Table) -> Counter[tuple[str, int]]:
    with engine.connect() as connection:
        rows = connection.execute(select(table.c.key, table.c.number))
        return Counter((row.key, row.number) for row in rows)
