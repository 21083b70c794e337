"""Deletes the buckets of old generations, once they are empty and no program writes to them any more."""

import logging
import time
from itertools import pairwise

from sqlalchemy import Connection

from inbox_outbox_base.databases import member_statements
from inbox_outbox_base.databases.relaying import PREPARED, Relaying
from outbox._publishing.buckets import Generation, generations

KEPT = 86_400.0
"""Seconds for which buckets are kept after newer ones were added: a transaction that began earlier, and sees
an old state of the database, may still write to them."""
_EVERY = 60.0

_log = logging.getLogger("outbox.relay")


class Retirement:
    """The old generations that one relay watches."""

    def __init__(self, database: Relaying) -> None:
        self._database = database
        self._next = 0.0
        self._running: dict[int, frozenset[str]] = {}
        """By generation, the transactions that were running when it became old enough."""

    @property
    def is_due(self) -> bool:
        """Whether to call `step`."""
        return time.monotonic() >= self._next

    def step(self, connection: Connection) -> None:
        """Delete the buckets that can be deleted."""
        self._next = time.monotonic() + _EVERY
        tables = self._database.tables
        aged = set(connection.execute(member_statements.aged(tables), {"age": -KEPT}).scalars())
        known = [each for each in generations(connection, tables) if each.is_open]
        old = [each for each, following in pairwise(known) if following.number in aged]
        running = self._database.running(connection)
        for each in old:
            # A transaction that is prepared meanwhile loses its name.
            before = self._running.setdefault(each.number, running | {PREPARED})
            if not (before & running) and not self._is_used(connection, each):
                connection.execute(member_statements.retire(tables), {"generation_": each.number})
                _log.info("the %d buckets of generation %d are deleted", len(each.buckets), each.number)

    def _is_used(self, connection: Connection, generation: Generation) -> bool:
        tables, buckets = self._database.tables, generation.buckets
        given = {"first": buckets.start, "last": buckets.stop - 1}
        return any(
            connection.execute(member_statements.anything(table), given).first() is not None
            for table in (tables.message, tables.delayed)
        )
