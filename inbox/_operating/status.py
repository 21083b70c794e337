"""The operator's view of the inbox."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, case, func, select
from sqlalchemy.exc import DBAPIError

from inbox._status_mode.stores import Status
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.keys import Key, encode_key
from inbox_outbox_base.checks.missing import is_there, raise_clearer
from inbox_outbox_base.databases.registry import looking, taking
from inbox_outbox_base.databases.taking import Taking
from inbox_outbox_base.tables.inbox import Tables, tables
from inbox_outbox_base.transactions.connect import connected
from inbox_outbox_base.transactions.policy import Policy, look
from inbox_outbox_base.transactions.recording import stored
from inbox_outbox_base.transactions.safety import check_sees_all
from inbox_outbox_base.words.deciding import OperatorDecision

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
    rows_without_load: int = 0
    """Rows written in bulk whose load is no longer in the ledger: their age is unknown, so no purge deletes
    them."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message that was taken."""

    consumer: str
    key: str
    accepted_at: datetime | None
    """None if the row was written in bulk and its load is no longer in the ledger."""
    claim: str | None
    """Hexadecimal: drawn by the attempt that wrote the row; None if it was written in bulk."""
    digest: str | None
    """Hexadecimal digest of the payload, if one was given."""
    result: str | None
    """JSON."""
    load: int | None = None
    """The row of `inbox_ledger` that tells who wrote this row in bulk, and when."""


def status(engine: Engine, *, schema: str | None = None) -> list[ConsumerStatus]:
    """Every consumer's rows, rate, age, size, policy, and messages in each status, by name.

    Raises:
        TablesMissing: the tables do not exist.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    all_tables, database = tables(schema), taking(engine.dialect.name)
    with connected(engine) as connection:
        try:
            return _status(connection, database, all_tables)
        except DBAPIError as error:
            raise_clearer(connection, all_tables.message, error)


def _status(connection: Connection, database: Taking, all_tables: Tables) -> list[ConsumerStatus]:
    policies = _policies(connection, all_tables)
    # An application may use one mode only. Without either, the first statement says which table is missing.
    modes = [each for each in (all_tables.message, all_tables.status) if is_there(connection, each)]
    modes = modes or [all_tables.message]
    messages = _messages(connection, all_tables) if all_tables.status in modes else {}
    check_sees_all(connection, [*modes, all_tables.consumer])
    found, size = dict[str, dict[str, Any]](), 0
    if all_tables.message in modes:
        found = _counts(connection, all_tables, database.now(connection) - RATE_WINDOW)
        _, size = looking(connection.dialect.name).sizes(connection, [all_tables.message])
    total = sum(row["rows"] for row in found.values())
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


def _counts(connection: Connection, all_tables: Tables, recently: datetime) -> dict[str, dict[str, Any]]:
    """Each consumer's rows."""
    c, ledger = all_tables.message.c, all_tables.ledger.c
    counts = select(
        c.consumer,
        func.count().label("rows"),
        func.count(c.load).label("loaded"),
        *_ages(c.accepted_at, recently),
    )
    grouped = connection.execute(counts.group_by(c.consumer)).mappings()
    found = {row["consumer"]: dict(row) for row in grouped}
    # The ledger is only asked if it is needed: an inbox without Spark may lack it.
    if sum(row.pop("loaded") for row in found.values()):
        check_sees_all(connection, [all_tables.ledger])
        lost = func.count(case((ledger.id.is_(None), 1)))
        loaded = (
            select(c.consumer, lost.label("rows_without_load"), *_ages(ledger.committed_at, recently))
            .select_from(all_tables.message.outerjoin(all_tables.ledger, ledger.id == c.load))
            .where(c.load.is_not(None))
            .group_by(c.consumer)
        )
        for row in connection.execute(loaded).mappings():
            mine = found[row["consumer"]]
            mine["rows_without_load"] = row["rows_without_load"]
            mine["rows_last_hour"] += row["rows_last_hour"]
            for name, choose in (("oldest", min), ("newest", max)):
                mine[name] = choose((each for each in (mine[name], row[name]) if each), default=None)
    return found


def _ages(time: ColumnElement[datetime], recently: datetime) -> list[ColumnElement[Any]]:
    return [
        func.count(case((time >= recently, 1))).label("rows_last_hour"),
        func.min(time, type_=time.type).label("oldest"),
        func.max(time, type_=time.type).label("newest"),
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
    """One message of the exactly-once path as it is stored; None if the inbox does not know it.

    Raises:
        InvalidKey: the key breaks the rules.
        TablesMissing: the tables do not exist.
        UnsafeDatabase: it is not there, but row-level policies hide rows from this role.
    """
    all_tables = tables(schema)
    taking(engine.dialect.name)
    c, ledger = all_tables.message.c, all_tables.ledger.c
    this = (c.consumer == options.consumer(consumer)) & (c.key == encode_key(key))
    with connected(engine) as connection:
        if not is_there(connection, all_tables.message) and is_there(connection, all_tables.status):
            return None
        try:
            row = connection.execute(select(all_tables.message).where(this)).one_or_none()
            if row is None:
                check_sees_all(connection, [all_tables.message])
                return None
            time = row.accepted_at
            if row.load is not None:
                its_time = select(ledger.committed_at).where(ledger.id == row.load)
                time = connection.execute(its_time).scalar_one_or_none()
        except DBAPIError as error:
            raise_clearer(connection, all_tables.message, error)
    claim, digest = (None if each is None else each.hex() for each in (row.claim, row.digest))
    return Message(row.consumer, row.key, time, claim, digest, row.result, row.load)


def decisions(engine: Engine, *, limit: int = 100, schema: str | None = None) -> list[OperatorDecision]:
    """Operators' decisions about the inbox and the outbox, the newest first. They are kept for a year. Those
    about messages whose store is Redis are only in the messages' histories.

    Args:
        engine: the database.
        limit: the most decisions to return.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument cannot be used.
        TablesMissing: the table does not exist.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    options.count("limit", limit, largest=options.MOST_ROWS)
    table = tables(schema).decision
    taking(engine.dialect.name)
    with connected(engine) as connection:
        try:
            check_sees_all(connection, [table])
            return stored(connection, table, limit)
        except DBAPIError as error:
            raise_clearer(connection, table, error)
