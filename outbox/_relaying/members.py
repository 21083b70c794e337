"""Which relay owns which bucket.

A relay gets an epoch (a fencing token) when it joins, and its row holds a lease that it renews. The buckets
it takes carry its epoch, and every write repeats the epoch in the same transaction. A relay whose lease has
expired is retired: its row is deleted, so that all its later writes fail, and its buckets are free until
others take them. Live relays give up buckets above their share, once nothing of them is being sent. All
relays have the same share, and the oldest ones one bucket more as long as buckets are left over.
"""

import json
import logging
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row

from inbox_outbox_base.databases import member_statements
from inbox_outbox_base.databases.letter import Letter
from outbox.schema import OutboxTables

_log = logging.getLogger("outbox.relay")
_SOON, _LEAST = 1.0, 0.1
"""Seconds until a relay that has not got its share tries again, and between two tries for other reasons."""

Bucket = Row[Any, Any, Any]
"""A bucket, its stored mark, and the origin of the mark."""


class Members:
    """The group of relays, as the tables record it."""

    def __init__(self, tables: OutboxTables) -> None:
        self._tables = tables

    def join(self, connection: Connection, name: str, lease: float, generation: int) -> int:
        """Join the relays; return the epoch, which is larger than any before it."""
        given = {"name": name, "lease": lease, "generation": generation}
        added = connection.execute(member_statements.join(self._tables), given)
        key = added.inserted_primary_key
        assert key is not None  # noqa: S101 - a single row was inserted
        return int(key[0])

    def told(self, connection: Connection, epoch: int) -> int | None:
        """The last generation of buckets of which a relay was told; None if it was retired."""
        found: int | None = connection.execute(
            member_statements.told(self._tables), {"epoch_": epoch}
        ).scalar()
        return found

    def leave(self, connection: Connection, epoch: int) -> None:
        """Leave the group; the relay's buckets become free immediately."""
        connection.execute(member_statements.free_all(self._tables), {"epoch_": epoch})
        connection.execute(member_statements.leave(self._tables), {"epoch_": epoch})

    def note(self, connection: Connection, epoch: int, letters: Iterable[Letter]) -> None:
        """Record what is about to be sent: if the relay is lost, these may have been sent or not."""
        sending: dict[int, list[int]] = {}
        for letter in letters:
            sending.setdefault(letter.bucket, []).append(letter.sequence)
        text = json.dumps(sending, separators=(",", ":")) if sending else None
        connection.execute(member_statements.note(self._tables), {"epoch_": epoch, "sending": text})

    def retire_expired(self, connection: Connection) -> None:
        """Free the buckets of relays whose lease has expired, and count their unfinished sends."""
        for relay in connection.execute(member_statements.expired(self._tables)).all():
            sending = json.loads(relay.sending or "{}")
            error = f"relay {relay.name} was lost while it was sending"
            suspects = [
                {"bucket_": int(bucket), "sequence_": sequence, "error_": error}
                for bucket, sequences in sending.items()
                for sequence in sequences
            ]
            if suspects:
                connection.execute(member_statements.suspect(self._tables), suspects)
            self.leave(connection, relay.epoch)
            _log.warning("relay %s (epoch %d) lost its lease: its buckets are free", relay.name, relay.epoch)

    def owned(self, connection: Connection, epoch: int) -> list[Bucket]:
        """The buckets of a relay, with their marks."""
        return list(connection.execute(member_statements.owned(self._tables), {"epoch_": epoch}).all())

    def balance(
        self, connection: Connection, epoch: int, busy: Collection[int]
    ) -> tuple[list[Bucket], float]:
        """Take free buckets up to a fair share, or give up the surplus. Busy buckets have messages on their
        way: they are given up when those have an answer, and nothing is to be sent from them until then.

        The transaction has renewed the relay's lease: on SQLite, this write keeps other relays from taking
        the same buckets.

        Returns:
            The buckets it owns and keeps, with their marks, and the seconds until it should balance again:
            when the next lease of another relay ends, or soon if this or another relay has more than its
            share.
        """
        mine = self.owned(connection, epoch)
        buckets = connection.execute(member_statements.count_buckets(self._tables)).scalar_one()
        relays = connection.execute(member_statements.live(self._tables)).all()
        others = [relay for relay in relays if relay.epoch != epoch]
        share = share_of(epoch, [other.epoch for other in others], buckets)
        is_settled = True
        if len(mine) > share:
            surplus = [each.bucket for each in mine[share:] if each.bucket not in busy]
            if surplus:
                connection.execute(member_statements.take(self._tables), {"these": surplus, "epoch": None})
            is_settled = len(mine) == share + len(surplus)
            mine = mine[:share]
        if len(mine) < share:
            wanted = {"limit": share - len(mine)}
            taken = connection.execute(member_statements.free(self._tables), wanted).all()
            if taken:
                these = [each.bucket for each in taken]
                connection.execute(member_statements.take(self._tables), {"these": these, "epoch": epoch})
            mine += taken
            is_settled = len(mine) == share
        ends = ((other.lease_until - other.now).total_seconds() for other in others)
        again = max(_LEAST, min(ends, default=math.inf)) if is_settled else _SOON
        return mine, again


def share_of(epoch: int, others: Sequence[int], buckets: int) -> int:
    """How many buckets a relay should own beside others with these epochs."""
    each, rest = divmod(buckets, 1 + len(others))
    older = sum(other < epoch for other in others)
    return each + (older < rest)
