"""Inboxes that look as if they had been in use for a long time."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import (
    DDL,
    Connection,
    DateTime,
    Engine,
    Interval,
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
from sqlalchemy.schema import CreateIndex, CreateSchema, DropIndex

from inbox import schema

from ._business import CONSUMER
from ._lab import run_alone


def ddl(text: str) -> DDL:
    """A statement on one table, whose name is `%(fullname)s` in it."""
    return DDL(text)  # type: ignore[no-untyped-call]


_DROP_KEY = ddl("ALTER TABLE %(fullname)s DROP CONSTRAINT inbox_message_pkey")
_ADD_TIMED_KEY = ddl("ALTER TABLE %(fullname)s ADD CONSTRAINT inbox_message_pkey PRIMARY KEY (consumer, key)")
_ADD_KEY = ddl(
    "ALTER TABLE %(fullname)s ADD CONSTRAINT inbox_message_pkey PRIMARY KEY (consumer, key) "
    "WITH (fillfactor = 70)"
)
"""Random inserts leave a B-tree about 70 % full; one built in bulk would be 90 % full, and split. Ordered
inserts leave it 90 % full, too."""


def fill(
    engine: Engine, name: str, rows: int, *, is_bulk: bool = False, is_timed: bool = False, parts: int = 0
) -> Table:
    """An inbox in a schema of this name, with `rows` random keys, or keys that name their time: taken evenly
    over the last week, or by one load. It can have so many partitions by a hash of the key."""
    message = create(engine, name)
    with engine.begin() as connection:
        index = next(iter(message.indexes))
        connection.execute(_DROP_KEY.against(message))
        connection.execute(DropIndex(index))
        if parts:
            _divide(connection, message, parts)
        now = datetime.now(UTC)
        if is_bulk:
            add_load(connection, schema.tables(name), rows, now)
        else:
            add_rows(connection, message, rows, now - timedelta(days=7), now, is_timed=is_timed)
        connection.execute((_ADD_TIMED_KEY if is_timed else _ADD_KEY).against(message))
        connection.execute(CreateIndex(index))
    vacuum(engine, message)
    return message


def _divide(connection: Connection, message: Table, parts: int) -> None:
    """Make an empty table anew, with partitions."""
    connection.execute(ddl("ALTER TABLE %(fullname)s RENAME TO inbox_message_plain").against(message))
    plain, whole = f'"{message.schema}".inbox_message_plain', quoted(message)
    connection.exec_driver_sql(f"CREATE TABLE {whole} (LIKE {plain} INCLUDING ALL) PARTITION BY HASH (key)")
    connection.exec_driver_sql(f"DROP TABLE {plain}")
    for number in range(parts):
        connection.exec_driver_sql(
            f'CREATE TABLE "{message.schema}".inbox_message_{number} PARTITION OF {whole} '
            f"FOR VALUES WITH (MODULUS {parts}, REMAINDER {number})"
        )


def create(engine: Engine, name: str) -> Table:
    """An empty inbox in a schema of this name."""
    tables = schema.tables(name)
    with engine.begin() as connection:
        connection.execute(CreateSchema(name))
        tables.metadata.create_all(connection)
    return tables.message


def add_rows(
    connection: Connection,
    message: Table,
    rows: int,
    first: datetime,
    last: datetime,
    consumer: str = CONSUMER,
    *,
    is_timed: bool = False,
) -> None:
    """Add rows with random keys, or UUIDs of version 7, accepted evenly between two points in time, in that
    order."""
    number = func.generate_series(1, bindparam("rows")).column_valued("number")
    at = literal(first, DateTime(timezone=True)) + literal((last - first) / rows, Interval) * number
    key = func.uuidv7(at - func.clock_timestamp()) if is_timed else func.gen_random_uuid()
    values = select(
        literal(consumer, Text),
        cast(key, Text),
        at,
        func.decode("00112233445566778899aabbccddeeff", "hex"),
    )
    columns = ["consumer", "key", "accepted_at", "claim"]
    connection.execute(insert(message).from_select(columns, values), {"rows": rows})


def add_load(connection: Connection, tables: schema.Tables, rows: int, committed_at: datetime) -> None:
    """Add rows with random keys as a bulk writer does: a row of the ledger has their time."""
    counts = {"rows_read": rows, "rows_new": rows, "rows_duplicate": 0, "rows_repeated": 0, "rows_dropped": 0}
    own = {
        "consumer": CONSUMER,
        "run": "filling",
        "batch": 0,
        "part": 0,
        "parts": 1,
        "fingerprint": b"\0" * 16,
    }
    added = insert(tables.ledger).values(own | counts | {"committed_at": committed_at})
    load = connection.execute(added.returning(tables.ledger.c.id)).scalar_one()
    number = func.generate_series(1, bindparam("rows")).table_valued("number")
    key = cast(func.gen_random_uuid(), Text)
    values = select(literal(CONSUMER, Text), key, null(), null(), literal(load)).select_from(number)
    columns = ["consumer", "key", "accepted_at", "claim", "load"]
    connection.execute(insert(tables.message).from_select(columns, values), {"rows": rows})


def vacuum(engine: Engine, message: Table) -> None:
    """Vacuum and analyse, as autovacuum would do later."""
    run_alone(engine, f"VACUUM (ANALYZE) {quoted(message)}")


def quoted(table: Table) -> str:
    """A table's name in SQL: SQLAlchemy does not know every keyword."""
    return ".".join(f'"{part}"' for part in (table.schema, table.name) if part)
