"""The buckets of a key, computed from the numbers of buckets that the database has."""

import logging
import time
import weakref
from dataclasses import dataclass
from zlib import crc32

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases import member_statements
from inbox_outbox_base.errors.outbox import WrongBucketCount
from outbox.schema import OutboxTables

from .missing import raise_clearer

BELIEVED = 60.0
"""Seconds after which the generations are read again: an operator may have added one."""

_log = logging.getLogger("outbox.publish")


@dataclass(frozen=True, slots=True)
class Generation:
    """Buckets that were added together. Each key has one bucket in each generation."""

    number: int
    buckets: range
    is_open: bool
    """Whether messages may be published to it: all relays know it."""

    def bucket_of(self, key: str) -> int:
        """The bucket of a key: the same in every process, and it never changes."""
        return self.buckets.start + bucket_of(key, len(self.buckets))


_newest: weakref.WeakKeyDictionary[Dialect, dict[str | None, tuple[Generation, float]]] = (
    weakref.WeakKeyDictionary()
)
"""By dialect object (one per engine) and schema: the newest generation, and when it was read."""


def bucket_of(key: str, buckets: int) -> int:
    """The place of a key's bucket among these buckets."""
    return crc32(key.encode()) % buckets


def generations(connection: Connection, tables: OutboxTables) -> list[Generation]:
    """All generations, the oldest first.

    Raises:
        WrongBucketCount: there are none.
    """
    rows = connection.execute(member_statements.generations(tables)).all()
    if not rows:
        raise WrongBucketCount(f"table {tables.bucket.fullname} is empty: the database has no buckets")
    # The first generation has no time in this column, and is open all the same.
    return [
        Generation(row.generation, range(row.first, row.first + row.buckets), row.is_open or row is rows[0])
        for row in rows
    ]


def newest(connection: Connection, tables: OutboxTables) -> Generation:
    """The generation to which messages are published.

    Raises:
        WrongBucketCount: there are no buckets.
    """
    return [each for each in generations(connection, tables) if each.is_open][-1]


def known_newest(connection: Connection, tables: OutboxTables) -> Generation:
    """The same, read once a minute for each engine.

    Raises:
        WrongBucketCount: there are no buckets.
        TablesMissing: the tables have not been created.
    """
    schema = tables.bucket.schema
    known = _newest.setdefault(connection.dialect, {})
    believed, read = known.get(schema, (None, 0.0))
    now = time.monotonic()
    if believed is not None and now - read < BELIEVED:
        return believed
    try:
        found = newest(connection, tables)
    except DBAPIError as error:
        raise_clearer(connection, tables, error)
    if believed is not None and found.number < believed.number:
        return believed  # this transaction sees an older state of the database
    if believed is not None and found.number > believed.number:
        count, before = len(found.buckets), len(believed.buckets)
        _log.info("the outbox now has %d buckets, and had %d: new messages go to the new ones", count, before)
    known[schema] = found, now
    return found


def forget_newest() -> None:
    """Read the generations again, in every database."""
    _newest.clear()
