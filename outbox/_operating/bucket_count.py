"""The number of buckets, which limits how many relays can share the work."""

from sqlalchemy import Connection, Engine

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import InvalidOption, RelayRunning, WrongState
from outbox._publishing.buckets import forget_bucket_counts
from outbox.schema import OutboxTables, tables

from . import statements
from .transact import transact

MOST_BUCKETS = 4_096


def set_bucket_count(engine: Engine, count: int, *, schema: str | None = None) -> None:
    """Increase the number of buckets. This changes the bucket of a key, so drain the outbox first.

    Stop all publishers, let the relays drain the outbox, stop them, call this, and start everything again. A
    program that publishes meanwhile reads the number once a minute, and logs a WARNING if it has changed.
    `Outbox(buckets=...)` and `Relay(buckets=...)` reject any other number.

    Args:
        engine: the Engine of the outbox's database.
        count: at most 4,096, and not fewer than there are.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
        RelayRunning: a relay's lease has not expired.
        WrongState: there are waiting or delayed messages: keys would lose their order.
        TablesMissing: the tables have not been created.
    """
    if outbox_options.count("count", count) > MOST_BUCKETS:
        raise InvalidOption(f"count={count!r}: expected at most {MOST_BUCKETS:,}")
    all_tables = tables(schema)
    transact(engine, all_tables, lambda connection: _add_buckets(connection, all_tables, count))
    forget_bucket_counts()


def _add_buckets(connection: Connection, tables: OutboxTables, count: int) -> None:
    connection.execute(statements.lock_relays(tables))
    for relay in connection.execute(statements.relays(tables)):
        if relay.lease_until >= relay.now:
            raise RelayRunning(f"relay {relay.name} is running, or was lost just now; stop all relays first")
    for table in (tables.message, tables.delayed):
        if connection.execute(statements.anything(table)).first() is not None:
            raise WrongState(f"table {table.name} is not empty: with other buckets keys lose their order")
    there = len(connection.execute(statements.buckets(tables)).all())
    if count < there:
        raise InvalidOption(f"count={count!r}: expected at least {there}, the present number")
    if count > there:
        added = [{"bucket_": number} for number in range(there, count)]
        connection.execute(statements.add_buckets(tables), added)
