"""The buckets of a key, computed from the numbers of buckets that the database has."""

import logging
import secrets
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from zlib import crc32

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases import member_statements
from inbox_outbox_base.errors.outbox import WrongBucketCount
from inbox_outbox_base.transactions import memories
from inbox_outbox_base.transactions.memories import Memories, tenant_of
from outbox.schema import OutboxTables

from .missing import raise_clearer
from .safety import check_published

NUMBERS = range(-(2**31) + 1, 2**31)
"""The numbers that a bucket can have. The least integer is none: written into a statement by the client, its
sign is applied after a cast to integer."""

_log = logging.getLogger("outbox.publish")
_RANDOM_BITS = 21
"""Beside the time they fit into 63 bits until the year 2109."""


def draw_number(above: int = 0) -> int:
    """A number for a new relay or generation: the time in milliseconds, and random bits. One that the
    database draws would come again after a restore or a failover that has lost its row, and then two of them
    would have it.

    Args:
        above: the new number is larger than this one, even if the clock has gone back.
    """
    milliseconds = max(time.time_ns() // 1_000_000, (above >> _RANDOM_BITS) + 1)
    return (milliseconds << _RANDOM_BITS) + secrets.randbits(_RANDOM_BITS)


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


@dataclass(slots=True)
class _Known:
    """The generation that a program believes to be the newest."""

    generation: Generation
    read: float
    """When it was read."""
    older_since: float | None = None
    """Since when reading has found an older one."""


_newest: Memories[dict[Hashable, _Known]] = Memories(dict, dict.clear)
"""By tenant and schema."""


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


def gaps(known: Sequence[Generation]) -> list[range]:
    """The numbers of buckets that do not exist."""
    starts = sorted(known, key=lambda each: each.buckets.start)
    edges = [NUMBERS.start, *(edge for each in starts for edge in (each.buckets.start, each.buckets.stop))]
    ends = [*edges[1:], NUMBERS.stop]
    return [range(first, end) for first, end in zip(edges[::2], ends[::2], strict=True) if first < end]


def known_newest(connection: Connection, tables: OutboxTables) -> Generation:
    """The same, read once a minute for each database and tenant, and after a connection has broken.

    Raises:
        WrongBucketCount: there are no buckets.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: a table cannot keep a promise.
    """
    of_pool, place = _newest.of(connection.engine.pool), (tenant_of(connection), tables.bucket.schema)
    known = of_pool.get(place)
    now = time.monotonic()
    if known is not None and now - known.read < memories.BELIEVED:
        return known.generation
    try:
        found = newest(connection, tables)
    except DBAPIError as error:
        raise_clearer(connection, tables, error)
    check_published(connection, tables)
    if known is not None and found.number != known.generation.number:
        if found.number < known.generation.number:
            known.older_since = known.older_since or now
            if now - known.older_since < memories.BELIEVED:
                # It is believed for this transaction only, which may see an old state of the database. If it
                # stays so, the database itself has gone back.
                return found
        count, before = len(found.buckets), len(known.generation.buckets)
        _log.info("the outbox now has %d buckets, and had %d: new messages go to the new ones", count, before)
    of_pool[place] = _Known(found, now)
    return found


def forget_newest() -> None:
    """Read the generations again, in every database."""
    _newest.forget_all()
