"""Records of status-table mode in a table: each write is one statement that checks what it is based on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Engine, StaticPool
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from inbox._listening.handler_counts import HandlerCounts
from inbox._memory import history_of
from inbox_outbox_base.checks.key_times import KeyTime
from inbox_outbox_base.checks.missing import raise_clearer
from inbox_outbox_base.checks.retention import Retention
from inbox_outbox_base.databases import claiming_statements, taking_statements
from inbox_outbox_base.databases.registry import claiming, taking
from inbox_outbox_base.databases.taking import IMPATIENT, at_level
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import InvalidOption, StoreUnreachable
from inbox_outbox_base.tables.inbox import tables
from inbox_outbox_base.transactions import safety
from inbox_outbox_base.transactions.connect import connected, drop_read_only, reaching
from inbox_outbox_base.transactions.declaring import Declaration
from inbox_outbox_base.transactions.durability import look
from inbox_outbox_base.words.incoming import Status, Verdict

from . import sql_rows as rows
from .records import (
    Change,
    ClaimAnswer,
    HeldRecord,
    Judgement,
    Record,
    Request,
    is_ours,
    judge,
    new_record,
    successor,
)
from .store import Store
from .time_limit import Call, Watchdog

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")
LONGEST_CALL = 20.0
"""Seconds after which an unanswered call is given up; longer than any wait for a row."""

_LARGEST_STATEMENT = 1_000
"""The most claims that one statement renews."""


class _RowLocked(StoreUnreachable):
    """The store answers, but somebody has locked the row."""


class _Doubtful(Exception):
    """The key names a time whose keys the consumer may have forgotten."""


class _Forgotten(Exception):
    """The consumer has forgotten the keys of that time."""


class SqlStore(Store):
    """Records in the table ``inbox_status`` of PostgreSQL, MySQL, MariaDB or SQLite.

    Every claim, heartbeat and step is one short transaction of its own, so no lock is held while a handler
    runs, and the time is the database's clock. Transient errors are retried for about a second.

    Args:
        engine: the database of the tables; an AsyncEngine for `AsyncStatusInbox`.
        schema: the PostgreSQL schema of the tables; None is the connection's own.

    Raises:
        InvalidOption: not an engine, or all threads share its one connection.
        UnsupportedDatabase: not PostgreSQL, MySQL, MariaDB or SQLite.
    """

    def __init__(self, engine: "Engine | AsyncEngine", *, schema: str | None = None) -> None:
        sync_engine = getattr(engine, "sync_engine", engine)
        if not isinstance(sync_engine, Engine):
            raise InvalidOption(f"engine={type(engine).__name__}: expected an Engine or an AsyncEngine")
        self._database = taking(sync_engine.dialect.name)
        if isinstance(sync_engine.pool, StaticPool) and self._database.has_server:
            raise InvalidOption(
                "engine: expected a pool other than StaticPool, because with it a heartbeat would commit "
                "another thread's writes"
            )
        self.is_async = sync_engine is not engine
        self.engine = sync_engine
        self.tables = tables(schema)
        self._claiming = claiming(sync_engine.dialect.name)
        self._own = self._database.committing_each(sync_engine)
        self._transacting = at_level(sync_engine, self._database.own_isolation)
        self._watchdog = Watchdog(self._database)

    @property
    def history(self) -> object:
        return history_of(self.engine)

    def prepare(self) -> None:
        look(self.engine)
        safety.check_engine(self.engine, [self.tables.status])

    def counts(self, consumer: str) -> HandlerCounts:
        return HandlerCounts(consumer, self.tables.minute, lambda: self.engine)

    def __repr__(self) -> str:
        return f"SqlStore({self.engine.url.render_as_string()!r})"

    def write(self, held: HeldRecord, change: Change, among: Iterable[Status] = (Status.CONSUMING,)) -> bool:
        if self._run(lambda connection: self.write_on(connection, held, change, among)):
            return True
        # No row changed: the claim is lost, or an earlier try succeeded and only its answer was lost.
        return self._has_happened(held, change)

    def write_on(
        self, connection: Connection, held: HeldRecord, change: Change, among: Iterable[Status]
    ) -> bool:
        """The same on a connection; False also if an earlier try has succeeded."""
        values = rows.values(change)
        statement = claiming_statements.write(self.tables, frozenset(values), rows.names(among))
        parameters = values | rows.where(held)
        if change.expects:
            statement = claiming_statements.expecting(self.tables, statement)
            parameters["expects"] = change.expects
        return connection.execute(statement, parameters).rowcount == 1

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Work in one transaction, which is retried as a whole."""
        return self._run(work, once=self._once_together)

    def find(self, consumer: str, key: str) -> Record | None:
        parameters = {"consumer_": consumer, "key_": key}
        return self._run(lambda connection: self._look(connection, parameters)[1])

    def has(self, held: HeldRecord, expects: Sequence[bytes]) -> bool:
        """Whether the record has this token and one of these claims, and is being consumed."""
        record = self.find(held.consumer, held.key)
        if record is None or record.claim not in expects:
            return False
        return (record.token, record.status) == (held.token, Status.CONSUMING)

    def list(
        self,
        consumer: str | None,
        status: Status | None,
        limit: int,
        key: str | None = None,
        error: str | None = None,
    ) -> list[Record]:
        given = rows.wanted(consumer, status, key, error)
        statement = claiming_statements.listed(self.tables, *given)
        found = self._run(lambda each: each.execute(statement, given | {"limit": limit}).mappings().all())
        return [*map(rows.record_of, found)]

    def places(
        self, consumer: str | None, status: Status | None, key: str | None = None, error: str | None = None
    ) -> Sequence[HeldRecord]:
        given = rows.wanted(consumer, status, key, error)
        statement = claiming_statements.places(self.tables, *given)
        return [HeldRecord(*row) for row in self._run(lambda each: each.execute(statement, given).all())]

    def renew(
        self, claims: Sequence[HeldRecord], lease: float, keep: float, within: float
    ) -> Iterator[tuple[HeldRecord, float | None]]:
        if not self._database.locks_rows:  # a paused process must not hold even a read transaction open
            yield from super().renew(claims, lease, keep, within)
            return
        for start in range(0, len(claims), _LARGEST_STATEMENT):
            part = claims[start : start + _LARGEST_STATEMENT]
            work = partial(self._renew_on, claims=part, lease=lease)
            yield from self._run(work, wait=claiming_statements.CLAIM_WAIT, within=within)

    def _renew_on(
        self, connection: Connection, claims: Sequence[HeldRecord], lease: float
    ) -> Iterable[tuple[HeldRecord, float | None]]:
        consumer = claims[0].consumer
        these = {"consumer_": consumer, "claims": [(held.key, held.token) for held in claims]}
        self._claiming.renew(connection, self.tables, these, lease)
        # Read the leases back: the renewal may skip locked rows, which keep their old lease.
        left = {
            HeldRecord(consumer, row.key, row.token): (row.lease_until - row.now).total_seconds()
            for row in connection.execute(claiming_statements.leases(self.tables), these)
        }
        return [(held, left.get(held)) for held in claims]

    def delete(self, held: HeldRecord, among: Iterable[Status]) -> bool:
        statement = claiming_statements.forget(self.tables, rows.names(among))
        return self._run(lambda connection: connection.execute(statement, rows.where(held)).rowcount == 1)

    def now(self) -> datetime:
        return self._run(self._database.now)

    def lock(
        self, connection: Connection, held: HeldRecord, witness: bytes, expects: Sequence[bytes]
    ) -> object:
        """Lock the record against everybody else until the caller's transaction ends, if its claim is one of
        these; return what `has_committed` needs, or None if the claim is lost. A transaction that is rolled
        back leaves no `witness`."""
        self._database.catch_up(connection)
        given = rows.where(held) | {"claim": witness, "expects": expects}
        return self._claiming.lock(connection, self.tables, given)

    def has_committed(self, held: HeldRecord, locked: object) -> bool:
        """Whether a transaction that has locked the record, and is over, has committed."""
        where = {"consumer_": held.consumer, "key_": held.key}
        return self._run(
            lambda connection: self._claiming.has_committed(connection, self.tables, where, locked)
        )

    def record_step(
        self,
        connection: Connection,
        held: HeldRecord,
        witness: bytes,
        *,
        steps: str,
        undos: int,
        pending_step: str | None,
        lease: float,
    ) -> bool:
        """In the same transaction, record the steps and renew the lease, in seconds; return False if the
        transaction was rolled back meanwhile."""
        parameters = rows.where(held) | {
            "claim": witness,
            "steps": steps,
            "undos": undos,
            "pending_step": pending_step,
            "lease": lease,
        }
        return self._claiming.record_step(connection, self.tables, parameters)

    def bounded(self, connection: Connection) -> AbstractContextManager[None]:
        """Around calls on the caller's connection, which is cut if a call takes too long.

        Raises:
            StoreUnreachable: the connection was cut.
        """
        return self._bounded(connection, LONGEST_CALL)

    def _claim(self, request: Request) -> ClaimAnswer | None:
        try:
            return self._claimed(request)
        except _Forgotten:
            now = self.now()
            return ClaimAnswer(verdict=Verdict.TOO_OLD, record=new_record(request, 0, now), now=now)
        except _RowLocked:
            # A plain read does not wait for the lock.
            return self._run(lambda connection: self._locked(connection, request))

    def _claimed(self, request: Request) -> ClaimAnswer | None:
        wait = claiming_statements.CLAIM_WAIT
        try:
            return self._run(partial(self._claim_sure, request=request), wait=wait)
        except _Doubtful:
            doubtful = partial(self._claim_doubtful, request=request)
            return self._run(doubtful, wait=wait, once=self._once_together)

    def _claim_sure(self, connection: Connection, request: Request) -> ClaimAnswer | None:
        """On a connection where each statement commits."""
        policy = request.policy
        form = None if policy is None else policy.form
        if policy and form and request.key < policy.surely_kept_from(connection, form):
            raise _Doubtful
        return self.claim_on(connection, request)

    def _claim_doubtful(self, connection: Connection, request: Request) -> ClaimAnswer | None:
        """In a transaction, which is rolled back if the key was new and has been forgotten before. Looked at
        afterwards: the horizon was stored before the row was deleted."""
        answer = self.claim_on(connection, request)
        if answer is not None and answer.is_first:
            lowest = connection.scalar(
                taking_statements.lowest_key(self.tables), {"consumer_": request.consumer}
            )
            if lowest is not None and request.key < lowest:
                raise _Forgotten
        return answer

    def _locked(self, connection: Connection, request: Request) -> ClaimAnswer:
        """The answer about a row that stays locked for longer than a claim waits. Whoever locks it may be
        handling the message, so the message is in flight, unless it is settled."""
        now, record = self._look(connection, {"consumer_": request.consumer, "key_": request.key})
        if record is None:  # the insert that locks the row is not committed
            return ClaimAnswer(verdict=Verdict.IN_FLIGHT, record=new_record(request, 0, now), now=now)
        judgement = judge(record, now, request)
        is_open = judgement.bury is not None or judgement.verdict is Verdict.NEW
        return ClaimAnswer(
            verdict=Verdict.IN_FLIGHT if is_open else judgement.verdict, record=record, now=now
        )

    def declaration(
        self,
        consumer: str,
        retention: Retention | float | timedelta | None,
        dead_retention: float | None,
        key_time: KeyTime | None,
    ) -> Declaration:
        return Declaration(self.tables, consumer, "status", retention, dead_retention, key_time)

    def retention(self, policy: Declaration) -> Retention:
        return policy.asked or self._run(policy.retention)

    def agreed(self, policy: Declaration) -> Retention:
        return self._run(policy.confirmed)

    def claim_on(self, connection: Connection, request: Request) -> ClaimAnswer | None:
        """Claim on a connection where each statement commits; None: try again."""
        answer = self._claim_on(connection, request)
        if answer is not None and request.is_remembered and request.policy is not None:
            answer.kept = request.policy.kept(connection)
        return answer

    def _claim_on(self, connection: Connection, request: Request) -> ClaimAnswer | None:
        # First, because each statement commits: nothing may be claimed in a table that cannot keep a promise,
        # or under a conflicting policy.
        policy = request.policy
        if policy is None or not policy.is_seen(connection):
            needed = [self.tables.status] if policy is None else policy.needed
            safety.check_now_and_then(connection, needed)
            if policy is not None:
                policy.agree(connection, is_new=True)
        answer = self._claiming.add_or_look(connection, self.tables, rows.new(request))
        if answer is None:  # purged in between
            return None
        now, found = answer
        if isinstance(found, int):
            return ClaimAnswer.first(request, found, now)
        record = rows.record_of(found)
        if is_ours(record, request):
            return ClaimAnswer(verdict=Verdict.NEW, record=record, now=now)
        judgement = judge(record, now, request)
        if judgement.bury is not None or judgement.verdict is Verdict.NEW:
            return self._change(connection, request, record, now, judgement)
        return ClaimAnswer(verdict=judgement.verdict, record=record, now=now)

    def _look(self, connection: Connection, where: dict[str, Any]) -> tuple[datetime, Record | None]:
        now, found = self._claiming.look(connection, self.tables, where)
        return now, None if found is None else rows.record_of(found)

    def _change(
        self, connection: Connection, request: Request, record: Record, now: datetime, judgement: Judgement
    ) -> ClaimAnswer | None:
        seen = rows.where(HeldRecord(record.consumer, record.key, record.token))
        judged = {
            "status_": record.status.value,
            "undos_": record.undos,
            "pending_step_": record.pending_step,
        }
        values = seen | judged | successor(record, now, request, judgement)
        if judgement.bury is None:
            taken = claiming_statements.take_over(self.tables)
            changed = connection.execute(taken, values | {"lease": request.lease}).rowcount
        else:
            buried = claiming_statements.bury(self.tables)
            changed = connection.execute(buried, values | {"status": judgement.bury.value}).rowcount
        now, found = self._look(connection, seen)
        # Each statement commits on its own: somebody else may have changed the record before or after ours.
        if changed == 0 or found is None or (judgement.bury is None and found.claim != request.claim):
            return None
        return ClaimAnswer(verdict=judgement.verdict, record=found, now=now)

    def _run(
        self,
        work: Callable[[Connection], T],
        *,
        wait: float = claiming_statements.WRITE_WAIT,
        within: float | None = None,
        once: Callable[[Callable[[Connection], T], float, float], T] | None = None,
    ) -> T:
        """Work on a separate connection, where each statement commits and waits at most `wait` seconds for a
        row. A connection that does not answer `within` so many seconds is replaced once."""
        seconds = LONGEST_CALL if within is None else within
        call = self._once if once is None else once
        may_retry = _may_retry
        if self.engine.get_execution_options().get(IMPATIENT):  # it limits the time of its transactions
            call, may_retry = self._once_together, _may_pass

        def attempt() -> T:
            with reaching():
                return call(work, wait, seconds)

        try:
            return self._retrying(attempt, may_retry)
        except SQLAlchemyError as error:
            if not codes.is_transient(error):
                raise
            is_locked = isinstance(error, DBAPIError) and codes.ends_wait(error)
            unreachable = _RowLocked if is_locked else StoreUnreachable
            raise unreachable(f"{self!r} did not answer: {_reason(error)}") from error

    def _once(self, work: Callable[[Connection], T], wait: float, within: float) -> T:
        with connected(self._own) as connection:
            try:
                with self._bounded(connection, within), self._database.briefly(connection, wait):
                    self._database.catch_up(connection)  # the claim may be another connection's
                    result = work(connection)
                    if not self._database.has_server and not self._database.is_ended(connection):
                        connection.commit()  # an application sends BEGIN on all connections
                    return result
            except DBAPIError as error:
                drop_read_only(connection, error)
                raise_clearer(connection, self.tables.status, error)

    def _once_together(self, work: Callable[[Connection], T], wait: float, within: float) -> T:
        with connected(self._transacting) as connection:
            try:
                waiting = self._database.waiting(connection, wait)
                with self._bounded(connection, within), connection.begin(), waiting:
                    self._database.catch_up(connection)
                    return work(connection)
            except DBAPIError as error:
                drop_read_only(connection, error)
                raise_clearer(connection, self.tables.status, error)

    def _bounded(self, connection: Connection, seconds: float) -> AbstractContextManager[None]:
        return Call(self._watchdog, connection, seconds) if self._database.has_server else nullcontext()


def _may_retry(error: Exception, _: int) -> bool:
    return isinstance(error, SQLAlchemyError | StoreUnreachable) and codes.is_transient(error)


def _may_pass(error: Exception, _: int) -> bool:
    return isinstance(error, SQLAlchemyError) and codes.is_passing(error)


def _reason(error: SQLAlchemyError) -> object:
    """The driver's message, without the statement and its parameters."""
    return error.orig if isinstance(error, DBAPIError) else error
