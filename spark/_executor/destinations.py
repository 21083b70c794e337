"""The targets of new rows: the part of each row that goes into each table."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from inbox_outbox_base.databases.results import Append, Upsert
from inbox_outbox_base.errors.spark import ColumnMismatch
from spark._options.settings import WriterSettings


@dataclass(frozen=True, slots=True)
class Destination:
    """One target."""

    settings: WriterSettings
    """The settings of a writer that has no other target."""
    columns: tuple[str, ...] | None
    """The columns of the DataFrame that go into it; None for all."""
    explode: str | None
    """The array column whose elements become rows."""
    is_strict: bool
    """Whether the table must have all columns; otherwise it may lack the columns of the key."""

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the target's rows.

        Raises:
            ColumnMismatch: the DataFrame lacks a column, or has one twice after the array is exploded.
        """
        for name in self.columns or ():
            if name not in schema.names:
                raise ColumnMismatch(f"table {self.settings.target}: the DataFrame has no column {name!r}")
        if self.explode is not None:
            _check_array(self.explode, schema)
        found = self.rows(schema.empty_table()).schema
        for name in found.names:
            if found.names.count(name) > 1:
                raise ColumnMismatch(f"table {self.settings.target}: two columns named {name!r}")
        return found

    def rows(self, rows: pa.Table) -> pa.Table:
        """The rows that these new rows give the target."""
        kept = rows if self.columns is None else rows.select(list(self.columns))
        if self.explode is None:
            return kept
        array = rows.column(self.explode).combine_chunks()
        elements = pc.list_flatten(array)
        kept = kept.take(pc.list_parent_indices(array))
        if not pa.types.is_struct(elements.type):
            return kept.append_column(self.explode, elements)
        for field, values in zip(elements.type, elements.flatten(), strict=True):
            kept = kept.append_column(field, values)
        return kept


def destinations(settings: WriterSettings, schema: pa.Schema) -> Iterator[Destination]:
    """The targets, in their order; for statements and functions, all columns go to the only one."""
    exploded = {getattr(each.results, "explode", None) for each in settings.targets}
    rest = tuple(name for name in schema.names if name not in exploded)
    for each in settings.targets:
        how = each.results
        if not isinstance(how, Append | Upsert):
            yield Destination(each, None, None, is_strict=False)
        elif how.explode is None:
            columns = rest if how.columns is None else tuple(how.columns)
            yield Destination(each, columns, None, is_strict=how.columns is not None)
        else:
            columns = settings.key if how.columns is None else tuple(how.columns)
            yield Destination(each, columns, how.explode, is_strict=True)


def _check_array(name: str, schema: pa.Schema) -> None:
    if name not in schema.names:
        raise ColumnMismatch(f"explode={name!r}: the DataFrame has no such column")
    kind = schema.field(name).type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise ColumnMismatch(f"explode={name!r}: the column has the type {kind}, expected an array")
