"""The writer for DataFrames."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Executable

from inbox_outbox_base.checks.key_times import KeyTime
from inbox_outbox_base.checks.retention import Retention
from inbox_outbox_base.databases.results import Append, Results, Upsert
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.events import Hook, Hooks
from spark._executor.probe import unseen_rows
from spark._executor.reconciliation import Reconciliation
from spark._executor.report import WriteReport
from spark._options.messages import Messages
from spark._options.session import arrow_schema, output_mode, query_id, session_options
from spark._options.settings import WriterSettings, check_given, checked

from .comparison import reconcile
from .job import Job
from .send_code import mapped
from .writing import check_zone, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class InboxWriter:
    """Writes DataFrames so that each business key takes effect once.

    Each partition's inbox rows and results commit in one transaction: each key is applied once despite
    retries, speculative copies, killed executors, resubmitted jobs and streaming replays, for as long as its
    inbox row is kept. Works with Spark Connect too. The driver must reach the database, like the executors.

    Args:
        url: the database, as ``jdbc:postgresql://host/database`` or in SQLAlchemy's form. PostgreSQL, MySQL,
            MariaDB, or SQLite on one machine.
        table: the target of results that name none, as ``name`` or ``schema.name``.
        key: the column or columns of the business key.
        consumer: the scope of the keys, as in `inbox.Inbox`.
        results: what to do with new rows: `Append()` (default), `Upsert(...)`, a list of these for several
            tables, `Statements(...)`, or a function of an open connection and an iterator of Arrow batches.
        inbox: "rows" keeps each key in the inbox; "table" relies on the table's own unique key instead, which
            must be on exactly the columns of `key` (for an Upsert: of its own key). That is faster, but a key
            can be written again once its row has left the table.
        outbox: `PerRow(...)` publishes a message for each new row to the outbox, `PerPartition(...)` one for
            each partition with new rows, in the partition's transaction.
        user: replaces the user in the URL.
        password: replaces the password in the URL. Instead of a password that expires, give a function
            without arguments that returns it, or a command (a list of texts) that prints it: it is asked
            before each connection, on the driver and on the executors.
        run: a name for this job. If the same run and batch is submitted again, committed partitions are
            recognised. None generates a name, so that only retries inside the job are recognised (keys are
            always recognised). For `foreach_batch` the default is the query's id, if Spark provides it.
        batch: the number of the batch in the run.
        ledger: "verify" reads a partition before treating it as committed; "trust" does the same until a job
            has written the whole batch, and then skips that batch by its run and number, but not in a stream;
            "off" keeps no ledger.
        atomicity: "partition", or "job" for all partitions or none, through one task.
        null_keys: "error", or "drop" to leave out and count rows without a key.
        digest: the column or columns whose content is compared when a key comes again. Their digest is stored
            with the key; the report counts rows with another digest as `mismatch`.
        mismatches: "count", or "error" to fail a partition that has such rows; nothing of it is written.
        bad_rows: "fail", or "table" to write rows that the target refuses to `inbox_rejected` instead. Their
            keys are not taken, and the report counts them as `rejected`. For Append and Upsert.
        batch_size: rows to send at a time.
        num_partitions: the most partitions to write; if there are more, they are merged (`coalesce`). None
            merges partitions that Spark estimates to be tiny, by a shuffle; a large number merges none.
        max_connections: the most tasks that work in the database at the same time, over all executors of all
            writers of this consumer. Waiting tasks connect briefly now and then.
        isolation_level: "READ_COMMITTED" (default), "REPEATABLE_READ" or "SERIALIZABLE".
        session_init_statement: SQL to run on each new connection, and before each transaction that uses one
            again.
        query_timeout: the most seconds for one statement; 0 is no limit.
        lock_timeout: seconds a statement waits for a lock before the transaction is retried.
        memory: bytes of rows that a task keeps in memory; further rows go to a temporary file.
        inbox_schema: the PostgreSQL schema of the inbox's tables.
        retention: how long the consumer's keys are kept (`inbox.Retention`, seconds or `timedelta`), as for
            `inbox.Inbox`. None is the stored time, or 7 days.
        key_time: "uuid7", "ulid" or "timed", as for `inbox.Inbox`: the keys name the time at which their
            messages were made. Rows whose keys the consumer has forgotten are refused: see `bad_rows`.
        before: SQL texts, or SQLAlchemy statements, that the driver runs in one transaction before the first
            task. They run again whenever the batch is tried again.
        after: the same, in the transaction that marks the batch as finished in the ledger: once for each
            batch. They do not run while rows of the batch are in `inbox_rejected`.
        on_event: a function, or several, called on the driver with each `Event` of a batch: `LOAD_STARTED`;
            the rows that this call has committed, `LOADED`, `DUPLICATE`, `MISMATCH` and `REJECTED`, each with
            its `count` unless that is 0; and `LOAD_ENDED` or `LOAD_FAILED`. Its errors are logged and
            ignored. Tasks run in other processes, and call nothing.

    Options that you omit are taken from the session's ``spark.inbox.*``, with the names of the options of
    `format("inbox")`.

    Raises:
        InvalidOption: an option is invalid.
    """

    def __init__(
        self,
        url: str | URL | None = None,
        table: str | None = None,
        key: str | list[str] | tuple[str, ...] | None = None,
        consumer: str | None = None,
        *,
        results: Results | Sequence[Append | Upsert] | None = None,
        inbox: str | None = None,
        outbox: Messages | None = None,
        user: str | None = None,
        password: str | Callable[[], str] | Sequence[str] | None = None,
        run: str | None = None,
        batch: int | None = None,
        ledger: str | None = None,
        atomicity: str | None = None,
        null_keys: str | None = None,
        digest: str | list[str] | tuple[str, ...] | None = None,
        mismatches: str | None = None,
        bad_rows: str | None = None,
        batch_size: int | None = None,
        num_partitions: int | None = None,
        max_connections: int | None = None,
        isolation_level: str | None = None,
        session_init_statement: str | None = None,
        query_timeout: float | timedelta | None = None,
        lock_timeout: float | timedelta | None = None,
        memory: int | None = None,
        inbox_schema: str | None = None,
        retention: Retention | float | timedelta | None = None,
        key_time: KeyTime | None = None,
        before: Sequence[str | Executable] | None = None,
        after: Sequence[str | Executable] | None = None,
        on_event: Hook | Iterable[Hook] | None = None,
    ) -> None:
        self._hooks = Hooks(on_event)
        self._given = _given(
            url=url,
            table=table,
            key=key,
            consumer=consumer,
            results=results,
            inbox=inbox,
            outbox=outbox,
            user=user,
            password=password,
            run=run,
            batch=batch,
            ledger=ledger,
            atomicity=atomicity,
            null_keys=null_keys,
            digest=digest,
            mismatches=mismatches,
            bad_rows=bad_rows,
            batch_size=batch_size,
            num_partitions=num_partitions,
            max_connections=max_connections,
            isolation_level=isolation_level,
            session_init_statement=session_init_statement,
            query_timeout=query_timeout,
            lock_timeout=lock_timeout,
            memory=memory,
            inbox_schema=inbox_schema,
            retention=retention,
            key_time=key_time,
            before=before,
            after=after,
        )
        check_given(self._given)  # the session's defaults are checked later, with the session

    def __repr__(self) -> str:
        return f"InboxWriter(table={self._given.get('table')!r}, consumer={self._given.get('consumer')!r})"

    def write(self, df: "DataFrame") -> WriteReport:
        """Write the rows of a DataFrame whose keys are new.

        Raises:
            InvalidOption: an option is missing or invalid.
            ColumnMismatch: the DataFrame does not fit the key or the table.
            TablesMissing: the inbox's tables have not been created.
            PolicyConflict: the consumer's stored policy has a longer retention, or status-table mode.
            SparkWriterError: a statement of `before` or `after` fails.
            TransactionEnded: a statement of `after` has ended its transaction.
            PySparkException: a task has failed as often as Spark allows. Committed partitions stay; another
                call continues with the others.
        """
        settings = self._settings_to_write(df)
        return write(df, settings, settings.run, self._hooks)

    def check(self, df: "DataFrame") -> None:
        """Check everything that `write` checks before it reads a row. No row is read, and nothing written.

        Raises the errors of `write`, except those of tasks.
        """
        settings = self._settings_to_write(df)
        schema = arrow_schema(df.schema)
        check_zone(df, schema)
        Job(settings, settings.run).check(schema)

    def foreach_batch(self, df: "DataFrame", batch_id: int) -> Any:
        """Write one micro-batch: for ``stream.writeStream.foreachBatch(writer.foreach_batch)``.

        Spark may deliver a batch again, even under a new checkpoint, or with other rows under an old number:
        each key is applied once, and none is skipped.

        Returns:
            The `WriteReport`. Spark ignores it; your own function around this one can use it.

        Raises the errors of `write`; and InvalidOption for an output mode other than append, if Spark tells
        it, unless the results are an Upsert; or for `after` without `run`, if Spark does not tell the
        query.
        """
        settings = replace(self._settings(df), batch=batch_id)
        if settings.ledger == "trust":  # a checkpoint that is put back or copied has the query's id, too
            settings = replace(settings, ledger="verify")
        query = query_id(df)
        _check_mode(output_mode(df, query), settings)
        if settings.after and query is None and settings.run is None:
            raise InvalidOption(
                "after: Spark does not tell which query this is (Spark Connect, or a thread of your own), so "
                "they would run again with a batch that comes again; give run=, another for each checkpoint"
            )
        run = ":".join(each for each in (settings.run, query) if each)
        return write(df, settings, run or None, self._hooks)

    def unseen(self, df: "DataFrame") -> "DataFrame":
        """The rows whose keys are not in the inbox yet, to avoid costly work on the others.

        This is an optimisation, not a guarantee: a key that is new here may be taken before it is written.
        """
        settings = self._settings(df)
        if settings.inbox == "table":
            raise InvalidOption("inbox='table': there are no keys in the inbox; join with the table instead")
        Job(settings, None).check_keys(arrow_schema(df.schema))
        return mapped(df, df.schema, unseen_rows, settings.for_tasks)

    def reconcile(self, df: "DataFrame") -> Reconciliation:
        """Compare the rows of a DataFrame with the inbox and the table, and name what is missing.

        Nothing is written. Only the keys are read (with `Upsert`, also its key and version), and each
        partition is compared by its own task. Rows written at the same time may count as found or missing.

        Raises:
            InvalidOption: an option is missing or invalid.
            ColumnMismatch: the DataFrame does not fit the key or the table.
            TablesMissing: the inbox's tables have not been created.
            PySparkException: a task has failed as often as Spark allows.
        """
        return reconcile(df, self._settings(df).for_tasks)

    def _settings_to_write(self, df: "DataFrame") -> WriterSettings:
        settings = self._settings(df)
        if settings.ledger == "trust" and settings.run is None:
            raise InvalidOption("ledger='trust': needs run, which identifies a repeated submission")
        return settings

    def _settings(self, df: "DataFrame") -> WriterSettings:
        options = session_options(df) | self._given
        for name in ("url", "key", "consumer"):
            if name not in options:
                raise InvalidOption(f"{name}: missing")
        return checked(**({"table": None} | options))


def _given(**options: Any) -> dict[str, Any]:
    """The options without those that were omitted."""
    return {name: value for name, value in options.items() if value is not None}


def _check_mode(mode: str, settings: WriterSettings) -> None:
    if mode != "append" and not all(isinstance(each.results, Upsert) for each in settings.targets):
        raise InvalidOption(
            f"outputMode({mode!r}): newer values come under the same key, which is taken once, so they would "
            "be ignored; use results=Upsert(key=..., version=...), which takes each version of a key once, "
            "or outputMode('append')"
        )
