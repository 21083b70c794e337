"""A Spark writer that applies each business key once.

Each partition's inbox rows and results commit in one transaction: each business key is applied once despite
retries, speculative copies, killed executors, resubmitted jobs and streaming replays, for as long as its
inbox row is kept:

    report = InboxWriter(url, "flights", key=["flight_id"], consumer="flights-load").write(df)

`spark.errors` lists the exceptions.
"""

from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.version import __version__ as __version__

from . import errors

with brought_by("spark"):
    from inbox_outbox_base.databases.results import Append, Statements, Upsert
    from spark._driver.source import InboxDataSource
    from spark._driver.writer import InboxWriter
    from spark._executor.reconciliation import Difference, Reconciliation
    from spark._executor.report import WriteReport
    from spark._options.messages import PerPartition, PerRow

__all__ = [
    "Append",
    "Difference",
    "InboxDataSource",
    "InboxWriter",
    "PerPartition",
    "PerRow",
    "Reconciliation",
    "Statements",
    "Upsert",
    "WriteReport",
    "errors",
]
