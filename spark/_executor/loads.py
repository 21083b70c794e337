"""The loads of a consumer: which partition of a job has written a key in bulk, and when."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from inbox_outbox_base.databases.loading_values import Owner, WriterClaim
from inbox_outbox_base.tables.inbox import Tables


@dataclass(frozen=True, slots=True)
class Load:
    """A row of the ledger."""

    id: int
    run: str
    batch: int
    part: int
    committed_at: datetime


class Loads:
    """A consumer's rows of the ledger, read again when they have changed."""

    def __init__(self, tables: Tables, consumer: str) -> None:
        self._tables = tables
        self._consumer = consumer
        self._by_id: dict[int, Load] = {}
        self._by_claim: dict[bytes, Load] = {}
        self._seen: tuple[int, int | None] = (0, None)

    def refresh(self, connection: Connection) -> None:
        """Read the ledger; call this after the keys were read: a key is committed together with its load."""
        c = self._tables.ledger.c
        # With the count: a row may become visible later than one with a higher id.
        counted = select(func.count(), func.max(c.id)).where(c.consumer == self._consumer)
        there = connection.execute(counted).one()
        if tuple(there) == self._seen:
            return
        columns = (c.id, c.run, c.batch, c.part, c.committed_at)
        for row in connection.execute(select(*columns).where(c.consumer == self._consumer).order_by(c.id)):
            load = Load(*row)
            self._by_id[load.id] = load
            if load.part >= 0:
                claim = WriterClaim.of(self._tables, self._consumer, load.run, load.batch, load.part)
                self._by_claim[claim.partition] = load
        self._seen = (there[0], there[1])

    def of(self, owner: Owner | None) -> Load | None:
        """The load that has written a key; None if the key came alone, or its load has left the ledger."""
        if isinstance(owner, bytes):
            return self._by_claim.get(owner[:10])
        return None if owner is None else self._by_id.get(owner)
