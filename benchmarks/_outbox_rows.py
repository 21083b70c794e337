"""Fills outboxes quickly: rows as `Outbox.publish` writes them, made by the server."""

from collections.abc import Sequence

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    cast,
    func,
    insert,
    literal,
    null,
    select,
)

from outbox import Accepted, Envelope, Outcome
from outbox._publishing.buckets import bucket_of
from outbox.schema import BUCKETS, tables

SIZE = 300
"""Bytes in a payload."""
PAYLOAD = b"x" * SIZE
TOPIC = "orders"
ACCEPTED = Accepted()
_keys = Table(
    "benchmark_key",
    MetaData(),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("bucket", Integer, nullable=False),
)
_COLUMNS = ("bucket", "id", "topic", "key", "payload", "content_type")


class Counting:
    """A publisher that accepts and counts all messages."""

    def __init__(self) -> None:
        self.count = 0

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Accept all."""
        self.count += len(batch)
        return [ACCEPTED] * len(batch)


def fill(connection: Connection, rows: int, *, has_keys: bool = True) -> None:
    """Insert `rows` messages, each with its own key or without one, spread over all buckets."""
    number = func.generate_series(1, bindparam("rows")).column_valued("number")
    values = select(
        number % BUCKETS,
        cast(func.gen_random_uuid(), Text),
        literal(TOPIC, Text),
        func.concat("order-", number) if has_keys else null(),
        literal(PAYLOAD, LargeBinary),
        literal("application/octet-stream", Text),
    )
    connection.execute(insert(tables().message).from_select(_COLUMNS, values), {"rows": rows})


def fill_keys(connection: Connection, keys: int, rows: int) -> None:
    """Insert messages 0 to `rows - 1` in this order: their keys take turns, and a payload contains its
    number."""
    _keys.create(connection)
    names = [key_of(number, keys) for number in range(keys)]
    connection.execute(
        insert(_keys),
        [
            {"place": place, "name": name, "bucket": bucket_of(name, BUCKETS)}
            for place, name in enumerate(names)
        ],
    )
    number = (
        func.generate_series(0, bindparam("last")).table_valued("number", name="numbers").render_derived()
    )
    values = (
        select(
            _keys.c.bucket,
            cast(func.gen_random_uuid(), Text),
            literal(TOPIC, Text),
            _keys.c.name,
            func.convert_to(func.rpad(func.concat(number.c.number, " "), SIZE, "x"), "UTF8"),
            literal("application/octet-stream", Text),
        )
        .join_from(number, _keys, _keys.c.place == number.c.number % keys)
        .order_by(number.c.number)
    )
    connection.execute(insert(tables().message).from_select(_COLUMNS, values), {"last": rows - 1})
    _keys.drop(connection)


def numbered(number: int) -> bytes:
    """The payload of message `number`."""
    return f"{number} ".encode().ljust(SIZE, b"x")


def number_of(payload: bytes) -> int:
    """The number of the message with this payload."""
    return int(payload.split(b" ", 1)[0])


def key_of(number: int, keys: int) -> str:
    """The key of message `number`."""
    return f"order-{number % keys}"
