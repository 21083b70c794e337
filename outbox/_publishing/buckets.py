"""The bucket of a key; it depends on the number of buckets, which is stored in the database."""

import logging
import time
import weakref
from zlib import crc32

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases import member_statements
from inbox_outbox_base.errors.outbox import WrongBucketCount
from outbox.schema import OutboxTables

from .missing import raise_clearer

_counts: weakref.WeakKeyDictionary[Dialect, dict[str | None, tuple[int, float]]] = weakref.WeakKeyDictionary()
"""By dialect object (one per engine) and schema: the number of buckets, and when it was read."""
BELIEVED = 60.0
"""Seconds after which the number is read again: an operator may have added buckets."""

_log = logging.getLogger("outbox.publish")


def bucket_count(connection: Connection, tables: OutboxTables) -> int:
    """The number of buckets, read once a minute for each engine.

    Raises:
        WrongBucketCount: there are none.
        TablesMissing: the tables have not been created.
    """
    schema = tables.bucket.schema
    counts = _counts.setdefault(connection.dialect, {})
    known, asked = counts.get(schema, (0, 0.0))
    now = time.monotonic()
    if known and now - asked < BELIEVED:
        return known
    try:
        found = int(connection.execute(member_statements.count_buckets(tables)).scalar_one())
    except DBAPIError as error:
        raise_clearer(connection, tables, error)
    if found == 0:
        raise WrongBucketCount(f"table {tables.bucket.fullname} is empty: the database has no buckets")
    if known and found != known:
        _log.warning(
            "the database now has %d buckets, and had %d: messages published by this process in the last "
            "minute may be out of order; stop all publishers before you change the number",
            found,
            known,
        )
    counts[schema] = found, now
    return found


def forget_bucket_counts() -> None:
    """Read the number of buckets again, in every database."""
    _counts.clear()


def bucket_of(key: str, buckets: int) -> int:
    """The bucket of a key: the same in every process, and it never changes."""
    return crc32(key.encode()) % buckets
