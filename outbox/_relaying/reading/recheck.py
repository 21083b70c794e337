"""Once a minute, search below a relay's marks for overlooked messages, and have them sent.

The marks assume that message numbers are drawn in the usual way. If they were not (the sequence was cached
for a while, or set back and forth; rows were copied with their numbers), messages could stay hidden for as
long as the relay runs.
"""

import logging
import time
from collections import Counter
from random import randrange

from sqlalchemy import Connection

from inbox_outbox_base.databases.relaying import Relaying

from .scanning import Scanner

_log = logging.getLogger("outbox.relay")

EVERY = 60.0
"""Seconds between the beginnings of two passes over the table."""
_STEP = 1.0
_STEPS, _LEAST_PAGES, _MOST_PAGES = 50, 1_000, 4_000
"""Steps in a pass, and pages in a step: above 1.6 GB a pass takes longer."""


class Recheck:
    """Reads the table from its first page to its last, a few pages each second."""

    def __init__(self, database: Relaying) -> None:
        self._database = database
        self._pages = range(0)
        """Pages that are left to read."""
        self._size = 0
        self._begun = 0.0
        """When the last pass began; 0 before the first."""
        self._next = time.monotonic() + EVERY

    @property
    def is_due(self) -> bool:
        """Whether to call `step`."""
        return time.monotonic() >= self._next

    def begin_soon(self) -> None:
        """Begin the first pass soon: the relay started at stored marks, and may not run for long."""
        if not self._begun:
            self._next = min(self._next, time.monotonic() + _STEP)

    def step(self, connection: Connection, scanner: Scanner) -> Counter[int]:
        """Read the next pages; return how many messages were overlooked, by bucket."""
        now = time.monotonic()
        self._next = now + _STEP
        if not self._pages:
            self._begun = now
            self._pages = range(self._database.pages(connection))
            self._size = min(max(_LEAST_PAGES, len(self._pages) // _STEPS), _MOST_PAGES)
        size = self._size
        self._size = max(1, size // 2)  # kept only if the statement exceeds a time limit
        found = self._look(connection, scanner, self._pages[:size])
        has_marks = bool(scanner.frontier.starts())
        self._size, self._pages = size, self._pages[size:] if has_marks else range(0)
        if not self._pages:
            self._next = self._begun + EVERY
        return found

    def sample(self, connection: Connection, scanner: Scanner) -> Counter[int]:
        """The same for some pages only, chosen at random."""
        pages = range(self._database.pages(connection))
        first = randrange(max(1, len(pages) - _LEAST_PAGES))
        return self._look(connection, scanner, pages[first : first + _LEAST_PAGES])

    def _look(self, connection: Connection, scanner: Scanner, pages: range) -> Counter[int]:
        marks = scanner.frontier.starts()
        if not (pages and marks):
            return Counter()
        below = self._database.below(connection, marks, scanner.paused, pages)
        found = Counter(
            bucket for bucket, sequence in below if scanner.backlog.entry(bucket, sequence) is None
        )
        _report(found)
        return found


def _report(found: Counter[int]) -> None:
    if found:
        _log.warning(
            "%d messages had been overlooked, in buckets %s, and are sent now. Their numbers are lower than "
            "those of messages committed before them: check whether the sequence was cached or set back, or "
            "rows were copied with their numbers",
            found.total(),
            ", ".join(map(str, sorted(found))),
        )
