"""One transaction that holds an inbox row and the body's writes: both commit or neither does.

The code is synchronous; `AsyncInbox` runs it inside SQLAlchemy's `run_sync`.
"""

import json
import os
import time
from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction

from inbox._listening.counting import begins_transaction, ends_transaction, repeats_transaction
from inbox._listening.noting import fail, note_of
from inbox._memory import Known, Memory, place_of
from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.checks.results import encode_result
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.databases.taking import LEVEL, Attempt, Stored, pooled
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.blame import AFTER_BODY, COMMIT, OWN
from inbox_outbox_base.errors.groups import find
from inbox_outbox_base.errors.inbox import CommitLost, TransactionAborted, TransactionEnded
from inbox_outbox_base.monitoring.events import OF_VERDICT, Event, EventKind, Hooks, digests_of
from inbox_outbox_base.transactions import connect, ending, failed_commit, forked
from inbox_outbox_base.transactions.connect import begin, drop_read_only, on_connection, transacted
from inbox_outbox_base.transactions.joining import lost, lost_before, roll_back
from inbox_outbox_base.transactions.session import (
    BindArguments,
    bind_of,
    check_no_session,
    connection_of,
    is_aborted,
)
from inbox_outbox_base.words.incoming import Verdict

from .accept import Terms, accept, ours

_RECONNECTS = 6


