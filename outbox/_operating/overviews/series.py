"""What relays have counted over time."""

from sqlalchemy import Connection, Engine

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.checks.missing import is_there, missing_table
from inbox_outbox_base.counting.series import read_series
from inbox_outbox_base.errors.outbox import TablesMissing, UnsafeDatabase
from inbox_outbox_base.tables.inbox import tables as all_tables
from inbox_outbox_base.transactions.safety import check_sees_all
from inbox_outbox_base.words.series import OUTBOX_KINDS, STEPS, Series, SeriesSpan
from outbox._operating.transact import transact
from outbox.schema import tables


def series(
    engine: Engine, span: SeriesSpan = "1h", *, topic: str | None = None, schema: str | None = None
) -> Series:
    """What relays have sent, what was refused and what waited, over the last hour, day or week.

    Relays write what they count once a second, in the transaction that renews their lease, and at their end.
    A relay that is killed, or has lost its lease, loses its last second. They take samples of the whole
    outbox every minute.

    Args:
        engine: the Engine of the outbox's database.
        span: "1h" by the minute, "24h" by ten minutes, or "7d" by the hour.
        topic: count only this topic's messages; a point has no samples then. A relay counts 50 topics apart
            in each minute; messages of all others are part of the whole only. None: all topics.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the table has not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    outbox_options.one_of("span", span, tuple(STEPS))
    if topic is not None:
        outbox_options.topic(topic)
    table = all_tables(schema).minute

    def read(connection: Connection) -> Series:
        if not is_there(connection, table):
            raise TablesMissing(missing_table(table))
        check_sees_all(connection, [table], UnsafeDatabase)
        return read_series(connection, table, span, OUTBOX_KINDS, topic)

    return transact(engine, tables(schema), read, [])
