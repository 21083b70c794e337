"""Which relay owns which bucket.

A relay draws an epoch (a fencing token) when it joins, and its row holds a lease that it renews. The buckets
that it takes carry its epoch, and every transaction that writes checks the epoch. A relay whose lease has
expired is retired: its row is deleted, so that all its later writes fail, and its buckets are free until
others take them. A live relay gives up the buckets above its share, each once no message of it is being sent.
All relays have the same share; if buckets are left over, the oldest relays get one more each.
"""

import json
import logging
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row

from inbox_outbox_base.databases import member_statements
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.errors.outbox import UnsafeDatabase
from outbox._publishing.buckets import draw_number
from outbox.schema import OutboxTables

_log = logging.getLogger("outbox.relay")
_SOON, _LEAST = 1.0, 0.1
"""Seconds until a relay that lacks buckets of its share tries again, and the least between two tries."""

Bucket = Row[Any, Any, Any]
"""A bucket, its stored mark, and the origin of the mark."""


class Members:
    """The group of relays, as the tables record it."""

    def __init__(self, tables: OutboxTables) -> None:
        self._tables = tables

    def join(
        self, connection: Connection, name: str, lease: float, generation: int, *, keeps_sent: bool
    ) -> int:
        """Join the group; return the epoch."""
        epoch = draw_number()
        given: dict[str, Any] = {"epoch": epoch, "name": name, "lease": lease, "generation": generation}
        given |= {"keeps_sent": keeps_sent or None, "lease_ms": round(lease * 1_000)}
        connection.execute(member_statements.join(self._tables), given)
        return epoch

    def check_clocks(self, connection: Connection, lease: float) -> None:
        """Refuse a server whose clock is far behind that of another relay's server: there, the leases of this
        relay would end too early.

        Raises:
            UnsafeDatabase: it is behind by a third of a lease or more: a lease has so much left at the least.
        """
        for relay in connection.execute(member_statements.live(self._tables)):
            own = (relay.lease_ms or 0) / 1_000
            ahead = (relay.lease_until - relay.now).total_seconds() - own
            if own and ahead >= min(own, lease) / 3:
                raise UnsafeDatabase(
                    f"the relay with epoch {relay.epoch} has renewed its lease {ahead:.1f} s in the future: "
                    "the clocks of the nodes differ by so much, and leases would be taken over too early; "
                    "synchronise the clocks, or use longer leases"
                )

    def announced(self, connection: Connection, epoch: int) -> int | None:
        """The newest generation of buckets announced to a relay; None if the relay was retired."""
        found: int | None = connection.execute(
            member_statements.announced(self._tables), {"epoch_": epoch}
        ).scalar()
        return found

    def leave(self, connection: Connection, epoch: int) -> None:
        """Leave the group; the relay's buckets become free immediately."""
        connection.execute(member_statements.free_all(self._tables), {"epoch_": epoch})
        connection.execute(member_statements.leave(self._tables), {"epoch_": epoch})

    def note_topics(
        self, connection: Connection, epoch: int, crowded_by: str | None, lanes: str | None
    ) -> None:
        """Record which topic fills a relay's memory, and which ones the broker rejects."""
        given = {"epoch_": epoch, "crowded_by": crowded_by, "lanes": lanes}
        connection.execute(member_statements.note_topics(self._tables), given)

    def retire_expired(self, connection: Connection, epoch: int) -> bool:
        """Free the buckets of other relays whose lease has expired, and count their unfinished sends; return
        whether one of them kept no records of what it sent."""
        lost = connection.execute(member_statements.expired(self._tables), {"epoch_": epoch}).all()
        for relay in lost:
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
        return not all(relay.keeps_sent for relay in lost)

    def owned(self, connection: Connection, epoch: int) -> list[Bucket]:
        """The buckets of a relay, with their marks."""
        return list(connection.execute(member_statements.owned(self._tables), {"epoch_": epoch}).all())

    def balance(
        self, connection: Connection, epoch: int, busy: Collection[int]
    ) -> tuple[list[Bucket], float]:
        """Take free buckets up to a fair share, or give up the surplus. Busy buckets have messages on their
        way: the relay sends nothing more from them, and gives them up once these messages have an answer.

        The transaction has renewed the relay's lease: on SQLite, this write keeps other relays from taking
        the same buckets.

        Returns:
            The buckets that the relay keeps, with their marks; and the seconds until it should balance again:
            when the next lease of another relay ends, or soon if a relay has more buckets than its share.
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
            gone = connection.execute(member_statements.gone(self._tables)).scalars().all()
            wanted = {"limit": share - len(mine), "gone": gone}
            taken = connection.execute(member_statements.free(self._tables), wanted).all()
            if taken:
                these = [each.bucket for each in taken]
                connection.execute(member_statements.take(self._tables), {"these": these, "epoch": epoch})
            mine += taken
            is_settled = len(mine) == share
        ends = ((other.lease_until - other.now).total_seconds() for other in others)
        again = max(_LEAST, min(ends, default=math.inf)) if is_settled else _SOON
        return mine, again


def sending(letters: Iterable[Letter]) -> str | None:
    """What a relay's row says about the messages that it is about to send: if the relay is lost, each of them
    may have been sent."""
    places: dict[int, list[int]] = {}
    for letter in letters:
        places.setdefault(letter.bucket, []).append(letter.sequence)
    return json.dumps(places, separators=(",", ":")) if places else None


def share_of(epoch: int, others: Sequence[int], buckets: int) -> int:
    """How many buckets a relay should own beside others with these epochs."""
    each, rest = divmod(buckets, 1 + len(others))
    older = sum(other < epoch for other in others)
    return each + (older < rest)
