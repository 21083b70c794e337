"""Counts the events of an inbox by the minute, for `series`."""

from typing import TYPE_CHECKING

from sqlalchemy import Engine

from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.events import Event, EventKind
from inbox_outbox_base.tables.inbox import tables
from inbox_outbox_base.words.series import SeriesKind

from .handler_counts import counts_of

if TYPE_CHECKING:  # without greenlet the import fails
    from sqlalchemy.ext.asyncio import AsyncEngine

_KINDS = {
    EventKind.TAKEN: SeriesKind.ACCEPTED,
    EventKind.COMPLETED: SeriesKind.ACCEPTED,
    EventKind.LOADED: SeriesKind.ACCEPTED,
    EventKind.DUPLICATE: SeriesKind.DUPLICATE,
    EventKind.MISMATCH: SeriesKind.MISMATCH,
    EventKind.TOO_OLD: SeriesKind.TOO_OLD,
    EventKind.FAILED: SeriesKind.FAILED,
    EventKind.DEAD: SeriesKind.DEAD,
    EventKind.HALTED: SeriesKind.HALTED,
}


class SeriesEvents:
    """Counts an inbox's events for `series`: give it to an inbox as `on_event`, if you call its methods or
    decorated handlers without a listener. A listener counts by itself, and does not count the
    messages of an inbox that has this.

    A thread, or with an AsyncEngine a task, stores the counts once a second and when the process, or the
    loop, ends normally. Nothing is counted on SQLite.

    Args:
        engine: the Engine or AsyncEngine of the database with the tables.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: not an engine.
    """

    def __init__(self, engine: "Engine | AsyncEngine", *, schema: str | None = None) -> None:
        if not isinstance(getattr(engine, "sync_engine", engine), Engine):
            raise InvalidOption(f"engine={type(engine).__name__}: expected an Engine or an AsyncEngine")
        self._counts = counts_of(engine, tables(schema).minute)

    def __call__(self, event: Event) -> None:
        """Count it."""
        if self._counts is not None and (kind := _KINDS.get(event.kind)) is not None:
            self._counts.add(kind, event.consumer, event.count)
