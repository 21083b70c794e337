"""PostgreSQL: all buckets in one statement, and marks that let scans skip the dead rows that cannot be
cleaned up because of an old transaction."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import chain, repeat
from typing import Any

from sqlalchemy import Connection, Insert, Select, Table, event

from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.as_text import execute
from inbox_outbox_base.databases.letter import Letter, Place, read
from inbox_outbox_base.databases.relaying import (
    PREPARED,
    Relaying,
    Scan,
    ScanResult,
    Writers,
    completed,
    waits,
)
from inbox_outbox_base.errors.outbox import UnsafeSequence

from . import numbers
from . import relaying_statements as own
from .drivers.driver import driver_behind

_MANY, _MOST = 10, 5_000
"""The least and the most messages that one statement inserts together."""


class PostgreSQLRelaying(Relaying):
    """One statement for all buckets, with arrays instead of long lists of parameters."""

    has_notifications = True
    tells_writers = True

    def add(self, connection: Connection, rows: list[dict[str, Any]]) -> None:
        names = relaying_statements.columns(rows)
        if len(rows) < _MANY:
            execute(connection, relaying_statements.add(self.tables, names), completed(rows, names))
        else:
            names = tuple(name for name in names if name != "payload")
            for start in range(0, len(rows), _MOST):
                pieces = _in_pieces(rows[start : start + _MOST], names)
                connection.execute(own.add_many(self.tables, names), pieces)

    def take_ids(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        return {row.id for row in connection.execute(own.take_ids(self.tables), {"ids": json.dumps(ids)})}

    def prepare(self, connection: Connection) -> None:
        connection.execute(own.prepare())

    def hold(self, connection: Connection, epoch: int, generation: int, lease: float) -> bool:
        given = {"epoch_": epoch, "generation_": generation, "limit": _milliseconds(lease)}
        return connection.execute(own.hold(self.tables), given).first() is not None

    def renew(self, connection: Connection, epoch: int, generation: int, lease: float) -> bool:
        given: dict[str, Any] = {"epoch_": epoch, "generation_": generation, "lease": lease}
        given["limit"] = _milliseconds(lease)
        return connection.execute(own.renew(self.tables), given).first() is not None

    def scan(self, connection: Connection, wanted: Scan) -> ScanResult:
        parameters: dict[str, Any] = {
            "buckets": _array(bucket for bucket, _ in wanted.places),
            "lows": _array(low for _, low in wanted.places),
            "limit": wanted.limit,
            "each": wanted.each,
            "light": wanted.light,
        }
        known = [*chain.from_iterable(wanted.known.values())]
        if known:
            buckets = (repeat(bucket, len(its)) for bucket, its in wanted.known.items())
            parameters |= {"known": _array(known), "known_buckets": _array(chain.from_iterable(buckets))}
        if wanted.paused:
            parameters["paused"] = wanted.paused
        statement = own.scan(self.tables, unknown=bool(known), unpaused=bool(wanted.paused))
        letters = _read(connection, statement, parameters)
        seen = [bucket for bucket, _ in wanted.places]
        if len(letters) >= wanted.limit:  # the scan stopped in the last one's bucket
            seen = seen[: seen.index(letters[-1].bucket)]
        cut = Counter(letter.bucket for letter in letters)
        return ScanResult(letters, {bucket for bucket in seen if cut[bucket] < wanted.each})

    def fetch(self, connection: Connection, places: Sequence[Place], light: int) -> list[Letter]:
        return _read(connection, own.fetch(self.tables), _places(places) | {"light": light})

    def progress(self, connection: Connection, places: Sequence[Place]) -> dict[Place, float]:
        return waits(connection.execute(own.progress(self.tables), _places(places)).all())

    def firsts(
        self,
        connection: Connection,
        lows: Mapping[int, int],
        high: int,
        keys: Sequence[str],
        paused: Sequence[str],
    ) -> list[tuple[str, int, int]]:
        given: dict[str, Any] = {"buckets": _array(lows), "lows": _array(lows.values())}
        given |= {"high": high, "keys": [*keys]}
        if paused:
            given["paused"] = paused
        rows = connection.execute(own.firsts(self.tables, unpaused=bool(paused)), given)
        return [(row.key, row.bucket, row.sequence) for row in rows]

    def payloads(self, connection: Connection, letters: Sequence[Letter]) -> dict[Place, bytes]:
        found = connection.execute(own.payloads(self.tables), _these(letters))
        return {(row.bucket, row.sequence): row.payload for row in found}

    def left(self, connection: Connection, letters: Sequence[Letter]) -> list[str]:
        given = _these(letters) | {"ids": _ids(letters)}
        return list(connection.execute(own.left(self.tables), given).scalars())

    def forget(self, connection: Connection, letters: Sequence[Letter], *, keep: float | None) -> None:
        given: dict[str, Any] = _these(letters) | {"ids": _ids(letters)}
        if keep is None:
            connection.execute(own.forget(self.tables), given)
        else:
            connection.execute(own.record_sent(self.tables), given | {"keep": keep})

    def _gone(self) -> Insert:
        return own.gone(self.tables)

    def writers(self, connection: Connection) -> Writers | None:
        # First the sequence, then the locks: a transaction takes the lock before it draws a sequence.
        drawn, origin = self._drawn(connection)
        writing = frozenset(connection.execute(numbers.transactions(self.tables)).scalars())
        # A prepared transaction belongs to no session: its virtual number begins with -1.
        return Writers(drawn, writing, origin, any(each.startswith("-") for each in writing))

    def _drawn(self, connection: Connection) -> tuple[int, str]:
        """The highest sequence drawn so far, and its origin."""
        drawn, origin, cached = connection.execute(numbers.highest(self.tables)).one()
        if cached > 1:
            raise UnsafeSequence(numbers.refusal(self.tables, cached))
        return drawn, origin

    def check_sequence(self, connection: Connection) -> None:
        before, _ = self._drawn(connection)
        highest = connection.execute(numbers.above(self.tables), {"drawn": before}).scalar()
        if highest is None:
            return
        # Again: others may have drawn numbers since.
        message = self.tables.message
        drawn, name = connection.execute(numbers.last_drawn(message, "sequence")).one()
        if name is not None and highest > drawn:
            raise UnsafeSequence(numbers.behind(f"{message.fullname}.sequence", name, drawn, highest))

    def running(self, connection: Connection) -> frozenset[str]:
        names = connection.execute(numbers.running()).scalars()
        return frozenset(PREPARED if name.startswith("-") else name for name in names)

    def marks(self, connection: Connection) -> dict[int, int]:
        return {row.bucket: row.mark for row in connection.execute(numbers.marks(self.tables))}

    def pages(self, connection: Connection) -> int:
        return int(connection.execute(numbers.pages(self.tables.message)).scalar_one())

    def below(
        self, connection: Connection, marks: Mapping[int, int], paused: Sequence[str], pages: range
    ) -> list[Place]:
        given = {
            "first": f"({pages.start},0)",
            "last": f"({pages.stop},0)",
            "highest": max(marks.values(), default=0),
            "buckets": _array(marks),
            "marks": _array(marks.values()),
            "paused": paused,
        }
        return [(row.bucket, row.sequence) for row in connection.execute(numbers.below(self.tables), given)]

    def estimate(self, connection: Connection, table: Table) -> int:
        return int(connection.execute(numbers.density(table)).scalar_one())


def _read(connection: Connection, statement: Select[Any], parameters: dict[str, Any]) -> list[Letter]:
    event.listen(connection, "before_cursor_execute", _in_binary)
    try:
        with closing(connection.execute(statement, parameters)) as result:
            rows: Any = result.cursor.fetchall()  # the driver's own rows: nothing has to be converted
    finally:
        event.remove(connection, "before_cursor_execute", _in_binary)
    if not driver_behind(connection).has_bytes:
        rows = [tuple(map(_bytes, row)) for row in rows]
    rows.reverse()  # drop each row as soon as it is read: garbage collection has less to look at
    return [read(rows.pop()) for _ in range(len(rows))]


def _bytes(value: Any) -> Any:
    return value.tobytes() if isinstance(value, memoryview) else value


def _in_binary(_: Connection, cursor: Any, *statement: object) -> None:
    """Let the server send values in its binary format: as text, a payload has twice as many bytes."""
    own = getattr(cursor, "_cursor", cursor)  # an asynchronous engine's cursor has psycopg's inside
    if hasattr(own, "format") and not hasattr(own, "mogrify"):  # psycopg's ClientCursor reads only text
        own.format = 1


def _in_pieces(rows: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
    """The parameters of `add_many`."""
    described, start = [], 1
    for place, row in enumerate(rows):
        size = len(row["payload"])
        named = {name: row.get(name) for name in names}
        described.append(named | {"place": place, "start": start, "size": size})
        start += size
    return {
        "rows": json.dumps(described, ensure_ascii=False, separators=(",", ":")),
        "payloads": b"".join(row["payload"] for row in rows),
    }


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1_000:.0f}"


def _array(numbers: Iterable[int]) -> str:
    """An array literal: many times faster than a parameter for each number."""
    return f"{{{str([*numbers])[1:-1]}}}"


def _ids(letters: Sequence[Letter]) -> str:
    """An array of ids; ids chosen by producers may contain any characters."""
    ids = [letter.id for letter in letters]
    text = '","'.join(ids)
    if "\\" in text or text.count('"') > 2 * len(ids) - 2:
        text = '","'.join(each.replace("\\", "\\\\").replace('"', '\\"') for each in ids)
    return f'{{"{text}"}}'


def _these(letters: Sequence[Letter]) -> dict[str, Any]:
    """The places of messages as parameters; some statements take ids as well."""
    return {
        "buckets": _array([letter.bucket for letter in letters]),
        "sequences": _array([letter.sequence for letter in letters]),
    }


def _places(places: Sequence[Place]) -> dict[str, Any]:
    """Places as parameters."""
    return {
        "buckets": _array([bucket for bucket, _ in places]),
        "sequences": _array([sequence for _, sequence in places]),
    }
