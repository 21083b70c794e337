"""The parts of a write that a Spark user sees: the job's name in Spark's UI, the counts as observed metrics,
and the report in Spark's log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import expr

from spark._executor.report import RowCounts, WriteReport
from spark._options.session import classic_context
from spark._options.settings import WriterSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DESCRIPTION = "spark.job.description"

_log = logging.getLogger("spark.inbox")


@contextmanager
def described(df: "DataFrame", settings: WriterSettings) -> Iterator[None]:
    """Name the body's jobs in Spark's UI, unless they already have a name, as a stream's jobs do."""
    context = classic_context(df)
    if context is None or context.getLocalProperty(_DESCRIPTION) is not None:
        yield
        return
    into = f" into {settings.target}" if settings.target else ""
    context.setLocalProperty(_DESCRIPTION, f"inbox: {settings.consumer}{into}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, None)


def observed(done: "DataFrame") -> "DataFrame":
    """The tasks' reports, with their sums as the observed metrics "inbox-outbox", in a classic session."""
    # In other sessions, the class of columns that fits depends on the vendor.
    if classic_context(done) is None:
        return done
    # As text, because each function of a column costs several calls of the JVM.
    sums = (expr(f"coalesce(sum({each.name}), 0) AS {each.name}") for each in fields(RowCounts))
    return done.observe("inbox-outbox", *sums)


def log_report(df: "DataFrame", consumer: str, report: WriteReport) -> None:
    """Log the report at INFO: in Spark's log, if the session gives access to it, and in Python's."""
    said = f"consumer={consumer!r}: {report}"
    _log.info("%s", said)
    context = classic_context(df)
    if context is None:
        return
    jvm: Any = context._jvm  # noqa: SLF001 - there is no other way to Spark's log
    try:
        jvm.org.slf4j.LoggerFactory.getLogger("spark.inbox").info(said)
    except Exception as error:  # noqa: BLE001 - the rows have committed, whatever a cluster forbids
        _log.debug("no access to Spark's log: %s", error)
