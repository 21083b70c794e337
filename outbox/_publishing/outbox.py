"""The outbox: messages written in the caller's transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.errors import inbox as inbox_errors
from inbox_outbox_base.errors.outbox import InvalidOption, UnusableConnection, WrongBucketCount
from inbox_outbox_base.transactions import failed_commit
from inbox_outbox_base.transactions.joining import usable
from inbox_outbox_base.transactions.session import bind_of, connection_of
from inbox_outbox_base.words.outgoing import Draft, Message
from outbox._waking.wake import mark
from outbox.schema import tables

from .buckets import bucket_count, bucket_of
from .drafts import Drafts
from .missing import raise_clearer
from .serializer import Serializer
from .staging import stage

if TYPE_CHECKING:  # at run time only once it is used: without greenlet the import fails
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

LARGEST_PAYLOAD = 1_000_000
"""Bytes in a payload, at most, unless another limit is given: what Kafka takes by default."""


class Outbox:
    """Writes messages in the caller's transaction: they leave if and only if it commits.

    Args:
        schema: the PostgreSQL schema of the tables; None is the connection's own.
        serializer: a function of a payload that returns its bytes and their content type; None keeps bytes,
            writes text as UTF-8 and everything else as JSON.
        largest_payload: bytes in a payload, at most.
        trace: whether messages carry the trace context of the span that is current, where OpenTelemetry is
            installed: by default W3C `traceparent`, `tracestate` and `baggage`.
        cloudevents: the `source` of CloudEvents, a URI reference such as "/shop"; with it, messages carry the
            attributes of CloudEvents 1.0 as headers (`ce_id`, `ce_type`, ...), which publishers name as their
            broker's binding does. None: they do not.
        event_type: the `type` of these events, unless a message has its own; None is the topic.
        event_mode: "binary", or "structured": then the attributes are not headers, but stand in the payload,
            which becomes `application/cloudevents+json` with the message's own payload as its data.
        wake: whether a commit wakes the relays: those of this process, and on PostgreSQL all others, by a
            NOTIFY from a connection of its own.
        buckets: how many buckets the database has to have; None takes it as it is.

    Raises:
        InvalidOption: an argument cannot be used.
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
    ) -> None:
        self.schema = schema
        self.tables = tables(schema)
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
    ) -> Awaitable[str]: ...
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
        id: str | None = None,  # noqa: A002 - what it is called everywhere
        event_type: str | None = None,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """In the caller's transaction on `connection`, write a message: it leaves if and only if that
        commits.

        Never commits or rolls back. On a Connection the row is written at once; on an ORM Session when that
        commits, after the flush. A savepoint that is rolled back takes its messages with it.

        Args:
            connection: a Connection, an ORM Session or a `scoped_session`, not in AUTOCOMMIT mode; await the
                result for an AsyncConnection, an AsyncSession or an `async_scoped_session`.
            topic: where to: 1 to 249 bytes of UTF-8.
            payload: bytes, text, or what JSON can hold, dataclasses and pydantic models included. None is a
                tombstone, for brokers that have them (Kafka), and needs a key.
            key: messages of one key leave in the order in which they were published, those of transactions
                that overlap only if these change a common row first; by default it is the consumer's business
                key. 1 to 512 bytes of UTF-8; None: no order is kept.
            headers: text by name.
            delay: seconds or `timedelta` before it may leave. Its place behind others of its key is that of
            then. available_at: the same as a point in time, with its time zone. content_type: what the
            payload is, if not what the serializer says.
            id: a message id of your own, 1 to 128 printable ASCII characters. As long as the outbox knows it,
                another message with this id adds nothing: while the first one waits, is delayed or is dead,
                and then for the relay's `keep_sent`. None: a new one is drawn.
            event_type: the `type` of this CloudEvent, if the outbox has `cloudevents`.
            bind_arguments: for a Session with several binds, what its `get_bind` is asked; None asks for the
                bind of the outbox's table.

        Returns:
            The message's id, which every send repeats: the given one also if nothing was added.

        Raises:
            InvalidMessage: an argument breaks a limit, or cannot be stored.
            InvalidOption: the outbox has a schema, and this is not PostgreSQL.
            UnusableConnection: closed, or AUTOCOMMIT. Also from the Session's COMMIT, before anything is
                committed: it has written to another database, too, and is not `twophase=True`.
            UnsupportedDatabase: not PostgreSQL, MySQL, MariaDB or SQLite.
            WrongBucketCount: the database has another number of buckets.
            TablesMissing: the tables have not been made.
        """
        message = Message(
            topic, payload, key, headers or {}, delay, available_at, content_type, id, event_type
        )
        [draft] = self._drafts.of([message])
        written = self._hand_over(connection, [draft], bind_arguments)
        return _after(written, draft.row["id"])

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
    ) -> Awaitable[list[str]]: ...
    def publish_many(
        self,
        connection: Any,
        messages: Iterable[Message],
        *,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """In the caller's transaction on `connection`, write many messages at once, in their order.

        Returns:
            Their ids; id i belongs to message i.

        Raises: as `publish`, before anything is written.
        """
        drafts = self._drafts.of(messages)
        written = self._hand_over(connection, drafts, bind_arguments)
        return _after(written, [draft.row["id"] for draft in drafts])

    def _hand_over(
        self, connection: Any, drafts: list[Draft], bind_arguments: Mapping[str, Any] | None
    ) -> Awaitable[None] | None:
        if isinstance(connection, scoped_session):
            connection = connection()
        if isinstance(connection, Session):
            self._stage(connection, drafts, bind_arguments)
            return None
        if isinstance(connection, Connection):
            _check_unbound(bind_arguments)
            self._write(connection, drafts)
            return None
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

        if isinstance(connection, async_scoped_session):
            connection = connection()
        if isinstance(connection, AsyncSession):
            return connection.run_sync(self._stage, drafts, bind_arguments)
        if isinstance(connection, AsyncConnection):
            _check_unbound(bind_arguments)
            return connection.run_sync(self._write, drafts)
        raise InvalidOption(
            f"connection={type(connection).__name__}: expected a Connection or a Session, asynchronous or not"
        )

    def _stage(self, session: Session, drafts: list[Draft], bind_arguments: Mapping[str, Any] | None) -> None:
        with _OUR_ERRORS:
            bind = bind_of(session, self.tables.message, bind_arguments)
        connection = connection_of(session, bind, UnusableConnection)
        if isinstance(bind, Engine):
            self._prepare(connection, drafts)
            stage(connection, drafts, self._insert)
            self._mark(connection, drafts)
            return
        # Whoever owns the connection may commit it without asking the session.
        if not session._flushing:  # noqa: SLF001 - a listener to a flush may publish
            session.flush()
        self._write(connection, drafts)

    def _write(self, connection: Connection, drafts: list[Draft]) -> None:
        if drafts:
            self._prepare(connection, drafts)
            with _OUR_ERRORS:
                relaying(connection.dialect.name).check_savepoint(connection)
            failed_commit.watch(connection)
            self._insert(connection, drafts)
            self._mark(connection, drafts)

    def _prepare(self, connection: Connection, drafts: list[Draft]) -> None:
        """Refuse a connection without a transaction to join, and choose the buckets."""
        with _OUR_ERRORS:
            usable(connection)
        relaying(connection.dialect.name, self.schema)
        buckets = bucket_count(connection, self.tables)
        if self._buckets not in (None, buckets):
            raise WrongBucketCount(f"buckets={self._buckets}: the database has {buckets}")
        for draft in drafts:
            draft.row["bucket"] = bucket_of(draft.row["key"] or draft.row["id"], buckets)

    def _insert(self, connection: Connection, drafts: list[Draft]) -> None:
        """Write rows; the database numbers them in this order."""
        try:
            if any(draft.has_own_id for draft in drafts):
                drafts = self._new(connection, drafts)
            at_once = [draft.row for draft in drafts if draft.due is None]
            if at_once:
                relaying(connection.dialect.name).add(connection, self.tables, at_once)
            if len(at_once) < len(drafts):
                self._insert_delayed(connection, drafts)
        except DBAPIError as error:
            raise_clearer(connection, self.tables, error)

    def _insert_delayed(self, connection: Connection, drafts: list[Draft]) -> None:
        for from_clock in (False, True):
            later = [
                draft.row | {"due": draft.due}
                for draft in drafts
                if draft.due is not None and isinstance(draft.due, float) is from_clock
            ]
            if later:
                names = relaying_statements.columns(later)
                statement = relaying_statements.add_delayed(self.tables, names, from_clock=from_clock)
                connection.execute(statement, later)

    def _new(self, connection: Connection, drafts: list[Draft]) -> list[Draft]:
        """Without those whose own ids are in use already; the first of an id counts."""
        ids = sorted({draft.row["id"] for draft in drafts if draft.has_own_id})
        unused = relaying(connection.dialect.name).take_ids(connection, self.tables, ids)
        new: list[Draft] = []
        for draft in drafts:
            if not draft.has_own_id or draft.row["id"] in unused:
                unused.discard(draft.row["id"])
                new.append(draft)
        return new

    def _mark(self, connection: Connection, drafts: list[Draft]) -> None:
        if self._wakes and any(draft.due is None for draft in drafts):
            mark(connection, self.schema)


def _check_unbound(bind_arguments: Mapping[str, Any] | None) -> None:
    if bind_arguments is not None:
        raise InvalidOption(f"bind_arguments={bind_arguments!r:.80}: expected None, for this is no Session")


class _OurErrors:
    """Around what the inbox does for us: its errors leave the block as this package's."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, inbox_errors.UnusableConnection):
            raise UnusableConnection(str(error).replace("inbox", "outbox")) from None
        if isinstance(error, inbox_errors.InvalidOption):
            raise InvalidOption(str(error)) from None


_OUR_ERRORS = _OurErrors()


def _after(written: Awaitable[None] | None, result: Any) -> Any:
    """The result, once it is written."""
    if written is None:
        return result

    async def wait() -> Any:
        await written
        return result

    return wait()
