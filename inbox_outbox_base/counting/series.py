"""Stores what is counted in each minute, makes rows for ten minutes of old ones, and reads both."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Table

from inbox_outbox_base.checks.missing import refused
from inbox_outbox_base.databases.taking_statements import clock
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.words.series import SAMPLES, STEPS, Series, SeriesKind, SeriesPoint, SeriesSpan

from . import series_statements

_log = logging.getLogger("inbox.series")

FOLD_EVERY = 60.0
"""Seconds between two looks for minutes to fold."""
_MINUTES_KEPT = timedelta(hours=2)
_KEPT = timedelta(days=7, hours=1)
"""A week, and the interval in which a series of a week begins."""
_TEN = timedelta(minutes=10)
_MANY = timedelta(hours=1)
"""The rows of how much time one call deletes."""
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_FOLDED = "folded"
_MOST_NAMES = 50
"""The most topics or consumers that one source counts apart in a minute; all others are one, without name."""

Numbers = Counter[tuple[str, str]]
"""By kind, and by topic or consumer."""
_Row = tuple[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class SeriesWritten:
    """What a transaction has written, if it commits."""

    minute: datetime
    counted: Numbers
    samples: Mapping[str, int]


class SeriesWriter:
    """What one relay or process counts: in memory, until `write` stores it. `add` and `sample` may be called
    from any thread, the others from one at a time.

    It stores what it has counted in this minute so far, in place of what it stored before. So a transaction
    can be repeated, whether or not it has committed.

    Args:
        table: `ops_minute`.
        source: the name of its rows, which nobody else has.
    """

    def __init__(self, table: Table, source: str) -> None:
        self._table = table
        self._source = source
        self._lock = threading.Lock()
        self._counted: Numbers = Counter()
        self._samples: dict[str, int] = {}
        self._names: set[str] = set()
        self._minute = _BEGINNING
        self._stored: Numbers = Counter()
        """What is stored of this minute."""
        self._is_possible = self._folds = True

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store."""
        return not (self._counted or self._samples)

    @property
    def is_possible(self) -> bool:
        """Whether it stores anything: the table and the right to it are not known to be missing."""
        return self._is_possible

    def add(self, kind: SeriesKind, name: str, number: int = 1) -> None:
        """Count messages of a topic or a consumer."""
        with self._lock:
            self._counted[kind, self._known(name)] += number

    def add_all(self, numbers: Numbers) -> None:
        """Count these."""
        with self._lock:
            self._counted += self._named(numbers)

    def _known(self, name: str) -> str:
        if name not in self._names:
            if len(self._names) >= _MOST_NAMES:
                return ""
            self._names.add(name)
        return name

    def _named(self, numbers: Numbers) -> Numbers:
        named: Numbers = Counter()
        for (kind, name), number in numbers.items():
            named[kind, self._known(name)] += number
        return named

    def sample(self, kind: SeriesKind, number: int) -> None:
        """Note a number that is not added up; the last one of a minute counts."""
        with self._lock:
            self._samples[kind] = number

    def clear(self) -> None:
        """Forget what is not stored yet."""
        with self._lock:
            self._counted, self._samples = Counter(), {}

    def write(self, connection: Connection, last: Numbers | None = None) -> SeriesWritten | None:
        """Store what is not stored yet, in the transaction on the connection, which has written something
        before. After the commit call `committed`. `last` is stored as well, and not counted if the
        transaction fails.

        Without the table or the right to it, one WARNING is logged, and nothing is stored any more.
        """
        if not self._is_possible:
            self.clear()
            return None
        if self.is_empty and not last:
            return None
        minute = connection.execute(clock()).scalar_one().replace(second=0, microsecond=0)
        with self._lock:
            counted = self._counted + self._named(last or Counter())
            written = SeriesWritten(minute, counted, dict(self._samples))
        stored = self._stored if minute == self._minute else Counter()
        rows = [(key, stored[key] + number) for key, number in written.counted.items()]
        rows += [((kind, ""), number) for kind, number in written.samples.items()]
        error = self._refused(connection, lambda: self._put(connection, minute, self._source, rows))
        if error is not None:
            self._is_possible = False
            _log.warning("what is counted by the minute is not stored until this process restarts: %s", error)
            return None
        return written

    def committed(self, written: SeriesWritten) -> None:
        """Note that this is stored."""
        with self._lock:
            if written.minute != self._minute:
                self._minute, self._stored, self._names = written.minute, Counter(), set()
            self._stored += written.counted
            self._counted -= written.counted
            self._samples = {k: v for k, v in self._samples.items() if v != written.samples.get(k)}

    def fold(self, connection: Connection) -> bool:
        """Let old minutes become rows for ten minutes, and delete what is older than a week: a bounded number
        of rows; return whether there may be more. Of several processes, one does it. Without the right to
        it, one WARNING is logged."""
        if not (self._is_possible and self._folds):
            return False
        more: list[bool] = []
        error = self._refused(connection, lambda: more.append(self._fold(connection)))
        if error is not None:
            self._folds = False
            _log.warning("what was counted by the minute is not summarised or deleted here: %s", error)
        return any(more)

    def _fold(self, connection: Connection) -> bool:
        now: datetime = connection.execute(clock()).scalar_one()
        place = {"minute_": _BEGINNING, "kind_": _FOLDED}
        progress = series_statements.progress(self._table)
        minutes = connection.execute(progress.with_for_update(skip_locked=True), place).scalar()
        if minutes is None:
            if connection.execute(progress, place).first() is None:  # else somebody else has locked it
                self._put(connection, _BEGINNING, "", [((_FOLDED, ""), 0)])
            return False
        begun, end = _BEGINNING + timedelta(minutes=minutes), _floor(now - _MINUTES_KEPT, _TEN)
        between = {"first": begun, "end": end}
        found = connection.execute(series_statements.first_minute(self._table), between).scalar()
        if found is not None:
            self._fold_ten(connection, first := _floor(found, _TEN))
            end = first + _TEN
        if end > begun:
            number = (end - _BEGINNING) // timedelta(minutes=1)
            self._put(connection, _BEGINNING, "", [((_FOLDED, ""), number)])
        return self._forget(connection, now - _KEPT) or found is not None

    def _fold_ten(self, connection: Connection, first: datetime) -> None:
        between = {"first": first, "end": first + _TEN}
        found = connection.execute(series_statements.folded(self._table), between).all()
        rows = [((row.kind, row.name), _number(row)) for row in found]
        self._put(connection, first, "", rows)
        connection.execute(series_statements.forget_minutes(self._table), between)

    def _forget(self, connection: Connection, before: datetime) -> bool:
        first = series_statements.first_row(self._table)
        oldest = connection.execute(first, {"minute_": _BEGINNING}).scalar()
        if oldest is None or oldest >= before:
            return False
        between = {"first": oldest, "end": min(oldest + _MANY, before)}
        connection.execute(series_statements.forget(self._table), between)
        return True

    def _put(self, connection: Connection, minute: datetime, source: str, rows: Iterable[_Row]) -> None:
        given = {"minute": minute, "source": source}
        write = series_statements.write(self._table, connection.dialect.name)
        found = [given | {"kind": str(kind), "name": name, "number": each} for (kind, name), each in rows]
        connection.execute(write, found)

    def _refused(self, connection: Connection, work: Callable[[], object]) -> str | None:
        """Do it; return why if the table or the right is missing."""
        error = refused(connection, self._table, work)
        return None if error is None else reason(error)


def read_series(
    connection: Connection, table: Table, span: SeriesSpan, kinds: Sequence[SeriesKind], name: str | None
) -> Series:
    """The series of these kinds, of all topics or consumers or of one."""
    length, step = STEPS[span]
    now: datetime = connection.execute(clock()).scalar_one()
    first = _floor(now, step) - length + step
    given: dict[str, Any] = {"first": first, "kinds": [str(each) for each in kinds]}
    if name is not None:
        given["name_"] = name
    zero = {each: 0 for each in kinds if each not in SAMPLES}
    numbers: dict[datetime, dict[SeriesKind, int]] = {}
    for row in connection.execute(series_statements.points(table, named=name is not None), given):
        kind = SeriesKind(row.kind)
        of_point = numbers.setdefault(_floor(row.minute, step), dict(zero))
        number, before = _number(row), of_point.get(kind, 0)
        of_point[kind] = max(before, number) if kind in SAMPLES else before + number
    return Series(now, length, step, tuple(SeriesPoint(at, numbers[at]) for at in sorted(numbers)))


def _number(row: Any) -> int:
    return int(row.highest if row.kind in SAMPLES else row.total)


def _floor(time: datetime, step: timedelta) -> datetime:
    return time - (time - _BEGINNING) % step
