"""Takes in messages that were published to buckets that do not exist.

A program publishes to a number of buckets that it has read. If the database goes back behind a change of that
number, by a restore or a failover, or if the program is led to another tenant, no relay owns these buckets.
Each message is moved to the bucket of its key by the relay that owns this bucket. It keeps its number, so
those of a key stay in order, and leave before later ones that still wait.
"""

import logging
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row

from inbox_outbox_base.databases import member_statements
from inbox_outbox_base.databases.relaying import Relaying
from outbox._publishing.buckets import NUMBERS, Generation, gaps, generations

_EVERY = 10.0
_MOST = 5_000
"""The most messages that are read in one transaction."""

_log = logging.getLogger("outbox.relay")


class Strays:
    """The search of one relay."""

    def __init__(self, database: Relaying) -> None:
        self._database = database
        self._next = 0.0
        self._read_up_to = (NUMBERS.start, 0)
        """The bucket and sequence up to which the search has read."""
        self._passed: set[int] = set()
        """Buckets that the relay did not own while this search passed messages for them. If it gets one of
        them, it takes none of the later messages before the next search."""

    def take_in(
        self, connection: Connection, known: Sequence[Generation], owned: Collection[int]
    ) -> tuple[Counter[int], float]:
        """Take in messages for the buckets that the relay owns, if it is time to look.

        Args:
            known: the generations of buckets.
            owned: the relay's buckets.

        Returns:
            How many messages came to which buckets, and the seconds until the next look.
        """
        now = time.monotonic()
        if now < self._next:
            return Counter(), self._next - now
        tables = self._database.tables
        found, is_complete = self._read(connection, known)
        due = connection.execute(member_statements.due_strays(tables), {"limit": _MOST}).all()
        if found or due:
            known = generations(connection, tables)  # the database may have gone back to older ones
            found = [row for row in found if not any(row.bucket in each.buckets for each in known)]
        newest = [each for each in known if each.is_open][-1]
        moves = [_move(each, newest) | {"bucket_": each.bucket, "sequence_": each.sequence} for each in found]
        self._passed.update(each["to"] for each in moves if each["to"] not in owned)
        moves = [each for each in self._free(connection, found, moves) if each["to"] not in self._passed]
        moved = connection.execute(member_statements.take_in(tables), moves).rowcount if moves else 0
        delayed = [each for each in (_move(row, newest) for row in due) if each["to"] in owned]
        if delayed:
            moved += connection.execute(member_statements.take_in_delayed(tables), delayed).rowcount
        if moved:
            _log.warning(
                "%d messages were in buckets that do not exist, and are sent now. The program that published "
                "them believed another number of buckets: the database has gone back to a state before a "
                "change of that number (a restore, or a failover that lost it), or the program uses several "
                "databases. Later messages of their keys may have left before them",
                moved,
            )
        if is_complete:
            self._passed.clear()
        wait = _EVERY if is_complete else 0.0
        self._next = now + wait
        return Counter(each["to"] for each in moves), wait

    def _free(
        self, connection: Connection, found: Sequence[Row[Any]], moves: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The moves to places that no message has: a row that was copied may have the number of another one.
        Then it waits until that one has left, and so do those behind it of its key."""
        places = [(each["to"], each["sequence_"]) for each in moves]
        used = set(self._database.progress(connection, places)) if places else set()
        behind, free = set[str](), list[dict[str, Any]]()
        for row, place, each in zip(found, places, moves, strict=True):
            if place in used or _name(row) in behind:
                behind.add(_name(row))
            else:
                used.add(place)
                free.append(each)
        return free

    def _read(self, connection: Connection, known: Sequence[Generation]) -> tuple[list[Row[Any]], bool]:
        """The next messages in buckets that do not exist, and whether these are the last."""
        found: list[Row[Any]] = []
        first, low = self._read_up_to
        while (bucket := self._first(connection, known, first)) is not None:
            limit = _MOST - len(found)
            rows = self._database.oldest(connection, bucket, low if bucket == first else 0, limit)
            found += rows
            if len(rows) == limit:
                self._read_up_to = bucket, rows[-1].sequence
                return found, False
            first, low = bucket + 1, 0
        self._read_up_to = NUMBERS.start, 0
        return found, True

    def _first(self, connection: Connection, known: Sequence[Generation], first: int) -> int | None:
        """The first bucket from a number on that does not exist and has a message."""
        for gap in gaps(known):
            rest = range(max(gap.start, first), gap.stop)
            if rest and (bucket := self._database.first_used(connection, rest)) is not None:
                return bucket
        return None


def _move(row: Row[Any], newest: Generation) -> dict[str, Any]:
    return {"id_": row.id, "to": newest.bucket_of(_name(row))}


def _name(row: Row[Any]) -> str:
    # Somebody else may have written values that are not text.
    return str(row.key or row.id).encode(errors="replace").decode()
