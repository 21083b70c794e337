"""What consumers have counted over time."""

from sqlalchemy import Connection, Engine

from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.missing import is_there, missing_table
from inbox_outbox_base.counting.series import read_series
from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.databases.taking import at_level
from inbox_outbox_base.errors.inbox import TablesMissing
from inbox_outbox_base.tables.inbox import tables
from inbox_outbox_base.transactions.connect import connected, transacted
from inbox_outbox_base.transactions.safety import check_sees_all
from inbox_outbox_base.words.series import INBOX_KINDS, STEPS, Series, SeriesSpan


def series(
    engine: Engine, span: SeriesSpan = "1h", *, consumer: str | None = None, schema: str | None = None
) -> Series:
    """What listeners and consumers have taken, and what has failed, over the last hour, day or week.

    Each process writes what it counts once a second, outside the handlers' transactions, and at its end. A
    process that is killed loses its last second: some numbers, never a message. Nothing is counted on SQLite,
    where a second writer would stop the handlers, nor in status-table mode on Redis. `SeriesEvents` counts
    for an inbox without a listener.

    Args:
        engine: the Engine of the inbox's database.
        span: "1h" by the minute, "24h" by ten minutes, or "7d" by the hour.
        consumer: count only this consumer's messages. A process counts 50 consumers apart in each minute;
            messages of all others are part of the whole only. None: all consumers.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the table does not exist.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    options.one_of("span", span, tuple(STEPS))
    if consumer is not None:
        options.consumer(consumer)
    table = tables(schema).minute
    database = taking(engine.dialect.name)
    with connected(at_level(engine, database.own_isolation)) as connection:

        def read(connection: Connection) -> Series:
            if not is_there(connection, table):
                raise TablesMissing(missing_table(table))
            check_sees_all(connection, [table])
            return read_series(connection, table, span, INBOX_KINDS, consumer)

        return transacted(connection, read)
