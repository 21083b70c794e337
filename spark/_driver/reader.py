"""``spark.read.format("inbox")``: the keys of consumers, and the ledger."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.tables.inbox import tables
from spark._executor.connect import engine_of, transaction
from spark._executor.failures import guarded
from spark._executor.stored import Span, spans, stored
from spark._options.reading import COLUMNS, Reading
from spark._options.session import arrow_schema

from .job import PATIENCE, check_tables
from .send_code import sent

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_TYPES = {"string": StringType(), "bigint": LongType(), "int": IntegerType(), "timestamp": TimestampType()}
_TIMES = {"keys": "accepted_at", "ledger": "committed_at"}
_TICK = timedelta(microseconds=1)
_LATEST = datetime.max.replace(tzinfo=UTC)


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
    return (PushingReader if reading.pushes else InboxReader)(reading)


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
        with transaction(engine, database, settings, PATIENCE) as connection:
            check_tables(connection, tables(settings.inbox_schema))
            with database.by_index(connection):
                return [*spans(connection, self._reading)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        # If the list of partitions is empty, Spark makes a partition of its own.
        if isinstance(partition, Span):
            yield from guarded(stored, self._reading, partition, arrow_schema(columns(self._reading)))


class PushingReader(InboxReader):
    """Evaluates filters on consumer, key and time in the database; Spark 4.1 or newer."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":  # noqa: N802 - Spark's name
        """Take over the filters on consumer, key and time, and return the others."""
        return [each for each in filters if not self._is_taken_over(each)]

    def _is_taken_over(self, one: "Filter") -> bool:
        column, value = getattr(one, "attribute", None), getattr(one, "value", None)
        kind = type(one).__name__  # Spark 4.0 has no such classes
        narrower = None
        if column == ("consumer",):
            narrower = _of_consumers(self._reading, kind, value)
        elif column == ("key",) and self._reading.what == "keys":
            narrower = _with_keys(self._reading, kind, value)
        elif column == (_TIMES[self._reading.what],):
            narrower = _at_times(self._reading, kind, value)
        self._reading = narrower or self._reading
        return narrower is not None


def _of_consumers(reading: Reading, kind: str, value: Any) -> Reading | None:
    wanted = _texts(kind, value)
    return None if wanted is None else replace(reading, consumers=_among(wanted, reading.consumers))


def _with_keys(reading: Reading, kind: str, value: Any) -> Reading | None:
    wanted = _texts(kind, value)
    return None if wanted is None else replace(reading, only=_among(wanted, reading.only))


def _texts(kind: str, value: Any) -> tuple[str, ...] | None:
    wanted = {"EqualTo": (value,), "In": value}.get(kind)
    if wanted is None or not all(isinstance(each, str) and "\0" not in each for each in wanted):
        return None
    return tuple(wanted)


def _among(wanted: tuple[str, ...], known: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(each for each in wanted if known is None or each in known)


def _at_times(reading: Reading, kind: str, value: Any) -> Reading | None:
    if not isinstance(value, datetime) or value.tzinfo is None or value >= _LATEST:
        return None
    if kind in ("GreaterThan", "LessThanOrEqual"):
        value += _TICK
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return replace(reading, since=value if reading.since is None else max(value, reading.since))
    if kind in ("LessThan", "LessThanOrEqual"):
        return replace(reading, before=value if reading.before is None else min(value, reading.before))
    return None
