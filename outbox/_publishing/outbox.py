"""The outbox: messages written in the caller's transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.databases.relaying import Relaying
from inbox_outbox_base.errors.outbox import (
    InvalidOption,
    NotAwaited,
    TransactionEnded,
    UnusableConnection,
    WrongBucketCount,
)
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.transactions import failed_commit, unwritten
from inbox_outbox_base.transactions.joining import database_to_join
from inbox_outbox_base.transactions.owed import Owed
from inbox_outbox_base.transactions.savepoints import innermost
from inbox_outbox_base.transactions.session import bind_of, check_no_session, connection_of
from inbox_outbox_base.words.outgoing import Draft, Message
from outbox._waking.after_commit import mark
from outbox._waking.hints import word
from outbox.schema import tables

from .buckets import known_newest
from .drafts import Drafts
from .pending import Pending
from .repeats import Repeats
from .rows import Rows
from .serializer import Serializer
from .staging import named, stage

if TYPE_CHECKING:  # imported at run time only where it is used: without greenlet the import fails
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session


Writing = Callable[[], Awaitable[None]]
"""What an asynchronous caller awaits."""

LARGEST_PAYLOAD = 1_000_000
"""The default limit on a payload, in bytes: Kafka's default."""


class Outbox:
    """Writes messages in the caller's transaction: they are sent if and only if it commits.

    Args:
        schema: the PostgreSQL schema of the tables; None is the connection's default.
        serializer: a function that returns a payload's bytes and their content type; None keeps bytes, writes
            text as UTF-8 and everything else as JSON.
        largest_payload: the largest payload, in bytes.
        trace: whether messages carry the trace context of the current span, if OpenTelemetry is installed: by
            default W3C `traceparent`, `tracestate` and `baggage`.
        cloudevents: the `source` of CloudEvents, a URI reference such as "/shop". Messages then carry the
            attributes of CloudEvents 1.0 as headers (`ce_id`, `ce_type`, ...), which publishers rename as
            their broker's binding requires. None: they do not.
        event_type: the `type` of these events, unless a message has its own; None is the topic.
        event_mode: "binary", or "structured": then the attributes are in the payload instead of headers, and
            the payload becomes `application/cloudevents+json` with the message's own payload as its data.
        wake: whether a commit wakes the relays: those of this process, and on PostgreSQL all others, with a
            NOTIFY from a separate connection.
        buckets: how many buckets the database must have for new messages; None accepts any number, and an
            operator may change it at any time.
        on_repeat: what happens when a message is published with an id that the outbox knows. "ignore" adds
            nothing; "raise" raises `AlreadyPublished` when the row would be written.
        on_event: a function, or several, called with an `Event` (`REPEATED`) for each message that was not
            added, whether or not its transaction commits. They are called after it has ended: when its
            connection returns to the pool or begins its next transaction.

    Raises:
        InvalidOption: an argument is invalid.
    """

    def __init__(
        self,
        *,
        schema: str | None = None,
        serializer: Serializer | None = None,
        largest_payload: int = LARGEST_PAYLOAD,
        trace: bool = True,
        cloudevents: str | None = None,
        event_type: str | None = None,
        event_mode: Literal["binary", "structured"] = "binary",
        wake: bool = True,
        buckets: int | None = None,
        on_repeat: Literal["ignore", "raise"] = "ignore",
        on_event: Hook | Iterable[Hook] | None = None,
    ) -> None:
        self.schema = schema
        self.tables = tables(schema)
        self._rows = Rows(self.tables)
        self._repeats = Repeats(on_repeat, on_event)
        self._drafts = Drafts(
            serializer=serializer,
            largest_payload=largest_payload,
            trace=trace,
            cloudevents=cloudevents,
            event_type=event_type,
            event_mode=event_mode,
        )
        self._wakes = outbox_options.flag("wake", wake)
        self._buckets = None if buckets is None else outbox_options.count("buckets", buckets)

    @overload
    def publish(
        self,
        connection: Connection | Session | scoped_session[Any],
        topic: str,
        payload: Any,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        available_at: datetime | None = None,
        content_type: str | None = None,
        *,
        id: str | None = None,
        event_type: str | None = None,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> str: ...
    @overload
    def publish(
        self,
        connection: AsyncConnection | AsyncSession | async_scoped_session[Any],
        topic: str,
        payload: Any,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        available_at: datetime | None = None,
        content_type: str | None = None,
        *,
        id: str | None = None,
        event_type: str | None = None,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> Coroutine[Any, Any, str]: ...
    def publish(
        self,
        connection: Any,
        topic: str,
        payload: Any,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        available_at: datetime | None = None,
        content_type: str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - its name everywhere else
        event_type: str | None = None,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """Write a message in the caller's transaction on `connection`: it is sent if and only if that
        commits.

        Never commits or rolls back. On a Connection the row is written immediately; on an ORM Session when it
        commits, after the flush. Rolling back a savepoint removes the messages published in it.

        With an asynchronous handle, this is a coroutine: await it. If nobody does, a message on an
        AsyncSession is written all the same, and an AsyncConnection raises `NotAwaited` at its COMMIT.

        Args:
            connection: a Connection, an ORM Session or a `scoped_session`, not in AUTOCOMMIT mode; await the
                result for an AsyncConnection, an AsyncSession or an `async_scoped_session`.
            topic: the destination: 1 to 249 bytes of UTF-8.
            payload: bytes, text, or a value that JSON can hold, including dataclasses and pydantic models.
                None is a tombstone, for brokers that have them (Kafka), and needs a key.
            key: messages of one key are sent in the order in which they were published; overlapping
                transactions must change a common row first for that. By default it is also the consumer's
                business key. 1 to 512 bytes of UTF-8; None: no order is kept.
            headers: text by name.
            delay: seconds or `timedelta` before it can be sent. It takes its place among the messages of its
                key when the delay ends.
            available_at: the same as a point in time, with its time zone.
            content_type: the payload's type, if not the one the serializer returns.
            id: your own message id, 1 to 128 printable ASCII characters. Publishing it again adds nothing
                while the outbox knows it: as long as the first message waits, is delayed or is dead, and
                after it was sent for the relay's `keep_sent`. None: a new id is drawn.
            event_type: the `type` of this CloudEvent, if the outbox has `cloudevents`.
            bind_arguments: for a Session with several binds, the arguments for its `get_bind`; None: the bind
                of the outbox's table.

        Returns:
            The message's id, which every send repeats; your own id even if nothing was added.

        Raises:
            InvalidMessage: an argument exceeds a limit or cannot be stored.
            InvalidOption: the outbox has a schema, and this is not PostgreSQL.
            UnusableConnection: closed, or AUTOCOMMIT. If the Session has also written to another database and
                is not `twophase=True`, its COMMIT raises this, before anything is committed.
            UnsupportedDatabase: not PostgreSQL, MySQL, MariaDB or SQLite.
            WrongBucketCount: the database has another number of buckets.
            TablesMissing: the tables have not been created.
            AlreadyPublished: with `on_repeat="raise"`, the outbox knows the id. On a Session, its COMMIT
                raises this, and is rolled back.
            NotAwaited: raised by the COMMIT of an AsyncConnection, by its close at the latest; on an
                AsyncSession only by a COMMIT as SQL text.
            TransactionEnded: raised by a Session's next statement, COMMIT, rollback or close, if
                something else has ended its transaction: the message is not written.
            UnsafeDatabase: a table cannot keep a promise; `outbox.check` tells more.
        """
        draft = self._drafts.one(
            topic, payload, key, headers or {}, delay, available_at, content_type, id, event_type
        )
        writing = self._hand_over(connection, [draft], bind_arguments)
        return _after(writing, draft.row["id"])

    @overload
    def publish_many(
        self,
        connection: Connection | Session | scoped_session[Any],
        messages: Iterable[Message],
        *,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> list[str]: ...
    @overload
    def publish_many(
        self,
        connection: AsyncConnection | AsyncSession | async_scoped_session[Any],
        messages: Iterable[Message],
        *,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> Coroutine[Any, Any, list[str]]: ...
    def publish_many(
        self,
        connection: Any,
        messages: Iterable[Message],
        *,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """Write many messages in the caller's transaction on `connection`, in their order.

        Returns:
            Their ids; id i belongs to message i.

        Raises the errors of `publish`, before anything is written; but `AlreadyPublished` when all messages
        whose ids are new have been written. It has all other ids.
        """
        drafts = self._drafts.of(messages)
        writing = self._hand_over(connection, drafts, bind_arguments)
        return _after(writing, [draft.row["id"] for draft in drafts])

    def _hand_over(
        self, connection: Any, drafts: list[Draft], bind_arguments: Mapping[str, Any] | None
    ) -> Writing | None:
        """Write or stage the messages; None if that is done, else what remains to be awaited."""
        if isinstance(connection, Connection):
            check_no_session(bind_arguments, InvalidOption)
            self._write(connection, drafts)
            return None
        if isinstance(connection, scoped_session):
            connection = connection()
        if isinstance(connection, Session):
            bind = bind_of(connection, self.tables.message, bind_arguments, InvalidOption)
            self._stage(connection, drafts, bind)
            return None
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

        if isinstance(connection, async_scoped_session):
            connection = connection()
        if isinstance(connection, AsyncSession):
            return self._staging(connection, drafts, bind_arguments)
        if isinstance(connection, AsyncConnection):
            check_no_session(bind_arguments, InvalidOption)
            run = partial(connection.run_sync, self._write, drafts)
            return _owing(connection.sync_connection, drafts, run)
        raise InvalidOption(
            f"connection={type(connection).__name__}: expected a Connection or a Session, asynchronous or not"
        )

    def _staging(
        self, handle: AsyncSession, drafts: list[Draft], bind_arguments: Mapping[str, Any] | None
    ) -> Writing:
        from sqlalchemy.util.concurrency import in_greenlet

        session = handle.sync_session
        bind = bind_of(session, self.tables.message, bind_arguments, InvalidOption)
        if in_greenlet():  # a listener to the session's events, which cannot await
            self._stage(session, drafts, bind)
            return _nothing
        if not isinstance(bind, Engine):
            return _owing(bind, drafts, partial(handle.run_sync, self._stage, drafts, bind))
        if not drafts:
            return partial(handle.run_sync, self._stage, drafts, bind)
        return partial(handle.run_sync, Pending(session, drafts, bind, self._stage_pending).awaited)

    def _stage_pending(self, each: Pending) -> None:
        connection = connection_of(each.session, each.bind, UnusableConnection)
        self._prepare(connection, each.drafts)
        stage(connection, each.drafts, self._write_staged, each.savepoint_on(connection))
        self._mark(connection, each.drafts)

    def _stage(self, session: Session, drafts: list[Draft], bind: Engine | Connection) -> None:
        unwritten.prepare(session)
        connection = connection_of(session, bind, UnusableConnection)
        if isinstance(bind, Engine):
            self._prepare(connection, drafts)
            stage(connection, drafts, self._write_staged)
            self._mark(connection, drafts)
            return
        # A session may be bound to a connection, whose owner may commit it without the session's knowledge.
        if not session._flushing:  # noqa: SLF001 - a listener to a flush may publish
            session.flush()
        self._write(connection, drafts)

    def _write(self, connection: Connection, drafts: list[Draft]) -> None:
        if drafts:
            self._prepare(connection, drafts).check_savepoint(connection)
            failed_commit.watch(connection)
            repeated = self._rows.insert(connection, drafts)
            self._mark(connection, drafts)
            self._repeats.note(connection, repeated)

    def _prepare(self, connection: Connection, drafts: list[Draft]) -> Relaying:
        """Reject a connection without a transaction to join, or unsafe tables, and choose the buckets."""
        database_to_join(connection, UnusableConnection, "outbox row")
        database = self._rows.database(connection)  # raises for a schema where there is none
        generation = known_newest(connection, self.tables)
        if self._buckets is not None and self._buckets != len(generation.buckets):
            raise WrongBucketCount(f"buckets={self._buckets}: the database has {len(generation.buckets)}")
        for draft in drafts:
            draft.row["bucket"] = generation.bucket_of(draft.row["key"] or draft.row["id"])
        return database

    def _write_staged(self, connection: Connection, drafts: list[Draft]) -> None:
        generation = known_newest(connection, self.tables)
        # The number of buckets may have changed since they were published.
        late = [draft for draft in drafts if draft.row["bucket"] not in generation.buckets]
        for draft in late:
            draft.row["bucket"] = generation.bucket_of(draft.row["key"] or draft.row["id"])
        repeated = self._rows.insert(connection, drafts)
        self._mark(connection, late)
        self._repeats.note(connection, repeated)

    def _mark(self, connection: Connection, drafts: list[Draft]) -> None:
        if self._wakes and drafts:
            words = [word(draft.row["bucket"], is_delayed=draft.due is not None) for draft in drafts]
            mark(connection, self.schema, words)


def _owing(connection: Connection | None, drafts: list[Draft], write: Writing) -> Writing:
    """The same write, without which the connection does not commit."""
    if connection is None or not drafts:  # it has not been started
        return write
    owed = Owed(named(drafts), NotAwaited, TransactionEnded, savepoint=innermost(connection))
    pay = unwritten.owe(connection, owed)

    async def paid() -> None:
        pay()
        await write()

    return paid


async def _nothing() -> None:
    """It is done."""


def _after(writing: Writing | None, result: Any) -> Any:
    """The result, after the write has ended."""
    if writing is None:
        return result

    async def publish() -> Any:
        await writing()
        return result

    return publish()
