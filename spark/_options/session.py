"""The Spark session's defaults, and facts that only a classic session (not Connect) provides."""

import re
from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from inbox_outbox_base.errors.spark import ColumnMismatch

from .names import PREFIX, from_strings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Before Spark 4.3, UTC is the default and the parameter has another name.
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
_FUNCTIONS = r"\w*(?:Python|Pandas|InArrow|RDD|MapPartitions|MapElements|MapGroups)"
_STAYS = re.compile(rf"^[\s:+-]*(?:\*\(\d+\) )?(?:Sort \[|{_FUNCTIONS})", re.MULTILINE)
"""A line of a plan that sorts rows, or that computes them by a function, which may compute others the next
time."""
_SHUFFLED = re.compile(r"\bExchange\b")
"""A shuffle in a plan: Spark merges what comes out of it by itself, unless the number was asked for."""


def session_options(df: "DataFrame") -> dict[str, Any]:
    """The session's defaults, by the names of the writer's arguments.

    Raises:
        InvalidOption: a default is unknown or cannot be parsed.
    """
    return from_strings(defaults(df.sparkSession.conf.getAll))


def defaults(configuration: dict[str, str]) -> dict[str, str]:
    """The entries of a configuration that are meant for the writer."""
    return {name: value for name, value in configuration.items() if name.startswith(PREFIX)}


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema in which rows will arrive.

    Raises:
        ColumnMismatch: Spark itself cannot send a column's type.
    """
    return pa.schema([_arrow_field(field) for field in schema])


def _arrow_field(field: StructField) -> pa.Field:
    try:
        return to_arrow_schema(StructType([field]), **_IN_UTC).field(0)
    except PySparkTypeError as error:
        raise ColumnMismatch(
            f"column {field.name!r}: the type {field.dataType.simpleString()} cannot be written; cast it"
        ) from error


def only(df: "DataFrame", names: Sequence[str]) -> "DataFrame":
    """These columns."""
    return df.select(*map(quoted, names))


def quoted(name: str) -> str:
    """A column's name, in which a dot or a backtick is part of the name."""
    return "`" + name.replace("`", "``") + "`"


def classic_context(df: "DataFrame") -> Any:
    """The session's SparkContext; None with Spark Connect, and on clusters that give no access to it."""
    # Not hasattr(), which would raise the error of such a cluster.
    try:
        return df.sparkSession.sparkContext if hasattr(df, "_jdf") else None
    except Exception:  # noqa: BLE001 - each vendor raises errors of its own
        return None


def estimated(df: "DataFrame") -> tuple[int, int, int] | None:
    """What Spark expects of a DataFrame before it runs: its bytes, and its partitions; and how many tasks the
    cluster runs at once. None if Spark does not tell, as with Spark Connect, or if the rows must stay in
    their partitions: they are sorted or shuffled, or may be others when a lost partition is computed again.
    """
    context = classic_context(df)
    if context is None:
        return None
    try:
        plans: Any = df._jdf.queryExecution()  # noqa: SLF001 - there is no other way to ask
        plan = plans.optimizedPlan()
        if not plan.deterministic() or _STAYS.search(str(plan.toString())):
            return None
        if _SHUFFLED.search(str(plans.executedPlan().toString())):
            return None
        size = int(str(plan.stats().sizeInBytes()))
        return size, int(plans.sparkPlan().outputPartitioning().numPartitions()), context.defaultParallelism
    except Exception:  # noqa: BLE001 - it is not part of Spark's public API, and a cluster may forbid it
        return None


def time_zone(df: "DataFrame") -> str:
    """The time zone in which rows with instants arrive."""
    return str(df.sparkSession.conf.get("spark.sql.session.timeZone"))


def output_mode(df: "DataFrame", query: str | None) -> str:
    """The output mode of this micro-batch's query; "append" if Spark does not tell. In another thread than
    the query's, it does not tell which query that is: then any other mode of a running query counts."""
    if classic_context(df) is None:
        return "append"
    try:
        session: Any = df._jdf.sparkSession()  # noqa: SLF001 - there is no other way to ask
        running = session.sharedState().activeStreamingQueries().values()
        modes = {
            str(each.outputMode().toString()).lower()
            for each in running
            if query is None or str(each.id().toString()) == query
        }
    except Exception:  # noqa: BLE001 - it is not part of Spark's public API, and a cluster may forbid it
        return "append"
    return min(modes - {"append"}, default="append")


def query_id(df: "DataFrame") -> str | None:
    """The id of this micro-batch's streaming query; it lives as long as the checkpoint."""
    context = classic_context(df)
    return None if context is None else context.getLocalProperty("sql.streaming.queryId")
