"""Keeps a key's order while the number of buckets changes."""

import time
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection

from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.relaying import Relaying
from outbox._publishing.buckets import Generation, generations

_LONG, _PAUSE = 1.0, 4
"""A look that takes longer than `_LONG` seconds is followed by a pause `_PAUSE` times as long."""


class Crossings:
    """The generations of buckets that a relay knows.

    After a change of the number of buckets, a key may have messages in an old and in a new bucket, and these
    may belong to two relays. A message leaves once no other generation has an earlier message of its key.
    That is enough: a message committed before this one was written is visible wherever this one is, and has a
    lower number.
    """

    def __init__(self, database: Relaying) -> None:
        self._database = database
        self._generations: Sequence[Generation] = ()
        self._marks: Mapping[int, int] = {}
        self._next_look = 0.0
        self.announced: int | None = None
        """The newest generation the relay knew when it read them."""

    @property
    def known(self) -> Sequence[Generation]:
        """The generations, the oldest first."""
        return self._generations

    @property
    def are_several(self) -> bool:
        """Whether a key may have messages in several buckets."""
        return len(self._generations) > 1

    @property
    def buckets(self) -> list[int]:
        """The buckets of all generations."""
        return [bucket for each in self._generations for bucket in each.buckets]

    def learn(self, connection: Connection, announced: int) -> None:
        """Read the generations again."""
        self._generations = generations(connection, self._database.tables)
        self._marks = self._database.marks(connection) if self.are_several else {}
        self.announced = announced

    def blocked(
        self, connection: Connection, letters: Iterable[Letter], paused: Sequence[str]
    ) -> frozenset[Letter]:
        """The messages that have to wait for an earlier one of another generation."""
        oldest = self._generations[0].buckets
        keyed = [letter for letter in letters if letter.key is not None]
        old = [letter for letter in keyed if letter.bucket in oldest]
        new = [letter for letter in keyed if letter.bucket not in oldest]
        blocked = self._look(connection, old, paused)
        # If very many messages wait in old buckets, those in new ones are behind them. During a pause they
        # all count as blocked, without a look: the relay spends its time on the old ones.
        begun = time.monotonic()
        if begun < self._next_look:
            return blocked.union(new)
        blocked |= self._look(connection, new, paused)
        ended = time.monotonic()
        if ended - begun > _LONG:
            self._next_look = ended + _PAUSE * (ended - begun)
        return blocked

    def _look(
        self, connection: Connection, letters: Sequence[Letter], paused: Sequence[str]
    ) -> frozenset[Letter]:
        lows: dict[int, int] = {}
        by_key: dict[str | None, list[Letter]] = {}
        for letter in letters:
            by_key.setdefault(letter.key, []).append(letter)
            for each in self._generations:
                bucket = each.bucket_of(letter.name)
                if bucket != letter.bucket:
                    lows[bucket] = self._marks.get(bucket, 0)
        if not lows:
            return frozenset()
        high = max(letter.sequence for letter in letters)
        keys = [key for key in by_key if key is not None]
        found = self._database.firsts(connection, lows, high, keys, paused)
        return frozenset(
            letter
            for key, bucket, first in found
            for letter in by_key[key]
            if letter.bucket != bucket and letter.sequence > first
        )
