"""Delete rows that are past their retention, alongside live traffic."""

import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from sqlalchemy import Engine

from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.retention import Retention
from inbox_outbox_base.monitoring.events import Hook, Hooks
from inbox_outbox_base.tables.inbox import tables

from .keeping import Keeping
from .purge_count import PurgeCount
from .purging import Purged, PurgeRun

__all__ = ["Purged", "purge"]


def purge(
    engine: Engine,
    *,
    consumer: str | None = None,
    retention: Retention | float | timedelta | None = None,
    oldest_unconsumed: datetime | None = None,
    dead_retention: float | timedelta | None = None,
    override: bool = False,
    dry_run: bool = False,
    batch: int = 500,
    budget: float | timedelta | None = None,
    progress: Callable[[Purged], object] | None = None,
    on_event: Hook | Iterable[Hook] | None = None,
    schema: str | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Purged:
    """Delete messages that are older than their consumer's retention, each consumer's oldest first.

    The consumer's inboxes have stored the retention in the table `inbox_consumer`. For a consumer that is not
    in it (all its rows are older than that table) it is 7 days, and 30 for dead and halted messages.

    Each batch is a short transaction of its own. After each, the purge rests for as long as the batch took
    (twice as long, if the rows were written in bulk), so that live traffic keeps at least half of the
    database. Locked rows are skipped: no `accept` waits for a whole purge, nothing deadlocks, and concurrent
    purges share the work. A row stays one minute longer than the retention.

    The age of a message of status-table mode counts from its last change of status; while it is being
    consumed, from the end of its lease. A handler that ends after its message was deleted gets `LeaseLost`.
    Rows written in bulk are as old as their load in the ledger: as long as no load is old enough, only the
    ledger is read for them. A load leaves the ledger after its last row, and is not counted.

    Of a consumer whose keys name their time (`key_time`), the key's time counts, and the retention alone: not
    `oldest_unconsumed`, nor a time shorter than the stored one. A purge first stores that older keys are not
    taken any more, and deletes what an earlier purge, at least a minute before, has closed like this.

    Each batch looks at the stored retention again: once it has become longer, at most the batch that is
    running deletes by the shorter one.

    Args:
        engine: the database.
        consumer: whose rows to delete; None: the rows of all consumers.
        retention: keep keys for this time (`Retention`, seconds or `timedelta`) instead of the stored one.
        oldest_unconsumed: when the oldest message without an acknowledgement, delivered or not, was created;
            rows older than this time, minus the producer's and the network's margins, are deleted.
        dead_retention: keep dead, halted, refused and rejected messages for this time (seconds or
            `timedelta`) instead of the stored one; without status-table mode that is 30 days.
        override: allow `retention` and `dead_retention` to be shorter than the stored ones; the consumer's
            duplicates are then taken again. To shorten the stored times, which inboxes use, see `set_policy`.
        dry_run: only count the rows that are old enough, locked ones included; nothing is deleted. It reads
            an index; for rows written in bulk on PostgreSQL, the table.
        batch: the most rows in a transaction.
        budget: seconds (or `timedelta`) after which to stop; None is no limit.
        progress: called after each batch with the progress so far.
        on_event: a function, or several, called with an `Event` for each committed batch.
        schema: the PostgreSQL schema of the tables.
        sleep: a function that rests for some seconds.

    Raises:
        InvalidOption: an argument cannot be used, or a time is shorter than the stored one, without
            `override`; or the clocks of the database and of this machine differ by more than a day. Nothing
            was deleted; or, if a stored time has become longer meanwhile, nothing more.
        UnsafeDatabase: row-level policies hide rows from this role: perhaps also how long keys are kept, or
            rows whose load it would forget. Nothing was deleted.
        TablesMissing: the tables do not exist. Those of features that were never made may be missing.
    """
    options.count("batch", batch, largest=options.MOST_ROWS)
    options.flag("override", override)
    kind = PurgeCount if options.flag("dry_run", dry_run) else PurgeRun
    limit = None if budget is None else options.seconds("budget", budget)
    if consumer is not None:
        options.consumer(consumer)
    dead = None if dead_retention is None else options.seconds("dead_retention", dead_retention)
    asked = None if retention is None else Retention.of(retention)
    run = kind(engine, tables(schema), batch, limit, sleep, progress, Hooks(on_event), override=override)
    run.find_tables()
    run.check_sees_all()
    run.kept = Keeping(run.policies(consumer), asked, dead, oldest_unconsumed, run.now())
    if not override:
        run.kept.check()
    for shelf in run.shelves(consumer):
        if not run.empty(shelf):
            return run.ended(finished=False)
    return run.ended(finished=run.forget_loads(consumer))
