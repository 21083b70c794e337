"""The number of buckets, which limits how many relays can share the work."""

import secrets

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import InvalidOption, RelayRunning, WrongBucketCount, WrongState
from inbox_outbox_base.transactions.recording import Recording
from outbox._publishing.buckets import NUMBERS, Generation, draw_number, forget_newest, generations
from outbox._waking.hints import CHORES, notify
from outbox.schema import OutboxTables, tables

from . import statements
from .recording import recording
from .transact import transact

MOST_BUCKETS = 4_096


def set_bucket_count(
    engine: Engine,
    count: int,
    *,
    by: str | None = None,
    why: str | None = None,
    schema: str | None = None,
) -> None:
    """Change the number of buckets, up or down, while messages are published and sent; each key keeps its
    order.

    New messages go to new buckets. Programs that publish notice within a minute, with an INFO line; relays
    notice before they send their next message. The relays empty the old buckets, and delete them a day later.
    Another call with the same number changes nothing, but completes an interrupted call.

    `Outbox(buckets=...)` and `Relay(buckets=...)` reject any other number, so change these first.

    Args:
        engine: the Engine of the outbox's database.
        count: 1 to 4,096.
        by: who decides, 1 to 255 bytes of UTF-8; None is this host and process.
        why: the reason, 1 to 1,000 characters, if you want to store one.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
        RelayRunning: a relay of a version that knows only a fixed number of buckets is running.
        WrongState: another operator has just changed the number.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    if outbox_options.count("count", count) > MOST_BUCKETS:
        raise InvalidOption(f"count={count!r}: expected at most {MOST_BUCKETS:,}")
    note = recording("set_bucket_count", by, why, schema, count=count)
    all_tables = tables(schema)
    try:
        added = transact(engine, all_tables, lambda connection: _add(connection, all_tables, count))
    except IntegrityError as error:  # the cause says whether it was something else
        raise _changed(count) from error
    if added is not None:
        # A separate transaction: it announces the new buckets to all relays; one that joins later reads them.
        opening = note.once(lambda connection: _open(connection, all_tables, added, note))
        transact(engine, all_tables, opening)
    forget_newest()


def _add(connection: Connection, tables: OutboxTables, count: int) -> Generation | None:
    """Add the buckets of a new generation, not used yet; None if the newest generation has as many."""
    _check_relays(connection, tables)
    try:
        known = generations(connection, tables)
    except WrongBucketCount:  # somebody has deleted all of them
        known = []
    last = known[-1] if known else None
    if last is not None and len(last.buckets) == count:
        return None if last.is_open else last
    number = draw_number(above=last.number if last is not None else 0)
    if last is not None and not last.is_open:  # left by an interrupted call, and empty
        connection.execute(statements.drop_unused(tables), {"generation_": last.number})
        known.remove(last)
    buckets = _free(known, count)
    rows = [{"bucket_": bucket, "generation_": number} for bucket in buckets]
    connection.execute(statements.add_buckets(tables), rows)
    return Generation(number, buckets, is_open=False)


def _free(known: list[Generation], count: int) -> range:
    """Bucket numbers that are not in use, drawn at random: a program that believes a number of buckets from
    before a restore must not find other buckets of the same numbers."""
    while True:
        first = secrets.randbelow(NUMBERS.stop - count)
        free = range(first, first + count)
        if not any(_overlap(free, each.buckets) for each in known):
            return free


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _open(connection: Connection, tables: OutboxTables, added: Generation, note: Recording) -> None:
    """Let messages be published to new buckets, and announce these to all relays."""
    # Each relay locks its row before it looks for messages, until it has noted which ones it sends.
    connection.execute(statements.announce(tables), {"generation_": added.number})
    _check_relays(connection, tables)
    opened = connection.execute(statements.open_buckets(tables), {"generation_": added.number}).rowcount
    if opened != len(added.buckets):
        raise _changed(len(added.buckets))
    note.note(connection, opened)
    notify(connection, CHORES, tables.bucket.schema)


def _check_relays(connection: Connection, tables: OutboxTables) -> None:
    for relay in connection.execute(statements.relays(tables)):
        if relay.generation == 0 and relay.lease_until >= relay.now:
            raise RelayRunning(
                f"relay {relay.name} is of an older version, which cannot follow a change of the number of "
                "buckets; replace it first"
            )


def _changed(count: int) -> WrongState:
    return WrongState(f"count={count}: another operator has just changed the number of buckets")
