"""Time that passes without waiting."""

from datetime import timedelta

from sqlalchemy import Connection, inspect, literal, update
from sqlalchemy.orm import Session

from inbox import RedisStore
from inbox.errors import InvalidOption
from inbox.schema import VERSION_TABLE, UtcDateTime, tables
from inbox_outbox_base.checks.options import seconds, shown
from inbox_outbox_base.tables.columns import earlier


def age(
    where: Connection | Session | RedisStore, *, by: float | timedelta, schema: str | None = None
) -> None:
    """Move the stored times of everything of ours into the past, as if so much time had passed.

    Time is the database's, or Redis', and nobody can advance that clock for a test. So the rows become older:
    a lease is over, a key past its retention, a delayed message due. It is for a moment in which nothing of
    ours runs. What a process knows by its own clock does not age: a claim whose handler still runs renews its
    lease (`heartbeat=False` does not), and `Inbox(remember=...)` answers from memory.

    The minutes of `series` stay where they are, and so do tables of yours, the times in the history of a
    message, and keys that name their time: take some of a time that has passed.

    Args:
        where: a Connection or a Session, whose transaction is the caller's; or a `RedisStore` with a
            synchronous client, whose records past their retention are gone at once.
        by: seconds, or a `timedelta`; more than 0.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: another kind of place, or not such a time.
    """
    length = seconds("by", by, positive=True)
    if isinstance(where, RedisStore):
        if where.is_async:
            raise InvalidOption("where: a RedisStore with an asynchronous client: expected a synchronous one")
        where.age(length)
        return
    if not isinstance(where, Connection | Session):
        raise InvalidOption(
            f"where={shown(where)}: expected a Connection, a Session or a RedisStore; with an asynchronous "
            "connection, await its run_sync(age, by=...)"
        )
    all_tables = tables(schema)
    kept = {VERSION_TABLE, all_tables.minute.name}
    connection = where.connection() if isinstance(where, Session) else where
    there = inspect(connection)
    for table in all_tables.message.metadata.sorted_tables:
        times = [column for column in table.columns if isinstance(column.type, UtcDateTime)]
        if times and table.name not in kept and there.has_table(table.name, table.schema):
            past = {column: earlier(column, literal(length)) for column in times}
            connection.execute(update(table).values(past))
