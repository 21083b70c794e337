"""PostgreSQL: which keys of a bulk load exist."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import compress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ARRAY, Connection, Row, Select, Text, any_, bindparam, cast, select, text

from inbox_outbox_base.databases.loading_values import KnownKeys
from inbox_outbox_base.tables.inbox import Tables

_SLICE = 20_000
"""How many keys to look for at a time: all keys of a partition at once take twice the CPU time."""
_OTHER_SCANS = ("enable_seqscan", "enable_bitmapscan")


def found(connection: Connection, tables: Tables, consumer: str, keys: pa.StringArray) -> KnownKeys:
    """The keys among these that are in the inbox; they are distinct and in byte order."""
    known = KnownKeys()
    if len(keys):
        with by_index(connection):
            for rows in _found(connection, tables, consumer, keys):
                known.add(rows)
    return known


def _found(
    connection: Connection, tables: Tables, consumer: str, keys: pa.StringArray
) -> Iterator[Iterable[Row[Any]]]:
    """The rows of the keys that exist, slice by slice.

    If few rows lie between a slice's first and last keys, as with keys that begin with a date, all of these
    rows are read, and the slice is not sent. If there are many, as with random keys, later slices probably
    have many, too, and are sent at once.
    """
    are_many = False
    for at in range(0, len(keys), _SLICE):
        some = keys.slice(at, _SLICE)
        if not are_many:
            most = len(some) // 2 + 1
            span = {"consumer": consumer, "first": some[0].as_py(), "last": some[-1].as_py(), "most": most}
            rows = connection.execute(_between(tables), span).all()
            are_many = len(rows) == most
            if rows and not are_many:
                given = pc.is_in(pa.array([row[0] for row in rows], pa.string()), some)
                yield rows if pc.all(given).as_py() else compress(rows, given.to_pylist())
        if are_many:
            yield connection.execute(_among(tables), {"consumer": consumer, "keys": literal(some)})


@contextmanager
def by_index(connection: Connection) -> Iterator[None]:
    """Statements in the body read by an index, in its order."""
    # For a probe, the planner assumes a short array; for a range of keys, it overestimates random reads.
    for setting in _OTHER_SCANS:
        connection.execute(text(f"SET LOCAL {setting} = off"))
    yield
    for setting in _OTHER_SCANS:
        connection.execute(text(f"SET LOCAL {setting} = DEFAULT"))


def literal(keys: pa.StringArray) -> str:
    """The keys as a PostgreSQL array literal: one text costs a tenth of a list of parameters."""
    escaped = pc.replace_substring(pc.replace_substring(keys, "\\", "\\\\"), '"', '\\"')
    joined: str = pc.binary_join(pa.ListArray.from_arrays([0, len(escaped)], escaped), '","')[0].as_py()
    return f'{{"{joined}"}}'


@cache
def _between(tables: Tables) -> Select[Any]:
    """The first rows of a range of keys."""
    c = tables.message.c
    consumer, first, last = (bindparam(name, type_=c.key.type) for name in ("consumer", "first", "last"))
    rows = select(c.key, c.claim, c.load, c.digest).where(c.consumer == consumer)
    # Not BETWEEN: PostgreSQL accepts no COLLATE in its bounds.
    return rows.where(c.key >= first, c.key <= last).order_by(c.key).limit(bindparam("most"))


@cache
def _among(tables: Tables) -> Select[Any]:
    """The rows of the keys that exist. The array is in a subquery; otherwise the planner would look at each
    of its elements."""
    c = tables.message.c
    given = select(cast(bindparam("keys", type_=Text), ARRAY(Text))).scalar_subquery()
    keys = cast(given, ARRAY(Text))  # without it, ANY would take the subquery for a list of rows
    return select(c.key, c.claim, c.load, c.digest).where(
        c.consumer == bindparam("consumer", type_=c.consumer.type), c.key == any_(keys)
    )
