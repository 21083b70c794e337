"""``spark.read.format("inbox")``: the keys of consumers, and the ledger."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType
from sqlalchemy import Connection

from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.tables.inbox import tables
from spark._executor.connect import engine_of, rolled_back
from spark._executor.failures import guarded
from spark._executor.stored import Span, spans, stored
from spark._options.reading import COLUMNS, Reading
from spark._options.session import arrow_schema

from .job import check_tables
from .send_code import sent

_TYPES = {"string": StringType(), "bigint": LongType(), "int": IntegerType(), "timestamp": TimestampType()}


def columns(reading: Reading) -> StructType:
    """The columns of a read."""
    found = StructType()
    for column in COLUMNS[reading.what].split(", "):
        name, kind = column.split()
        found = found.add(name, _TYPES[kind])
    for name in reading.key:
        found = found.add(name, StringType())
    return found


def reader(reading: Reading, schema: StructType) -> "InboxReader":
    """The reader for these options.

    Raises:
        InvalidOption: another schema was asked for.
    """
    own = columns(reading)
    if [(each.name, each.dataType) for each in schema] != [(each.name, each.dataType) for each in own]:
        raise InvalidOption(f"schema: a read has its own columns, {own.simpleString()}")
    return InboxReader(reading)


class InboxReader(DataSourceReader):
    """Reads in ranges of the primary key."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def __reduce__(self) -> tuple[Any, ...]:
        return sent(type(self), self._reading)

    def partitions(self) -> list[InputPartition]:
        """The ranges of the primary key.

        Raises:
            TablesMissing: the inbox's tables have not been created.
        """
        settings = self._reading.settings
        engine, database = engine_of(settings), loading(settings.url.get_backend_name())

        def ranges(connection: Connection) -> list[InputPartition]:
            check_tables(connection, tables(settings.inbox_schema))
            with database.by_index(connection):
                return [*spans(connection, self._reading)]

        return rolled_back(engine, database, settings, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        # If the list of partitions is empty, Spark makes a partition of its own.
        if isinstance(partition, Span):
            yield from guarded(stored, self._reading, partition, arrow_schema(columns(self._reading)))
