"""MySQL and MariaDB: messages are deleted by their keys, one look-up each; and only buckets that are not
empty are asked for their oldest messages, since every question is a round trip.

With a list of keys the optimizer may read a small table from end to end, and a DELETE waits for whatever it
reads: then the relay would stand still for as long as some transaction that has published is open.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select, text

from .. import _statements
from .._letter import Letter
from ..schema import OutboxTables
from ._database import Database, Found, Scan, parts

_FORGET = text(
    "DELETE message FROM"
    " JSON_TABLE(:these, '$[*]' COLUMNS (sequence BIGINT PATH '$[0]', id VARCHAR(36) PATH '$[1]')) AS given"
    " STRAIGHT_JOIN outbox_message AS message FORCE INDEX (PRIMARY) ON message.sequence = given.sequence"
    " WHERE CAST(message.id AS BINARY) = CAST(given.id AS BINARY)"
)


@cache
def filled(tables: OutboxTables) -> Select[Any]:
    """Of some buckets, those that are not empty: by a loose index scan, one jump for each."""
    c = tables.message.c
    return select(c.bucket).where(c.bucket.in_(bindparam("buckets", expanding=True))).distinct()


class MySQL(Database):
    """The portable way, but for what would wait."""

    def scan(self, connection: Connection, tables: OutboxTables, wanted: Scan) -> Found:
        buckets = [bucket for bucket, _ in wanted.places]
        not_empty = set(connection.execute(filled(tables), {"buckets": buckets}).scalars())
        places = [place for place in wanted.places if place[0] in not_empty]
        return super().scan(connection, tables, replace(wanted, places=places))

    def forget(
        self, connection: Connection, tables: OutboxTables, letters: Sequence[Letter], *, keep_sent: bool
    ) -> None:
        for part in parts(letters):
            if keep_sent:
                sequences = [letter.sequence for letter in part]
                connection.execute(_statements.keep_sent(tables), {"these": sequences})
            these = [(letter.sequence, letter.envelope.id) for letter in part]
            connection.execute(_FORGET, {"these": json.dumps(these)})
