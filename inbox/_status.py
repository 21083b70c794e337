"""What an operator wants to know about the inbox."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, case, func, select
from sqlalchemy.exc import DBAPIError

from . import _options
from ._accept import explain
from ._databases import Database, supported
from ._keys import Key, encode_key
from .schema import Tables, tables

RATE_WINDOW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """One consumer's rows."""

    consumer: str
    rows: int
    rows_last_hour: int
    oldest: datetime
    newest: datetime
    bytes: int
    """Its share, by rows, of what the table and its indexes take on disk."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message that was taken."""

    consumer: str
    key: str
    accepted_at: datetime
    claim: str
    """Hexadecimal: drawn by the attempt that wrote the row."""
    digest: str | None
    """Hexadecimal: of the payload, when one was given."""
    result: str | None
    """JSON."""


def status(engine: Engine, *, schema: str | None = None) -> list[ConsumerStatus]:
    """Every consumer's rows, rate, age and size, by name.

    Raises:
        TablesMissing: the tables have not been made.
    """
    all_tables, database = tables(schema), supported(engine.dialect.name)
    with engine.connect() as connection:
        try:
            return _status(connection, database, all_tables)
        except DBAPIError as error:
            explain(connection, all_tables, error)


def _status(connection: Connection, database: Database, all_tables: Tables) -> list[ConsumerStatus]:
    c = all_tables.message.c
    recently = database.now(connection) - RATE_WINDOW
    counts = (
        select(
            c.consumer,
            func.count().label("rows"),
            func.count(case((c.accepted_at >= recently, 1))).label("rows_last_hour"),
            func.min(c.accepted_at, type_=c.accepted_at.type).label("oldest"),
            func.max(c.accepted_at, type_=c.accepted_at.type).label("newest"),
        )
        .group_by(c.consumer)
        .order_by(c.consumer)
    )
    found = connection.execute(counts).mappings().all()
    size, total = database.size(connection, all_tables), sum(row["rows"] for row in found)
    return [ConsumerStatus(**row, bytes=size * row["rows"] // total) for row in found]


def show(engine: Engine, consumer: str, key: Key, *, schema: str | None = None) -> Message | None:
    """What is stored of one message; None if the inbox does not know it.

    Raises:
        InvalidKey: the key breaks the rules.
        TablesMissing: the tables have not been made.
    """
    all_tables = tables(schema)
    supported(engine.dialect.name)
    c = all_tables.message.c
    this = (c.consumer == _options.consumer(consumer)) & (c.key == encode_key(key))
    with engine.connect() as connection:
        try:
            row = connection.execute(select(all_tables.message).where(this)).one_or_none()
        except DBAPIError as error:
            explain(connection, all_tables, error)
    if row is None:
        return None
    digest = None if row.digest is None else row.digest.hex()
    return Message(row.consumer, row.key, row.accepted_at, row.claim.hex(), digest, row.result)
