"""The driver's part of `InboxWriter.reconcile`."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from sqlalchemy import Connection

from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.errors.spark import ColumnMismatch
from inbox_outbox_base.tables.inbox import tables
from spark._executor.columns import check_key
from spark._executor.compare_partition import Compared, compared, compared_columns, needed
from spark._executor.connect import engine_of, rolled_back
from spark._executor.reconciliation import Difference, Reconciliation
from spark._options.session import arrow_schema, only
from spark._options.settings import WriterSettings

from .job import check_tables
from .send_code import mapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DIFFERENCE = {
    "what": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "keys": ("bigint", pa.int64()),
    "sample": ("array<string>", pa.list_(pa.string())),
    "run": ("string", pa.string()),
    "batch": ("bigint", pa.int64()),
    "part": ("int", pa.int32()),
    "committed_at": (
        "string",
        pa.string(),
    ),  # as a timestamp, it would arrive in local time without an offset
}
_FIELDS = ", ".join(f"{name}: {kind}" for name, (kind, _) in _DIFFERENCE.items())
_DDL = f"rows bigint, dropped bigint, keys bigint, differences array<struct<{_FIELDS}>>"
_SCHEMA = pa.schema(
    {
        "rows": pa.int64(),
        "dropped": pa.int64(),
        "keys": pa.int64(),
        "differences": pa.list_(pa.struct({name: kind for name, (_, kind) in _DIFFERENCE.items()})),
    }
)


def reconcile(df: "DataFrame", settings: WriterSettings) -> Reconciliation:
    """Compare a DataFrame with the inbox and the table; `InboxWriter.reconcile` explains it."""
    compares_table = check(settings, arrow_schema(df.schema))
    rows = mapped(only(df, needed(settings)), _DDL, _on_executor, settings).collect()
    return summary(settings, compares_table, [_received(row) for row in rows])


def check(settings: WriterSettings, schema: pa.Schema) -> bool:
    """Check everything before a row is read; return whether the table can be compared.

    Raises:
        ColumnMismatch: the DataFrame does not fit the key or the table.
        TablesMissing: the inbox's tables have not been created.
    """
    check_key(settings, schema)
    for name in needed(settings):
        if name not in schema.names:
            raise ColumnMismatch(f"Upsert: the DataFrame has no column {name!r}")
    database = loading(settings.url.get_backend_name())

    def is_comparable(connection: Connection) -> bool:
        check_tables(connection, tables(settings.inbox_schema))
        return bool(compared_columns(connection, database, settings, schema))

    return rolled_back(engine_of(settings), database, settings, is_comparable)


def summary(settings: WriterSettings, compares_table: bool, parts: list[Compared]) -> Reconciliation:
    """The result of all partitions."""
    found = sorted((each for part in parts for each in part.differences), key=lambda each: each.partition)
    counts = {
        what: sum(each.keys for each in found if each.what == what)
        for what in ("missing", "unapplied", "untaken")
    }
    keys = sum(each.keys for each in parts)
    return Reconciliation(
        rows=sum(each.rows for each in parts),
        dropped=sum(each.dropped for each in parts),
        keys=keys,
        present=keys - sum(counts.values()),
        **counts,
        compares_inbox=settings.inbox == "rows",
        compares_table=compares_table,
        differences=tuple(found),
    )


def _on_executor(settings: WriterSettings, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context: Any = TaskContext.get()
    found = compared(settings, context.partitionId(), batches)
    if found is not None:
        values = asdict(found)
        for each in values["differences"]:
            at = each["committed_at"]
            each["committed_at"] = None if at is None else at.isoformat()
        yield pa.RecordBatch.from_pylist([values], schema=_SCHEMA)


def _received(row: Any) -> Compared:
    differences = []
    for each in row.differences:
        values = each.asDict()
        at = values.pop("committed_at")
        sample = tuple(values.pop("sample"))
        committed_at = None if at is None else datetime.fromisoformat(at)
        differences.append(Difference(**values, sample=sample, committed_at=committed_at))
    return Compared(row.rows, row.dropped, row["keys"], differences)
