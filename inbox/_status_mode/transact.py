"""A step that commits in one transaction with its record."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from inbox_outbox_base.calls import clock
from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.blame import AFTER_BODY, COMMIT, OWN
from inbox_outbox_base.errors.groups import find
from inbox_outbox_base.errors.inbox import (
    CommitLost,
    InvalidOption,
    LeaseLost,
    StoreUnreachable,
    TransactionAborted,
    TransactionEnded,
    UnusableConnection,
)
from inbox_outbox_base.transactions import ending, failed_commit, forked
from inbox_outbox_base.transactions.connect import begin, reaching, root
from inbox_outbox_base.transactions.joining import database_to_join, lost, lost_before, roll_back
from inbox_outbox_base.transactions.session import bind_of, connection_of, is_aborted
from inbox_outbox_base.transactions.sources import SYNC, Source, check_source, open_source

from .hold import Hold
from .steps import Steps
from .stores import SqlStore, Store


class StepTransaction:
    """Begin, record and commit around a step's body; synchronous, for any handle.

    The first statement locks the record's row. So nobody takes the message over while the transaction is
    open, and a claim that was lost earlier is detected before anything is written.
    """

    def __init__(self, hold: Hold, store: SqlStore | None, name: str, *, has_undo: bool) -> None:
        self._hold = hold
        self._store = store
        self._name = name
        self._has_undo = has_undo
        self._witness = os.urandom(16)
        self._process = os.getpid()
        self._began = clock.now()
        self._is_watched = self._has_failed = False
        self._locked: object = None
        self._steps: Steps = hold.steps
        self._sent = clock.now()

    def begin(self, handle: Connection | Session) -> None:
        """Begin a transaction, and lock the claim in it.

        Raises:
            LeaseLost: somebody else has the message.
            UnusableConnection: the connection is in AUTOCOMMIT mode.
            InvalidOption: it is not in the store's database.
        """
        self._handle = handle
        with OWN, reaching():
            self._transaction = begin(handle)
            self._connection = self._connected(handle)
            try:
                database_to_join(self._connection)
            except UnusableConnection as error:
                raise UnusableConnection(
                    f"step={self._name!r}: {error}; give transact a source= with transactions"
                ) from None
            store, held = self._store, self._hold.held
            with self._bounded():
                if store is not None:
                    self._locked = store.lock(self._connection, held, self._witness, self._hold.versions)
        if store is not None and self._locked is None:
            is_elsewhere = _place(self._connection) != _place(store.engine)
            if is_elsewhere and store.has(held, self._hold.versions):
                raise InvalidOption(
                    f"step={self._name!r}: source= is not the store's database, or not the same schema of it"
                )
            self._hold.lose()
            raise LeaseLost(f"key={self._hold.held.key!r}: the claim is lost")
        self._hold.is_locked = True
        if store is None:
            ending.watch_later(handle, self._connection, self._transaction)
        else:
            ending.watch(handle, self._connection, self._transaction, is_looked_up=True)
        self._is_watched = True

    def _connected(self, handle: Connection | Session) -> Connection:
        if not isinstance(handle, Session):
            return handle
        if self._store is None:
            return handle.connection()
        return connection_of(handle, bind_of(handle, self._store.tables.status), is_ours=True)

    def end(self, result: Any) -> None:
        """Record the step, and commit.

        Raises:
            TransactionEnded, TransactionAborted, CommitLost: as for the exactly-once path.
            UnusableConnection: the session has written to two databases; nothing was committed on either.
            InvalidResult: the result is not JSON, or too large.
        """
        forked.check(self._process)
        self._steps = self._hold.steps.done(self._name, result, has_undo=self._has_undo)
        if isinstance(self._handle, Session):
            self._handle.flush()
        self._record()
        # The last moment to stop a handler that has run too long: after the COMMIT, the step has happened.
        self._hold.check()
        self.leave()  # SQLAlchemy sends statements of its own for a two-phase COMMIT
        try:
            with COMMIT:
                # Even in a cancelled task the COMMIT finishes, so that its outcome is known.
                self._hold.call(self._commit)
        except Exception as error:
            if not _is_lost(error):
                self._has_failed = True  # perhaps in a hook of the application, after the COMMIT
                raise
            with AFTER_BODY:
                self._resolve(error)
        except BaseException:  # interrupted: it does not wait until it is known whether it has committed
            self._doubt()
            raise
        self._adopt()

    def _adopt(self) -> None:
        """The transaction has committed. Called before anything else can be interrupted."""
        seconds = clock.now() - self._began
        self._hold.adopt(self._name, self._steps, self._witness, sent=self._sent, seconds=seconds)

    def roll_back(self, error: BaseException) -> None:
        """Roll back after this error, but only in the process that began the transaction.

        Raises:
            TransactionEnded: the body had committed; the message halts, because a part of the step happened.
            StoreUnreachable: the body had ended the transaction, and nobody could be asked whether it
                committed; the message halts.
        """
        if not forked.is_in(self._process):
            self.leave()
            forked.abandon(self._handle)
            return
        cause = lost_before(getattr(self, "_connection", None), error)
        end = self._end_after(error)
        if end == "over" and not isinstance(error, Exception):
            # Interrupted: it does not wait until it is known whether the body has committed or rolled back.
            self._hold.halt_at(self._name, self._witness, has_undo=self._has_undo)
        self.leave()
        if self._hold.is_locked:
            # If the ROLLBACK cannot be sent, the pool must not hand this transaction to its next user.
            failed_commit.watch(self._connection)
        roll_back(
            self._handle,
            getattr(self, "_connection", None),
            error,
            is_over=end == "over" and self._transaction.is_active,
        )
        if self._has_failed:
            self._handle.close()  # the pool may have no other connection
            with suppress(StoreUnreachable):  # then the step is in doubt, and the error goes up
                if self._is_recorded():
                    self._adopt()
        if isinstance(error, Exception) and end != "open":
            self._check_not_committed(error, is_lost=end == "lost")
        if cause is not None:
            raise cause from error

    def _end_after(self, error: BaseException) -> ending.After:
        if not self._is_watched or self._store is None:  # without a record, nobody could tell
            return "open"
        asks = isinstance(error, Exception)
        return ending.after_error(self._handle, self._connection, self._transaction, error, asks=asks)

    def _check_not_committed(self, error: BaseException, *, is_lost: bool) -> None:
        """An error of the database may also have ended the transaction, and then nothing has committed."""
        assert self._store is not None  # noqa: S101 - it may have committed
        self._handle.close()  # the pool may have no other connection
        try:
            with OWN:
                has_committed = self._store.has_committed(self._hold.held, self._locked)
        except StoreUnreachable:
            if is_lost:  # most likely the body did nothing about it
                return
            self._hold.halt_at(self._name, self._witness, has_undo=self._has_undo)
            raise
        if not has_committed:
            return
        self._hold.halt_at(self._name, self._witness, has_undo=self._has_undo)
        if find(error, TransactionEnded) is None:
            raise TransactionEnded(
                f"step={self._name!r}: the body ended the transaction and then raised an error: earlier "
                "writes are committed"
            ) from error

    def leave(self) -> None:
        """The body is over, whether it succeeded or failed."""
        if self._is_watched:
            self._is_watched = False
            ending.unwatch(self._handle, self._connection)

    def _bounded(self) -> AbstractContextManager[None]:
        return nullcontext() if self._store is None else self._store.bounded(self._connection)

    def _commit(self) -> None:
        with self._bounded():
            self._handle.commit()

    def _record(self) -> None:
        database = database_of(self._connection)
        message = f"step={self._name!r}: the body committed or rolled back"
        if (error := lost(self._connection)) is not None:
            raise error
        if not self._connection.in_transaction():
            raise TransactionEnded(message)
        root = self._handle.get_transaction()
        with AFTER_BODY:  # the server may be asked
            ending.refuse_ended(self._connection, message)
            if isinstance(root, SessionTransaction):
                is_lost = is_aborted(root)
            else:
                is_lost = database.is_aborted(self._connection)
        if is_lost or not self._write_steps():
            raise TransactionAborted(
                f"step={self._name!r}: the body swallowed a database error that had aborted the transaction, "
                "or rolled back and began another one: nothing was written"
            )
        ending.check_same(self._connection)
        ending.check_kept(self._connection)

    def _write_steps(self) -> bool:
        """Write the step to the record; return False if the transaction was rolled back meanwhile."""
        # Taken before the statement, so that the lease never ends earlier in the store than here.
        self._sent = clock.now()
        steps = self._steps.text()
        with AFTER_BODY, self._bounded():
            return self._store is None or self._store.record_step(
                self._connection,
                self._hold.held,
                self._witness,
                steps=steps,
                undos=self._steps.undos,
                pending_step=self._steps.pending,
                lease=self._hold.lease,
            )

    def _resolve(self, error: Exception) -> None:
        """Finish normally if the COMMIT did happen. If it is still under way, the record refuses what this
        attempt writes about steps later."""
        if not self._is_recorded():
            if codes.is_overdue(error):
                raise error
            raise CommitLost("a connection broke during COMMIT, and nothing was written") from error

    def _is_recorded(self) -> bool:
        """Whether the COMMIT did happen: the witness in the record proves it."""
        store, held = self._store, self._hold.held
        if store is None:
            return False
        try:
            record = self._hold.call(lambda: store.find(held.consumer, held.key))
        except BaseException:  # also if it is interrupted
            self._doubt()
            raise
        return record is not None and record.claim == self._witness

    def _doubt(self) -> None:
        self._hold.doubt_steps()
        self._hold.lose()  # nobody knows what is recorded, so nothing may overwrite it


def _place(handle: Connection | Engine) -> tuple[Engine, Any]:
    """Where its tables are, as far as the engine says."""
    engine = handle if isinstance(handle, Engine) else handle.engine
    return root(engine), handle.get_execution_options().get("schema_translate_map")


def _is_lost(error: Exception) -> bool:
    """Whether the COMMIT has got no answer."""
    if isinstance(error, DBAPIError):
        return codes.breaks_connection(error)
    return isinstance(error, StoreUnreachable)


def transact(
    hold: Hold,
    store: SqlStore,
    name: str,
    open_handle: Callable[[], Connection | Session],
    body: Callable[[Any], Any],
    *,
    has_undo: bool,
) -> None:
    """Run a step in a transaction, unless it is finished."""
    with hold.running(name):
        if not hold.begin_step(name, "retry"):
            return
        transaction = StepTransaction(hold, store if hold.is_protected else None, name, has_undo=has_undo)
        try:
            with open_handle() as handle:
                try:
                    transaction.begin(handle)
                    transaction.end(body(handle))
                except BaseException as error:
                    transaction.roll_back(error)
                    raise
        finally:
            transaction.leave()
            hold.is_locked = False


def sql_store(store: Store) -> SqlStore:
    """The store of a step in a transaction.

    Raises:
        InvalidOption: the store is not in a database, so it cannot commit with the step.
    """
    if not isinstance(store, SqlStore):
        raise InvalidOption(f"transact: {type(store).__name__} is not in the database; use step")
    return store


def opener(source: Source) -> Callable[[], Connection | Session]:
    """A function that opens a Connection or a Session.

    Raises:
        InvalidOption: not a source.
    """
    check_source(source, SYNC)
    return partial(open_source, source, SYNC)
