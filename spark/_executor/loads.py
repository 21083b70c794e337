"""The loads of a consumer: which partition of a job has written a key in bulk, and when."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from inbox_outbox_base.databases.loading_values import Owner
from inbox_outbox_base.tables.inbox import Tables

from .ledger import by_id


@dataclass(frozen=True, slots=True)
class Load:
    """A row of the ledger."""

    id: int
    run: str
    batch: int
    part: int
    committed_at: datetime


class Loads:
    """The rows of the ledger that the keys of one page name."""

    def __init__(self, tables: Tables, consumer: str) -> None:
        self._tables = tables
        self._consumer = consumer
        self._by_id: dict[int, Load] = {}

    def find(self, connection: Connection, owners: Iterable[Owner | None]) -> None:
        """Read the loads of these owners; call this after the keys were read: a key is committed together
        with its load."""
        c = self._tables.ledger.c
        ids = {owner for owner in owners if isinstance(owner, int)}
        known = {each.id: each for each in self._by_id.values() if each.id in ids}
        query = select(c.id, c.run, c.batch, c.part, c.committed_at).where(c.consumer == self._consumer)
        rows = by_id(connection, self._tables, ids - known.keys(), query)
        self._by_id = known | {row.id: Load(**row._mapping) for row in rows}  # noqa: SLF001 - it is public

    def of(self, owner: Owner | None) -> Load | None:
        """The load that has written a key; None if the key came alone, or its load has left the ledger."""
        return self._by_id.get(owner) if isinstance(owner, int) else None
