"""Writes one batch: the tasks, and the driver's work around them."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from inbox_outbox_base.monitoring.events import Hooks
from spark._executor.report import RowCounts, WriteReport
from spark._executor.task import Done, Task, recognise, run_task
from spark._options.session import arrow_schema, estimated, only, quoted, time_zone
from spark._options.settings import WriterSettings
from spark._options.zones import known

from .job import Job
from .send_code import mapped
from .spark_ui import described, log_report, observed
from .telling import told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SMALL = 1024 * 1024
"""Bytes of rows, as Spark estimates them, that are worth a task with its transaction."""

_MANY = 4
"""How many partitions must become one: it costs a shuffle."""

Work = Callable[[Task, int, Iterable[pa.RecordBatch]], Done | None]

_DONE = (
    "part int, fingerprint binary, rows bigint, new bigint, duplicate bigint, repeated bigint, "
    "dropped bigint, mismatch bigint, rejected bigint, updated bigint, replayed boolean, transport string"
)


def write(df: "DataFrame", settings: WriterSettings, run: str | None, hooks: Hooks) -> WriteReport:
    """Write one batch, report it in Spark's UI and log, and tell the hooks."""
    job = Job(settings, run)
    with described(df, settings), told(hooks, job) as done:
        report = _written(df, settings, job, done)
    log_report(df, settings.consumer, report)
    return report


def _written(df: "DataFrame", settings: WriterSettings, job: Job, done: list[Done]) -> WriteReport:
    began = time.monotonic()
    schema = arrow_schema(df.schema)
    check_zone(df, schema)
    task = job.prepare(schema)
    finished = job.finished()
    if finished is not None and settings.ledger == "trust":
        return job.report_finished(finished, time.monotonic() - began)
    df = _partitioned(df, settings)
    if finished is not None:
        # Most likely all rows are there: the columns of the fingerprint suffice to tell, so no others are
        # sent.
        done[:] = _run(only(df, settings.compared), recognise, task)
        if all(each.replayed for each in done):
            return job.report(done, time.monotonic() - began)
        done.clear()  # nothing is written by looking
    job.begin()
    done[:] = _run(df, run_task, task)
    return job.report(done, time.monotonic() - began)


def check_zone(df: "DataFrame", schema: pa.Schema) -> None:
    """The session's time zone must be known if the rows have points in time.

    Raises:
        InvalidOption: it is not.
    """
    if any(pa.types.is_timestamp(field.type) and field.type.tz for field in schema):
        known(time_zone(df))


def _run(df: "DataFrame", what: Work, task: Task) -> list[Done]:
    done = mapped(df, _DONE, _on_executor, what, task)
    rows = (observed(done) if what is run_task else done).collect()
    return [
        Done(
            row.part,
            bytes(row.fingerprint),
            RowCounts(
                row.rows,
                row.new,
                row.duplicate,
                row.repeated,
                row.dropped,
                row.mismatch,
                row.rejected,
                row.updated,
            ),
            row.replayed,
            row.transport,
        )
        for row in rows
    ]


def _partitioned(df: "DataFrame", settings: WriterSettings) -> "DataFrame":
    if settings.atomicity == "job":
        # All or nothing needs one transaction, and hence one task.
        return df.repartition(1)
    if settings.num_partitions is not None:
        return df.coalesce(settings.num_partitions)
    known = estimated(df)
    if known is None:
        return df
    size, there, at_once = known
    wanted = max(size // _SMALL + 1, min(there // _MANY, at_once))
    if wanted * _MANY > there:
        return df
    # Not `coalesce`, which would also merge the tasks that compute the rows. By key, so that the partitions
    # have the same rows the next time.
    return df.repartition(wanted, *(quoted(name) for name in settings.key))


def _on_executor(what: Work, task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context: Any = TaskContext.get()
    done = what(task, context.partitionId(), batches)
    if done is not None:
        counts = done.counts
        yield pa.record_batch(
            {
                "part": pa.array([done.part], pa.int32()),
                "fingerprint": pa.array([done.fingerprint], pa.binary()),
                "rows": [counts.rows],
                "new": [counts.new],
                "duplicate": [counts.duplicate],
                "repeated": [counts.repeated],
                "dropped": [counts.dropped],
                "mismatch": [counts.mismatch],
                "rejected": [counts.rejected],
                "updated": [counts.updated],
                "replayed": [done.replayed],
                "transport": [done.transport],
            }
        )
