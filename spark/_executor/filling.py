"""Applies a partition's new rows to all of its targets."""

from collections.abc import Sequence

import pyarrow as pa
from sqlalchemy import Connection

from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.databases.loading_values import Column
from inbox_outbox_base.databases.results import NEW_ROWS
from spark._options.settings import WriterSettings

from . import sinks
from .columns import fitted
from .destinations import Destination, destinations


class Filling:
    """The sinks of all targets, for rows of one schema."""

    def __init__(
        self, connection: Connection, database: Loading, settings: WriterSettings, schema: pa.Schema
    ) -> None:
        self._connection = connection
        self._database = database
        self._targets = [
            (each, fitted(connection, database, each, each.schema(schema)))
            for each in destinations(settings, schema)
        ]
        self._sinks = self._begun()
        self.updated = 0
        """How many rows of the targets an Upsert has updated, so far."""

    def _begun(self) -> list[tuple[Destination, Sequence[Column], sinks.Sink]]:
        found: list[tuple[Destination, Sequence[Column], sinks.Sink]] = []
        is_staged = False
        for number, (each, columns) in enumerate(self._targets):
            # A row may refer to a row of an earlier target. Staged rows reach their table at the end, so all
            # later targets wait, too.
            sink = sinks.sink_for(
                self._connection,
                self._database,
                each.settings,
                columns,
                _name(number),
                may_be_straight=not is_staged,
            )
            is_staged = isinstance(sink, sinks.Staged)
            found.append((each, columns, sink))
        return found

    def again(self) -> None:
        """Begin anew, for other rows, after `finish` or an error."""
        for number in range(len(self._targets)):
            self._database.drop_temporary(self._connection, _name(number))
        self._sinks = self._begun()

    def add(self, rows: pa.Table) -> None:
        """Add new rows."""
        for destination, columns, sink in self._sinks:
            part = destination.rows(rows)
            if part.num_rows:
                sink.add(sinks.converted(part, columns))

    def finish(self) -> int:
        """Apply the rows that are left; with inbox="table", return how many rows were new."""
        for _, _, sink in self._sinks:
            sink.finish()
            self.updated += sink.updated
        return sum(sink.applied for _, _, sink in self._sinks)


def _name(number: int) -> str:
    return f"{NEW_ROWS}_{number + 1}" if number else NEW_ROWS
