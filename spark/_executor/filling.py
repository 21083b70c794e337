"""Applies a partition's new rows to all of its targets."""

from collections.abc import Sequence

import pyarrow as pa
from sqlalchemy import Connection

from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.databases.loading_values import Column
from inbox_outbox_base.databases.results import NEW_ROWS, Append, Upsert
from spark._options.settings import WriterSettings

from . import sinks
from .columns import fitted
from .destinations import Destination, destinations

_MANY = 10_000
"""A temporary table from which more rows were deleted is slow to read."""


class Filling:
    """The sinks of all targets, for rows of one schema. If it `is_repeated`, `again` is called each time
    before rows are added."""

    def __init__(
        self,
        connection: Connection,
        database: Loading,
        settings: WriterSettings,
        schema: pa.Schema,
        *,
        is_repeated: bool = False,
    ) -> None:
        self._connection = connection
        self._database = database
        self._rows = 0
        targets = [*destinations(settings, schema)]
        for each in targets:
            if isinstance(each.settings.results, Append | Upsert):
                database.lock_types(connection, each.settings)
        self._targets = [(each, fitted(connection, database, each, each.schema(schema))) for each in targets]
        self._sinks = self._begun()
        self._has_tables = is_repeated and database.keeps_temporary
        if self._has_tables:
            for _, _, sink in self._sinks:
                sink.prepare()
        self.updated = 0
        """How many rows of the targets an Upsert has updated, so far."""

    def _begun(self, *, has_tables: bool = False) -> list[tuple[Destination, Sequence[Column], sinks.Sink]]:
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
                has_table=has_tables,
            )
            is_staged = isinstance(sink, sinks.Staged)
            found.append((each, columns, sink))
        return found

    def again(self) -> None:
        """Start over with other rows."""
        is_large = self._rows > _MANY
        for number, (_, _, sink) in enumerate(self._sinks):
            if sink.may_stage:
                self._database.clear_temporary(self._connection, _name(number), is_large=is_large)
        self._rows = 0 if is_large else self._rows
        self._sinks = self._begun(has_tables=self._has_tables)

    def add(self, rows: pa.Table) -> None:
        """Add new rows."""
        self._rows += rows.num_rows
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
