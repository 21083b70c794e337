"""The inbox for synchronous code."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from inbox._listening.counting import leaves_transaction
from inbox._listening.json_types import JsonResult
from inbox._listening.listener import Listener
from inbox._listening.listener_factory import Listens
from inbox._listening.outcome import Outcome
from inbox._operating.purge import Purged, purge
from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.keys import Key
from inbox_outbox_base.errors.blame import AFTER_BODY
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.transactions import failed_commit
from inbox_outbox_base.transactions.durability import looking_at
from inbox_outbox_base.transactions.session import BindArguments, bind_of, check_no_session, connection_of
from inbox_outbox_base.transactions.sources import (
    SYNC,
    EngineSource,
    S,
    SessionSource,
    Source,
    check_source,
    open_source,
)
from inbox_outbox_base.words.incoming import Verdict

from .answering import answer, answer_many
from .base import ATTEMPTS, Consumer
from .decorators import HandlerDecorator
from .taken import Taken, take
from .work import Work, begins_body, handle_of

M = TypeVar("M")
Handle = Connection | Session | scoped_session[Any]


class Inbox(Consumer, Listens[Listener]):
    """Takes each message once: effects inside the caller's transaction take effect exactly once per
    business key, for as long as the inbox row is kept.

    The key is the business key (order number, transfer id), not the broker's message id: a producer that
    resends makes a new message id for the same intent.

    Args:
        consumer: the scope of the keys, 1 to 128 bytes of UTF-8; two consumers can take the same message.
        wait: how long to wait for another transaction that is taking the same key, in seconds or as
            `timedelta`; 0 does not wait, except on MySQL (one second) and PostgreSQL (one millisecond). MySQL
            and MariaDB round up to whole seconds.
        retention: how long keys are kept (`Retention`, seconds or `timedelta`), stored with the consumer's
            data; None uses the stored value, or 7 days if there is none.
        schema: the PostgreSQL schema of the tables; None is the connection's own.
        on_refusal: what `transaction` and `handler` do with a message that was taken neither now nor before:
            "raise" the `NotTaken` error of its verdict, or "return" the verdict. With "return", check it
            before you acknowledge the message.
        on_event: a function, or several, called with each `Event`: `TAKEN`, `DUPLICATE`, `MISMATCH`,
            `IN_FLIGHT`, `TOO_OLD`; of `handler` also `RETRIED`, and of `transaction` and `handler`
            `COMMIT_RESOLVED`. It is never called inside a transaction; its errors are logged and ignored.
            `accept`, `accept_many` and `take` send theirs right after the COMMIT of your transaction, and
            none if it is rolled back, or ended without SQLAlchemy's commit.
        remember: how many committed messages this object remembers, with their results: it answers their
            duplicates without asking the database. `accept_many` always asks the database.
        record_refusals: which `MISMATCH` and `TOO_OLD` answers `inbox.refused` lists afterwards: "listening",
            those about messages that a listener or a consumer handles, together with the messages that it
            gives up; "always", those of every method, whatever becomes of your transaction; or "never".
        key_time: the form of keys that name their time: "uuid7", "ulid", or "timed" for those of `timed_key`.
            Retention then counts from the key's time, and a key that has been forgotten is `TOO_OLD`, never
            `NEW`. All inboxes of the consumer need the same form, and it never changes.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    _listener = Listener

    def accept(
        self,
        connection: Handle,
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Verdict:
        """In the caller's transaction on `connection`, take the message with this key.

        Never commits, rolls back or aborts the caller's transaction, and never raises for a duplicate: run
        the message if and only if the verdict is `NEW`. At REPEATABLE READ and SERIALIZABLE a race is an
        error for which `is_transient` is true, never a duplicate. After a database error, roll back:
        the error may already have undone the transaction, and then its COMMIT raises TransactionAborted.

        Args:
            connection: a Connection, an ORM Session or a scoped_session, not in AUTOCOMMIT mode.
            key: text of 1 to 512 bytes of UTF-8 without NUL, a whole number, a UUID, or a tuple of these.
            payload: bytes, text or a JSON value, such as a tuple of the fields that matter. A digest of it is
                kept, and the same key with another payload is a `MISMATCH`.
            message_time: when the message was made; a message older than the retention is `TOO_OLD`. Not with
                `key_time`.
            bind_arguments: for a Session with several binds, the arguments for its `get_bind`, as for
                `Session.execute`; None selects the bind that the session uses for the inbox's table. If the
                session writes to another database as well, its commit raises `UnusableConnection` before
                anything is committed, unless the session has `twophase=True`.

        Raises:
            InvalidKey: the key breaks the rules; with `key_time`, it has another form, or its time is more
                than a day ahead of the database's clock. Nothing was written.
            InvalidOption: `payload` or `message_time` cannot be used.
            UnusableConnection: closed, or AUTOCOMMIT.
            UnsupportedDatabase: not PostgreSQL, MySQL, MariaDB or SQLite.
            TablesMissing: the tables do not exist.
            PolicyConflict: the consumer's stored policy differs; nothing was taken.
        """
        attempt = self._attempt(key, payload)
        given = self._on(connection, bind_arguments)
        return answer(given, attempt, self._terms, self._checked_time(message_time))[0]

    def take(
        self,
        connection: Handle,
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Taken:
        """In the caller's transaction on `connection`, take the message with this key, as `accept` does.

        You can set `Taken.result` of a new message: it is written on `connection` immediately, and stored if
        and only if the caller commits. A duplicate has the stored result. Arguments and errors are those of
        `accept`. Like `accept`, it answers with a verdict, and never commits, rolls back or aborts.
        """
        attempt = self._attempt(key, payload)
        given = connection() if isinstance(connection, scoped_session) else connection
        session = given if isinstance(given, Session) else None
        connection = self._on(given, bind_arguments)
        return take(connection, attempt, self._terms, self._checked_time(message_time), session=session)

    def accept_many(
        self,
        connection: Handle,
        keys: Sequence[Key],
        payloads: Sequence[Any] | None = None,
        *,
        message_times: Sequence[datetime | None] | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> list[Verdict]:
        """In the caller's transaction on `connection`, take all messages with these keys in one statement;
        verdict i belongs to key i.

        Keys are inserted in byte order, so that batches which share keys cannot deadlock. A key repeated in
        the batch is `NEW` the first time and then `DUPLICATE`, or `MISMATCH` if its payload differs. `wait`
        limits each wait for another transaction; keys still in flight after it are `IN_FLIGHT`, and the
        others have their verdicts. Raises as `accept` does.

        Args:
            connection: as for `accept`.
            keys: any number of keys.
            payloads: payload i belongs to key i; None means that there are none.
            message_times: time i belongs to key i.
            bind_arguments: as for `accept`.
        """
        messages = self._messages(keys, payloads, message_times)
        given = self._on(connection, bind_arguments)
        return answer_many(given, self.tables, self.consumer, messages, self._terms)

    @overload
    def transaction(
        self,
        source: EngineSource,
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> AbstractContextManager[Work[Connection, None]]: ...
    @overload
    def transaction(
        self,
        source: SessionSource[S],
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> AbstractContextManager[Work[Connection, S]]: ...
    @overload
    def transaction(
        self,
        source: Source,
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> AbstractContextManager[Work[Connection, Any]]: ...
    @contextmanager
    def transaction(
        self,
        source: Source,
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Iterator[Work[Connection, Any]]:
        """Begin a transaction, take the message, run the block, commit: all of it or nothing.

        The block runs for a new message and for a duplicate; look at `work.is_new`. When it ends normally,
        acknowledge the message. An exception rolls back and propagates unchanged, unless the block had
        already committed. If the connection breaks during COMMIT, the database is asked whether it committed;
        if so, the block ends normally.

        Args:
            source: an Engine (use `work.connection`); a sessionmaker or a scoped_session (use also
                `work.session`); or a function without arguments that returns one of these: it is called for
                each message, so the source can be made later. A scoped_session must not be in a transaction.
            key: as for `accept`.
            payload: as for `accept`.
            message_time: as for `accept`.
            bind_arguments: as for `accept`.

        Raises:
            NotTaken: `MessageInFlight`, `PayloadMismatch` or `MessageTooOld`; the block does not run. With
                `on_refusal="return"` the block runs, and `work.verdict` has the verdict.
            TransactionAborted: the block swallowed a database error, or used the connection for a message
                that is not new, without looking at `work`; nothing was written.
            TransactionEnded: the block committed or rolled back the transaction. Its writes may be committed,
                and the message taken: do not have it redelivered.
            UnusableConnection: the session has written to two databases; nothing was committed on either.
            CommitLost: the connection broke during COMMIT, and nothing was written.
            InvalidResult: `work.result` is not JSON.
        """
        transaction = self._begin(key, payload, message_time, bind_arguments)
        try:
            with open_source(source, SYNC) as handle:
                try:
                    transaction.begin(handle)
                    self._check_taken(transaction)
                    session = handle if isinstance(handle, Session) else None
                    yield Work(transaction, transaction.connection, session)
                    transaction.commit()
                except BaseException as error:
                    transaction.roll_back(handle, error)
                    raise
        except BaseException as error:
            leaves_transaction(error, transaction.part)
            raise
        finally:
            if self.hooks:
                transaction.tell(self.hooks)

    @overload
    def handler(
        self,
        source: EngineSource,
        *,
        key: Callable[[Any], Key],
        payload: Callable[[Any], Any] | None = None,
        message_time: Callable[[Any], datetime] | None = None,
        bind_arguments: BindArguments | None = None,
        attempts: int = ATTEMPTS,
    ) -> HandlerDecorator[Connection]: ...
    @overload
    def handler(
        self,
        source: SessionSource[S],
        *,
        key: Callable[[Any], Key],
        payload: Callable[[Any], Any] | None = None,
        message_time: Callable[[Any], datetime] | None = None,
        bind_arguments: BindArguments | None = None,
        attempts: int = ATTEMPTS,
    ) -> HandlerDecorator[S]: ...
    @overload
    def handler(
        self,
        source: Source,
        *,
        key: Callable[[Any], Key],
        payload: Callable[[Any], Any] | None = None,
        message_time: Callable[[Any], datetime] | None = None,
        bind_arguments: BindArguments | None = None,
        attempts: int = ATTEMPTS,
    ) -> HandlerDecorator[Any]: ...
    def handler(
        self,
        source: Source,
        *,
        key: Callable[[Any], Key],
        payload: Callable[[Any], Any] | None = None,
        message_time: Callable[[Any], datetime] | None = None,
        bind_arguments: BindArguments | None = None,
        attempts: int = ATTEMPTS,
    ) -> HandlerDecorator[Any]:
        """Decorate `body(connection, message)`: it runs once per key, in `transaction`.

        With a sessionmaker or a scoped_session the body gets the Session instead. The body's return value
        (JSON) is stored with the row and is the `Outcome.result` of every duplicate. When the decorated
        function returns, acknowledge the message; it raises what `transaction` raises. Transient errors are
        retried in a new transaction, at most `attempts` attempts in all; the last error is raised.
        `MessageInFlight` is not retried here, because this call has waited for the other transaction already.

        Args:
            source: as for `transaction`; an invalid source is refused immediately.
            key: a function of the message.
            payload: a function of the message.
            message_time: a function of the message.
            bind_arguments: as for `accept`.
            attempts: how often one message is tried.
        """
        options.count("attempts", attempts)
        check_source(source, SYNC)

        def decorate(body: Callable[[Any, M], JsonResult]) -> Callable[[M], Outcome]:
            @functools.wraps(body)
            def handle_message(message: M) -> Outcome:
                try:
                    # Once, whatever the options: a function may take from the message, or read a stream.
                    its_key, its_payload = key(message), payload and payload(message)
                    its_time = message_time and message_time(message)
                    unfinished: set[bytes] = set()

                    def once() -> Outcome:
                        if (known := self._remembered(source, its_key, its_payload)) is not None:
                            return known
                        with self.transaction(
                            source, its_key, its_payload, message_time=its_time, bind_arguments=bind_arguments
                        ) as work:
                            if begins_body(work, unfinished):
                                work.result = body(handle_of(work), message)
                                unfinished.clear()
                        return Outcome(work.verdict, work.result)

                    return retry(
                        once, attempts, lambda error, attempt: self._decide_retry(error, attempt, its_key)
                    )
                except Exception as error:
                    self._fail_unkeyed(error, source, bind_arguments)
                    raise

            looks = looking_at(source, self.tables.message, bind_arguments)
            handle_message.prepare = looks  # type: ignore[attr-defined]
            handle_message.counts = self._counting(source, bind_arguments)  # type: ignore[attr-defined]
            return handle_message

        return decorate

    def purge(
        self,
        engine: Engine,
        *,
        oldest_unconsumed: datetime | None = None,
        dead_retention: float | timedelta | None = None,
        override: bool = False,
        dry_run: bool = False,
        batch: int = 500,
        budget: float | timedelta | None = None,
        progress: Callable[[Purged], object] | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> Purged:
        """Delete this consumer's rows that are older than its retention; options as for `inbox.purge`."""
        return purge(
            engine,
            consumer=self.consumer,
            retention=self._policy.asked,
            schema=self.schema,
            oldest_unconsumed=oldest_unconsumed,
            dead_retention=dead_retention,
            override=override,
            dry_run=dry_run,
            batch=batch,
            budget=budget,
            progress=progress,
            sleep=sleep,
        )

    def _on(self, given: Handle, bind_arguments: BindArguments | None) -> Connection:
        """The connection that writes the inbox row."""
        if isinstance(given, Connection):
            if bind_arguments is not None:
                check_no_session(bind_arguments)
            failed_commit.watch(given)
            return given
        if isinstance(given, scoped_session):
            given = given()
        if isinstance(given, Session):
            with AFTER_BODY:
                return connection_of(given, bind_of(given, self.tables.message, bind_arguments))
        raise InvalidOption(
            f"connection={type(given).__name__}: expected a Connection, a Session or a scoped_session; "
            "with an Engine use transaction(), with asynchronous connections AsyncInbox"
        )