class Transaction:
    """Begin, commit and roll back around a body, with the checks that a plain COMMIT lacks."""

    def __init__(
        self,
        attempt: Attempt,
        terms: Terms,
        message_time: datetime | None,
        *,
        bind_arguments: BindArguments | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._attempt = attempt
        self._terms = terms
        self._message_time = message_time
        self._bind_arguments = bind_arguments
        self._sleep = sleep
        self._process = os.getpid()
        self._is_watched = False
        self._mark: object = None
        self._later: ending.Later | None = None
        self.is_asked = False
        """Whether somebody has looked at the verdict."""
        self.found: bytes | None = None
        """For a duplicate, the claim of the attempt that took the message, if it has one."""
        self.verdict: Verdict = Verdict.IN_FLIGHT
        self.result: Any = None
        self.is_over = False
        self._stored_digest: bytes | None = None
        self._begun = time.monotonic()
        self._events: list[EventKind] = []

    @property
    def key(self) -> str:
        """The message's key, as it is stored."""
        return self._attempt.key

    @property
    def part(self) -> tuple[str, str]:
        """The consumer and the message's key."""
        return self._attempt.consumer, self._attempt.key

    @property
    def claim(self) -> bytes:
        """What tells this attempt from all others."""
        return self._attempt.claim

    def begin(self, handle: Connection | Session) -> None:
        """Begin a transaction and take the message in it."""
        self._handle = handle
        own = OWN
        try:
            self._transaction = begin(handle)
            self.connection = self._connection(handle)
            if not isinstance(self.bind, Engine):  # it may be in a transaction of the caller's
                own = ours(self.connection)
            self._database = database_of(self.connection)
            self._state = self._database.state(self.connection)
            before = self._state.reported()
            try:
                self.verdict, stored = accept(
                    self.connection,
                    self._attempt,
                    self._terms,
                    self._message_time,
                    begins=isinstance(self.bind, Engine),
                )
            except DBAPIError as error:
                if isinstance(self.bind, Engine):  # else the connection is the caller's
                    drop_read_only(self.connection, error)
                raise
        except Exception as error:
            # Whatever fails before the body runs is not the handler's failure.
            failure = connect.unreachable(error)
            own.mark(failure)
            if failure is error:
                raise
            raise failure from error
        if self.verdict is Verdict.NEW:
            after = self._state.reported()
            if after != before:  # equal if there is no mark, or a pooler hides it, or it is an outer one's
                self._mark = after
            ending.watch(
                handle,
                self.connection,
                self._transaction,
                self._state,
                self._mark,
                is_looked_up=isinstance(self.bind, Engine),
            )
            self._is_watched = True
            begins_transaction(self.part)
            return
        if self.verdict is Verdict.DUPLICATE:
            repeats_transaction(self.part)
        self._events.append(OF_VERDICT[self.verdict])
        self._later = ending.watch_later(handle, self.connection, self._transaction)
        self._is_watched = True
        if stored is not None:
            self.found, self._stored_digest = stored.claim, stored.digest
            self.result = stored.result and json.loads(stored.result)

    def _connection(self, handle: Connection | Session) -> Connection:
        if isinstance(handle, Session):
            self.bind = bind_of(handle, self._attempt.tables.message, self._bind_arguments)
            return connection_of(handle, self.bind, is_ours=True)
        check_no_session(self._bind_arguments)
        self.bind = handle.engine
        return handle

    def commit(self) -> None:
        """Commit the body's writes, or raise if they did not commit.

        Raises:
            TransactionAborted: the transaction cannot commit, or the body has written without asking whether
                the message is new; it was rolled back.
            TransactionEnded: the body ended the transaction.
            UnusableConnection: the session has written to two databases, which do not commit together.
            CommitLost: the connection broke during COMMIT, which did not happen.
            InvalidResult: the result is not JSON, or too large.
        """
        # The parent still uses this connection: a COMMIT from the child would end the parent's transaction.
        forked.check(self._process)
        self._check_same()
        # Pending ORM writes come first: the checks below must see their errors.
        if isinstance(self._handle, Session):
            self._handle.flush()
        self._check_asked()
        self._check_whole()
        if self.verdict is Verdict.NEW and self.result is not None:
            self._store_result()
        self.leave()  # SQLAlchemy sends statements of its own for a two-phase COMMIT
        # Before the COMMIT: if another connection breaks meanwhile, this one may be lost.
        place, kept = self._place(), 0.0
        if place is not None and self.verdict is Verdict.NEW:
            kept = self._terms.policy.kept(self.connection)
        try:
            self._handle.commit()
        except DBAPIError as error:
            COMMIT.mark(error)
            # On the caller's connection, the caller commits.
            if not codes.breaks_connection(error) or not isinstance(self.bind, Engine):
                raise
            with AFTER_BODY:
                self._resolve(error)
            place = self._place()
            self._events.append(EventKind.COMMIT_RESOLVED)
        if self.verdict is Verdict.NEW:
            ends_transaction(self.part)
            self._events.append(EventKind.TAKEN)
            if self._terms.memory is not None and place is not None:
                self._remember(self._terms.memory, place, kept)

    def _place(self) -> Hashable | None:
        """Where to remember the message, if at all: a session on the caller's connection may be in a
        transaction that the caller rolls back later."""
        if self._terms.memory is None or not isinstance(self.bind, Engine):
            return None
        return place_of(self.connection, self.key)

    def _remember(self, memory: Memory, place: Hashable, kept: float) -> None:
        """Called after the commit, when a session has returned the connection."""
        text = None if self.result is None else encode_result(self.result)
        known = Known(self._attempt.digest, text)
        memory.remember(place, known, kept)

    def roll_back(self, handle: Connection | Session, error: BaseException) -> None:
        """Roll back after this error, but only in the process that began the transaction.

        Raises:
            TransactionEnded: the body had committed, so a redelivery would be a duplicate.
            CommitLost: an error of the database may have ended the transaction, or the body, and nobody could
                be asked whether it committed.
        """
        if not forked.is_in(self._process):
            self.leave()
            forked.abandon(handle)
            return
        if self.verdict is Verdict.NEW:
            fail(self._terms.records, note_of(self.connection, self._attempt, Verdict.DEAD))
        cause = lost_before(getattr(self, "connection", None), error)
        end = self._end_after(error)
        self.leave()
        if self.verdict is Verdict.NEW:
            # If the ROLLBACK cannot be sent, the pool must not hand this transaction to its next user.
            failed_commit.watch(self.connection)
        roll_back(
            handle,
            getattr(self, "connection", None),
            error,
            is_over=end == "over" and self._transaction.is_active,
        )
        if end != "open":
            self._check_not_committed(error, is_lost=end == "lost")
        if cause is not None:
            raise cause from error

    def _end_after(self, error: BaseException) -> ending.After:
        """Whether an error of the body's own came after the end of the transaction."""
        is_ours = self._is_watched and self.verdict is Verdict.NEW and isinstance(self.bind, Engine)
        if not is_ours or not isinstance(error, Exception) or find(error, TransactionEnded) is not None:
            return "open"
        return ending.after_error(self._handle, self.connection, self._transaction, error)

    def _check_not_committed(self, error: BaseException, *, is_lost: bool) -> None:
        """An error of the database may also have ended the transaction, and then nothing has committed."""
        self.connection.close()  # the pool may have no other
        try:
            is_committed = self._is_committed(
                lambda connection: self._database.find(connection, self._attempt),
                tries=1 if is_lost else _RECONNECTS,
            )
        except CommitLost:
            if is_lost:  # most likely the body did nothing about it
                return
            if find(error, DBAPIError) is not None:
                raise
            is_committed = None
        if is_committed is not False:
            raise TransactionEnded(
                "the body ended the transaction and then raised an error: earlier writes and the inbox row "
                f"{'are' if is_committed else 'may be'} committed, so a redelivery would be a duplicate"
            ) from error

    def leave(self) -> None:
        """The body is over, whether it succeeded or failed."""
        self.is_over = True
        if self._is_watched:
            self._is_watched = False
            ending.unwatch(self._handle, self.connection)

    def tell(self, hooks: Hooks) -> None:
        """Tell monitoring what happened, once the transaction is over and its connection returned."""
        seconds = time.monotonic() - self._begun
        consumer = self._attempt.consumer
        digests = digests_of(self.verdict, self._attempt.digest, self._stored_digest)
        for kind in self._events:
            hooks(Event(kind=kind, consumer=consumer, key=self.key, seconds=seconds, **digests))

    def _check_same(self) -> None:
        if self._handle.get_transaction() is not self._transaction:
            raise TransactionEnded(
                "the body committed or rolled back: the inbox row and the writes after that are not in one "
                "transaction"
            )
        if (error := lost(self.connection)) is not None:
            raise error
        # SQLAlchemy itself has rolled back, after an error in a flush or an interruption.
        if not self._transaction.is_active or self.connection.invalidated:
            raise TransactionAborted("the body swallowed an error that had ended the transaction")

    def _check_asked(self) -> None:
        if self._later is not None and self._later.is_used and not self.is_asked:
            raise TransactionAborted(
                f"the message is not new (its verdict is {self.verdict}), and the body used the connection "
                "without looking at work.is_new: nothing was written"
            )

    def _check_whole(self) -> None:
        ending.refuse_ended(
            self.connection, "the body ended the transaction with SQL of its own or through the driver"
        )
        root, state = self._transaction, self._state
        if state.is_aborted() or (isinstance(root, SessionTransaction) and is_aborted(root, self.connection)):
            raise TransactionAborted(
                "the body swallowed a database error that had aborted the transaction: nothing was written"
            )
        if self._mark is not None:
            return
        ending.check_same(self.connection)
        if self.verdict is Verdict.NEW:
            with AFTER_BODY:
                is_there = self._database.is_there(self.connection, self._attempt)
            if not is_there:
                raise TransactionAborted(ending.UNDONE)
        ending.check_kept(self.connection)

    def _store_result(self) -> None:
        attempt = self._attempt
        parameters = attempt.where() | {"claim_": attempt.claim, "result_": encode_result(self.result)}
        with AFTER_BODY:
            # The claim is compared: the body may have deleted this attempt's row and taken the key again.
            updated = self.connection.execute(taking_statements.store_result(attempt.tables), parameters)
        if updated.rowcount != 1:
            raise TransactionAborted("the inbox row is gone from the transaction: nothing was written")

    def _resolve(self, error: DBAPIError) -> None:
        """Finish normally if the COMMIT did happen: the row with our claim proves it."""
        if self.verdict is not Verdict.NEW:
            # A duplicate wrote no row that could prove the COMMIT.
            raise CommitLost("a connection broke during COMMIT") from error
        # If a listener's connection broke, this one still locks the row. (What is prepared would stay.)
        if not (self.connection.closed or getattr(self._handle, "twophase", False)):
            self._give_up(error)
        if not self._is_committed(
            lambda connection: self._database.settled(connection, self._attempt, self._terms.wait)
        ):
            if codes.is_overdue(error):
                raise error
            raise CommitLost("a connection broke during COMMIT, and nothing was written") from error

    def _give_up(self, error: DBAPIError) -> None:
        try:
            self.connection.dialect.do_rollback(pooled(self.connection))
        except (self.connection.dialect.loaded_dbapi.Error, SQLAlchemyError):
            self.connection.invalidate(error)

    def _is_committed(
        self, find_row: Callable[[Connection], Stored | None], tries: int = _RECONNECTS
    ) -> bool:
        """Whether the row with our claim is there, as a new connection sees it."""
        given = self.connection.get_execution_options().get("schema_translate_map")
        options = {"schema_translate_map": given} if given else {}  # a session may have its own
        # At a higher isolation level, the look would not see a COMMIT that it has waited for.
        options[LEVEL] = self._database.own_isolation
        engine = self.connection.engine.execution_options(**options)

        def look(connection: Connection) -> Stored | None:
            # The connection that broke may have led to another node of a cluster.
            self._database.catch_up(connection)
            return find_row(connection)

        try:
            stored = retry(
                lambda: on_connection(engine, lambda connection: transacted(connection, look)),
                tries,
                lambda error, _: isinstance(error, SQLAlchemyError) and codes.is_transient(error),
                sleep=self._sleep,
            )
        except SQLAlchemyError as error:
            raise CommitLost("nobody could be asked whether the transaction has committed") from error
        return stored is not None and stored.claim == self._attempt.claim
