"""Partitions that commit once: a Spark writer on top of the inbox.

Each partition's inbox rows and results commit in one transaction, so that retries, speculative copies,
killed executors, resubmitted jobs and streaming replays leave each business key applied once, for as long as
its inbox row is kept::

    report = InboxWriter(url, "flights", key=["flight_id"], consumer="flights-load").write(df)

`spark.errors` is what can go wrong.
"""

from inbox_outbox_base.checks.extras import brought_by

from . import errors

with brought_by("spark"):
    from inbox_outbox_base.databases.results import Append, Statements, Upsert
    from spark._driver.source import InboxDataSource
    from spark._driver.writer import InboxWriter
    from spark._executor.report import WriteReport

__all__ = [
    "Append",
    "InboxDataSource",
    "InboxWriter",
    "Statements",
    "Upsert",
    "WriteReport",
    "errors",
]
