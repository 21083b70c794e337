"""MySQL and MariaDB: messages are deleted by their keys, one look-up each. Only non-empty buckets are asked
for their oldest messages, since every query is a round trip.

With a list of keys the optimizer may scan all of a small table, and a DELETE waits for every row that it
reads: then the relay would stall as long as some transaction that has published is open.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, insert, select, text
from sqlalchemy.exc import IntegrityError

from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.relaying import Relaying, Scan, ScanResult, parts
from inbox_outbox_base.tables.outbox import OutboxTables

_FORGET = text(
    "DELETE message FROM"
    " JSON_TABLE(:these, '$[*]' COLUMNS (sequence BIGINT PATH '$[0]', id VARCHAR(128) PATH '$[1]')) AS given"
    " STRAIGHT_JOIN outbox_message AS message FORCE INDEX (PRIMARY) ON message.sequence = given.sequence"
    " WHERE CAST(message.id AS BINARY) = CAST(given.id AS BINARY)"
)

_FREE_IDS = text(
    "DELETE used FROM JSON_TABLE(:these, '$[*]' COLUMNS (id VARCHAR(128) PATH '$')) AS given"
    " STRAIGHT_JOIN outbox_id AS used FORCE INDEX (PRIMARY) ON used.id = CAST(given.id AS BINARY)"
)


@cache
def used_ids(tables: OutboxTables) -> Select[Any]:
    """Which ids are in use, as far as the transaction sees; locks nothing."""
    c = tables.ids.c
    return select(c.id).where(c.id.in_(bindparam("ids", expanding=True)))


@cache
def filled(tables: OutboxTables) -> Select[Any]:
    """The non-empty ones of some buckets: a loose index scan, one jump for each."""
    c = tables.message.c
    return select(c.bucket).where(c.bucket.in_(bindparam("buckets", expanding=True))).distinct()


class MySQLRelaying(Relaying):
    """The portable way, except where it would wait."""

    def scan(self, connection: Connection, wanted: Scan) -> ScanResult:
        buckets = [bucket for bucket, _ in wanted.places]
        not_empty = set(connection.execute(filled(self.tables), {"buckets": buckets}).scalars())
        places = [place for place in wanted.places if place[0] in not_empty]
        found = super().scan(connection, replace(wanted, places=places))
        return replace(found, seen=found.seen | (set(buckets) - not_empty))

    def forget(self, connection: Connection, letters: Sequence[Letter], *, keep_sent: bool) -> None:
        for part in parts(letters):
            if keep_sent:
                sequences = [letter.sequence for letter in part]
                connection.execute(relaying_statements.keep_sent(self.tables), {"these": sequences})
            these = [(letter.sequence, letter.id) for letter in part]
            connection.execute(_FORGET, {"these": json.dumps(these)})

    def take_ids(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        # An INSERT that finds an id locks its row until the transaction ends, and a relay that wants to
        # delete it must wait. So only ids that are not visible are inserted.
        taken: set[str] = set()
        for part in parts(ids):
            used = set(connection.execute(used_ids(self.tables), {"ids": part}).scalars())
            taken |= self._take_unused(connection, [each for each in part if each not in used])
        return taken

    def _take_unused(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        """Bisect down to the ids that somebody has taken in the meantime: one statement inserts all or
        none."""
        if not ids:
            return set()
        try:
            connection.execute(insert(self.tables.ids).values([{"id": each} for each in ids]))
        except IntegrityError:
            if len(ids) == 1:
                return set()
            half = len(ids) // 2
            halves = ids[:half], ids[half:]
            return set().union(*(self._take_unused(connection, each) for each in halves))
        return set(ids)

    def free_ids(self, connection: Connection, ids: Sequence[str]) -> None:
        for part in parts(ids):
            connection.execute(_FREE_IDS, {"these": json.dumps(part)})
