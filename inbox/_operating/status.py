"""The operator's view of the inbox."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, case, func, select
from sqlalchemy.exc import DBAPIError

from inbox._status_mode.stores import Status
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.keys import Key, encode_key
from inbox_outbox_base.databases.missing import raise_clearer
from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.databases.taking import Taking
from inbox_outbox_base.tables.inbox import Tables, tables
from inbox_outbox_base.transactions.policy import Policy, look

RATE_WINDOW = timedelta(hours=1)
_NONE: dict[str, Any] = {"rows": 0, "rows_last_hour": 0, "oldest": None, "newest": None}


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """One consumer's rows in `inbox_message`, and its messages of status-table mode."""

    consumer: str
    rows: int
    rows_last_hour: int
    oldest: datetime | None
    """None if there are no rows, as for `newest`."""
    newest: datetime | None
    bytes: int
    """Its share, by rows, of the disk space of the table and its indexes."""
    messages: dict[Status, int]
    """How many messages are in each status; a status without messages is left out."""
    policy: Policy | None = None
    """Its stored policy; None if nothing is stored."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message that was taken."""

    consumer: str
    key: str
    accepted_at: datetime
    claim: str
    """Hexadecimal: drawn by the attempt that wrote the row."""
    digest: str | None
    """Hexadecimal digest of the payload, if one was given."""
    result: str | None
    """JSON."""


def status(engine: Engine, *, schema: str | None = None) -> list[ConsumerStatus]:
    """Every consumer's rows, rate, age, size, policy, and messages in each status, by name.

    Raises:
        TablesMissing: the tables do not exist.
    """
    all_tables, database = tables(schema), taking(engine.dialect.name)
    with engine.connect() as connection:
        try:
            return _status(connection, database, all_tables)
        except DBAPIError as error:
            raise_clearer(connection, all_tables.message, error)


def _status(connection: Connection, database: Taking, all_tables: Tables) -> list[ConsumerStatus]:
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
    found = {row["consumer"]: dict(row) for row in connection.execute(counts).mappings()}
    size, total = database.size(connection, all_tables), sum(row["rows"] for row in found.values())
    messages, policies = _messages(connection, all_tables), _policies(connection, all_tables)
    return [
        ConsumerStatus(
            **found.get(consumer, _NONE | {"consumer": consumer}),
            bytes=size * found[consumer]["rows"] // total if consumer in found else 0,
            messages=messages.get(consumer, {}),
            policy=policies.get(consumer),
        )
        # By bytes, as the database sorts them.
        for consumer in sorted({*found, *messages, *policies}, key=str.encode)
    ]


def _policies(connection: Connection, all_tables: Tables) -> dict[str, Policy]:
    try:
        return look(connection, all_tables)
    except DBAPIError as error:
        raise_clearer(connection, all_tables.consumer, error)


def _messages(connection: Connection, all_tables: Tables) -> dict[str, dict[Status, int]]:
    """Each consumer's messages of status-table mode, counted by status."""
    c = all_tables.status.c
    columns = (c.consumer, c.status)
    counts = select(*columns, func.count().label("messages")).group_by(*columns).order_by(*columns)
    found: dict[str, dict[Status, int]] = {}
    try:
        rows = connection.execute(counts).all()
    except DBAPIError as error:
        raise_clearer(connection, all_tables.status, error)
    for row in rows:
        found.setdefault(row.consumer, {})[Status(row.status)] = row.messages
    return found


def show(engine: Engine, consumer: str, key: Key, *, schema: str | None = None) -> Message | None:
    """One message as it is stored; None if the inbox does not know it.

    Raises:
        InvalidKey: the key breaks the rules.
        TablesMissing: the tables do not exist.
    """
    all_tables = tables(schema)
    taking(engine.dialect.name)
    c = all_tables.message.c
    this = (c.consumer == options.consumer(consumer)) & (c.key == encode_key(key))
    with engine.connect() as connection:
        try:
            row = connection.execute(select(all_tables.message).where(this)).one_or_none()
        except DBAPIError as error:
            raise_clearer(connection, all_tables.message, error)
    if row is None:
        return None
    digest = None if row.digest is None else row.digest.hex()
    return Message(row.consumer, row.key, row.accepted_at, row.claim.hex(), digest, row.result)
