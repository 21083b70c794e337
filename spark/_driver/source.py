"""``format("inbox")``, for `spark.read`, `df.write` and `df.writeStream`."""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.errors.inbox import InvalidOption, TablesMissing
from spark._executor.failures import without_values
from spark._executor.task import Done, Task, run_task
from spark._options.names import from_strings, with_defaults
from spark._options.reading import reading
from spark._options.session import arrow_schema, defaults
from spark._options.settings import WriterSettings, checked

from .job import Job
from .reader import columns, reader
from .send_code import sent

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0
    DataSourceStreamArrowWriter = None  # type: ignore[misc, assignment]

_log = logging.getLogger("spark.inbox")
_NEEDED = ("url", "table", "key", "consumer")


class InboxDataSource(DataSource):
    """``spark.dataSource.register(InboxDataSource)``, then ``df.write.format("inbox").mode("append")``.

    Each partition's inbox rows and results commit in one transaction, as with `InboxWriter`. Options have the
    names of Spark's JDBC source. Defaults come from the session's ``spark.inbox.*``.

    ``spark.read.format("inbox")`` reads keys and the ledger; its options must be given.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "inbox"

    def schema(self) -> StructType:
        """The columns of ``spark.read``.

        Raises:
            InvalidOption: an option is missing or invalid.
        """
        return columns(reading(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for ``spark.read``; raises the errors of `schema`."""
        return reader(reading(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer for ``df.write``.

        Raises:
            InvalidOption: an option is invalid, or the mode is "overwrite".
            ColumnMismatch: the DataFrame does not fit.
        """
        return _Writer(_Plan.of(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """The writer for ``df.writeStream``; raises the errors of `writer`, on Spark 4.0 `InvalidOption`."""
        if DataSourceStreamArrowWriter is None:
            raise InvalidOption("writeStream.format('inbox'): needs Spark 4.1; use foreachBatch")
        if overwrite:
            raise InvalidOption(
                "outputMode('complete'): existing rows are never deleted; use outputMode('append')"
            )
        return _StreamWriter(_Plan.of(self.options, schema, overwrite))


@dataclass(frozen=True, slots=True)
class _Plan:
    """The options and schema that were given on the driver."""

    options: dict[str, str]
    schema: pa.Schema
    run: str
    began: float
    task: Task | None
    """What the driver has checked; None if it could not."""

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, overwrite: bool) -> "_Plan":
        if overwrite:
            raise InvalidOption("mode='overwrite': existing rows are never deleted; use mode('append')")
        its, given, task = arrow_schema(schema), _arguments(options), None
        if all(name in given for name in _NEEDED):
            settings = checked(**given)
            try:
                task = Job(settings, settings.run).prepare(its)
            except (DBAPIError, TablesMissing) as error:
                # The session's defaults are not available here, and may add a login or a schema: tasks check
                # again before they read a row.
                _log.info("not checked on the driver, the tasks will check: %s", error)
        # Not the monotonic clock, which means nothing in another process: Spark sends plans around.
        return cls(dict(options), its, uuid4().hex, time.time(), task)

    def task_for(self, settings: WriterSettings, run: str) -> Task:
        """The task with these settings. It is checked again, which takes three connections, unless the driver
        has checked the same."""
        planned = self.task
        if planned is None or planned.settings != replace(settings, batch=planned.settings.batch):
            return Job(settings, run).prepare(self.schema)
        return replace(planned, settings=settings, run=run)

    def settings(self) -> WriterSettings:
        """The settings on an executor, where each task carries the session's configuration."""
        context: Any = TaskContext.get()
        session = defaults(context._localProperties)  # noqa: SLF001 - there is no other way to ask
        given = _arguments(with_defaults(self.options, session))
        for name in _NEEDED:
            if name not in given:
                raise InvalidOption(f"{'dbtable' if name == 'table' else name}: missing")
        return checked(**given)


def _arguments(options: Mapping[str, str]) -> dict[str, Any]:
    given = from_strings(options)
    if given.get("atomicity") == "job":
        raise InvalidOption(
            "atomicity='job': format('inbox') writes each partition separately; use InboxWriter, or "
            "df.repartition(1)"
        )
    # Spark has already planned the partitions, so the option limits the connections.
    limit = given.pop("num_partitions", None)
    return given if limit is None else {"max_connections": limit} | given


@dataclass
class _Message(WriterCommitMessage):
    """What a task sends to the driver; None for a partition without rows."""

    settings: WriterSettings
    run: str
    work: str
    done: Done | None


def _write(
    plan: _Plan, settings: WriterSettings, run: str | None, batches: Iterator[pa.RecordBatch]
) -> _Message:
    context: Any = TaskContext.get()
    name = run or plan.run
    with without_values():
        task = plan.task_for(settings, name)
        return _Message(settings, name, task.work, run_task(task, context.partitionId(), batches))


def _report(plan: _Plan, messages: list[Any]) -> None:
    told: list[_Message] = [each for each in messages if each is not None]
    done = [each.done for each in told if each.done is not None]
    if done:
        job = Job(told[0].settings, told[0].run, told[0].work)
        # This process belongs to Spark; `spark.sql.pyspark.worker.logging.enabled` makes it keep the log.
        _log.setLevel(logging.INFO)
        report = job.report(done, time.time() - plan.began)
        _log.info("consumer=%r: %s", job.settings.consumer, report)


class _Writer(DataSourceArrowWriter):
    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    def __reduce__(self) -> tuple[Any, ...]:
        return sent(_Writer, self._plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        settings = self._plan.settings()
        if settings.ledger == "trust" and settings.run is None:
            raise InvalidOption("ledger='trust': needs txnAppId, which identifies a repeated submission")
        return _write(self._plan, settings, settings.run, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _report(self._plan, messages)


class _StreamWriter(DataSourceStreamArrowWriter or DataSourceStreamWriter):  # type: ignore[misc]
    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    def __reduce__(self) -> tuple[Any, ...]:
        return sent(_StreamWriter, self._plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context: Any = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        settings = replace(self._plan.settings(), batch=int(batch or 0))
        run = ":".join(each for each in (settings.run, query) if each)
        return _write(self._plan, settings, run or None, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _report(self._plan, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: committed partitions stay, and Spark delivers the batch again."""
