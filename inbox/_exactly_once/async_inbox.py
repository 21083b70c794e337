"""The inbox for asynchronous code: the same core, run inside SQLAlchemy's `run_sync`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from inbox._listening.async_listener import AsyncListener
from inbox._listening.counting import leaves_transaction
from inbox._listening.json_types import JsonResult
from inbox._listening.listener_factory import Listens
from inbox._listening.outcome import Outcome
from inbox._operating.purge import Purged, purge
from inbox_outbox_base.calls.async_calls import run
from inbox_outbox_base.calls.retry import retry_async
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.keys import Key
from inbox_outbox_base.errors.blame import AFTER_BODY, OWN
from inbox_outbox_base.errors.inbox import InvalidOption, NotAwaited
from inbox_outbox_base.transactions import failed_commit, unwritten
from inbox_outbox_base.transactions.connect import reaching
from inbox_outbox_base.transactions.durability import looking_at
from inbox_outbox_base.transactions.owed import Owed
from inbox_outbox_base.transactions.savepoints import innermost
from inbox_outbox_base.transactions.session import BindArguments, bind_of, check_no_session, connection_of
from inbox_outbox_base.transactions.sources import async_kinds, check_source, open_source
from inbox_outbox_base.words.incoming import Verdict

from .answering import answer, answer_many
from .base import ATTEMPTS, Consumer
from .decorators import AsyncHandlerDecorator
from .taken import Taken, take
from .transaction import Transaction
from .work import Work, begins_body, handle_of

if TYPE_CHECKING:  # at run time imported at first use, because the import needs greenlet
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

    from inbox_outbox_base.transactions.sources import (
        AS,
        AsyncEngineSource,
        AsyncSessionSource,
        AsyncSource,
    )

    AsyncHandle = AsyncConnection | AsyncSession | async_scoped_session[Any]

M = TypeVar("M")
T = TypeVar("T")


class AsyncInbox(Consumer, Listens[AsyncListener]):
    """`Inbox` with awaited methods: effects inside the caller's transaction take effect exactly once
    per business key, for as long as the inbox row is kept.

    Arguments, guarantees and errors are those of `Inbox`. Needs the extra `asyncio`.
    """

    _listener = AsyncListener
    _is_async = True

    def accept(
        self,
        connection: AsyncHandle,
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Coroutine[Any, Any, Verdict]:
        """In the caller's transaction on `connection`, take the message with this key."""
        attempt, time = self._attempt(key, payload), self._checked_time(message_time)

        def work(given: Connection) -> Verdict:
            return answer(given, attempt, self._terms, time)[0]

        return self._on(connection, bind_arguments, f"accept of {attempt.key!r}", work)

    def take(
        self,
        connection: AsyncHandle,
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Coroutine[Any, Any, Taken]:
        """In the caller's transaction on `connection`, take the message with this key.

        As `Inbox.take`, but the result is written right before the COMMIT. If this write fails, the
        transaction is rolled back and the commit raises the error. A COMMIT as SQL text stores no result.
        """
        attempt, time = self._attempt(key, payload), self._checked_time(message_time)
        from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

        given = connection() if isinstance(connection, async_scoped_session) else connection
        session = given.sync_session if isinstance(given, AsyncSession) else None

        def work(on: Connection) -> Taken:
            return take(on, attempt, self._terms, time, session=session, at_commit=True)

        return self._on(given, bind_arguments, f"take of {attempt.key!r}", work)

    def accept_many(
        self,
        connection: AsyncHandle,
        keys: Sequence[Key],
        payloads: Sequence[Any] | None = None,
        *,
        message_times: Sequence[datetime | None] | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Coroutine[Any, Any, list[Verdict]]:
        """In the caller's transaction on `connection`, take all messages with these keys."""
        messages = self._messages(keys, payloads, message_times)

        def work(given: Connection) -> list[Verdict]:
            return answer_many(given, self.tables, self.consumer, messages, self._terms)

        return self._on(connection, bind_arguments, f"accept_many of {len(messages.keys):,} keys", work)

    @overload
    def transaction(
        self,
        source: AsyncEngineSource,
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> AbstractAsyncContextManager[Work[AsyncConnection, None]]: ...
    @overload
    def transaction(
        self,
        source: AsyncSessionSource[AS],
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> AbstractAsyncContextManager[Work[AsyncConnection, AS]]: ...
    @overload
    def transaction(
        self,
        source: AsyncSource,
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> AbstractAsyncContextManager[Work[AsyncConnection, Any]]: ...
    @asynccontextmanager
    async def transaction(
        self,
        source: AsyncSource,
        key: Key,
        payload: Any = None,
        *,
        message_time: datetime | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> AsyncIterator[Work[AsyncConnection, Any]]:
        """Begin a transaction, take the message, run the block, commit: all of it or nothing."""
        from sqlalchemy.ext.asyncio import AsyncSession

        transaction = self._begin(key, payload, message_time, bind_arguments, _sleep)
        try:
            async with AsyncExitStack() as stack:
                handle: AsyncConnection | AsyncSession
                opened = open_source(source, async_kinds())
                with OWN, reaching():
                    handle = await stack.enter_async_context(opened)
                try:
                    await handle.run_sync(transaction.begin)
                    self._check_taken(transaction)
                    session = handle if isinstance(handle, AsyncSession) else None
                    yield Work(transaction, await _connection(handle, transaction), session)
                    await handle.run_sync(lambda _: transaction.commit())
                except BaseException as error:
                    await handle.run_sync(transaction.roll_back, error)
                    raise
        except BaseException as error:
            leaves_transaction(error, transaction.part)
            raise
        finally:
            transaction.leave()
            if self.hooks:
                transaction.tell(self.hooks)

    @overload
    def handler(
        self,
        source: AsyncEngineSource,
        *,
        key: Callable[[Any], Key],
        payload: Callable[[Any], Any] | None = None,
        message_time: Callable[[Any], datetime] | None = None,
        bind_arguments: BindArguments | None = None,
        attempts: int = ATTEMPTS,
    ) -> AsyncHandlerDecorator[AsyncConnection]: ...
    @overload
    def handler(
        self,
        source: AsyncSessionSource[AS],
        *,
        key: Callable[[Any], Key],
        payload: Callable[[Any], Any] | None = None,
        message_time: Callable[[Any], datetime] | None = None,
        bind_arguments: BindArguments | None = None,
        attempts: int = ATTEMPTS,
    ) -> AsyncHandlerDecorator[AS]: ...
    @overload
    def handler(
        self,
        source: AsyncSource,
        *,
        key: Callable[[Any], Key],
        payload: Callable[[Any], Any] | None = None,
        message_time: Callable[[Any], datetime] | None = None,
        bind_arguments: BindArguments | None = None,
        attempts: int = ATTEMPTS,
    ) -> AsyncHandlerDecorator[Any]: ...
    def handler(
        self,
        source: AsyncSource,
        *,
        key: Callable[[Any], Key],
        payload: Callable[[Any], Any] | None = None,
        message_time: Callable[[Any], datetime] | None = None,
        bind_arguments: BindArguments | None = None,
        attempts: int = ATTEMPTS,
    ) -> AsyncHandlerDecorator[Any]:
        """Decorate `async body(connection, message)`: it runs once per key, in `transaction`."""
        options.count("attempts", attempts)
        check_source(source, async_kinds())

        def decorate(
            body: Callable[[Any, M], Awaitable[JsonResult]],
        ) -> Callable[[M], Coroutine[Any, Any, Outcome]]:
            @functools.wraps(body)
            async def handle_message(message: M) -> Outcome:
                try:
                    # Once, whatever the options: a function may take from the message, or read a stream.
                    its_key, its_payload = key(message), payload and payload(message)
                    its_time = message_time and message_time(message)
                    unfinished: set[bytes] = set()

                    async def once() -> Outcome:
                        if (known := self._remembered(source, its_key, its_payload)) is not None:
                            return known
                        async with self.transaction(
                            source, its_key, its_payload, message_time=its_time, bind_arguments=bind_arguments
                        ) as work:
                            if begins_body(work, unfinished):
                                work.result = await body(handle_of(work), message)
                                unfinished.clear()
                        return Outcome(work.verdict, work.result)

                    return await retry_async(
                        once,
                        attempts,
                        lambda error, attempt: self._decide_retry(error, attempt, its_key),
                        sleep=asyncio.sleep,
                    )
                except Exception as error:
                    self._fail_unkeyed(error, source, bind_arguments)
                    raise

            looks = looking_at(source, self.tables.message, bind_arguments)
            handle_message.prepare = looks  # type: ignore[attr-defined]
            handle_message.counts = self._counting(source, bind_arguments)  # type: ignore[attr-defined]
            return handle_message

        return decorate

    async def purge(
        self,
        engine: AsyncEngine,
        *,
        oldest_unconsumed: datetime | None = None,
        dead_retention: float | timedelta | None = None,
        override: bool = False,
        dry_run: bool = False,
        batch: int = 500,
        budget: float | timedelta | None = None,
        progress: Callable[[Purged], object] | None = None,
    ) -> Purged:
        """Delete this consumer's rows that are older than its retention; options as for `inbox.purge`."""
        return await run(
            purge,
            engine.sync_engine,
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
            sleep=_sleep,
        )

    def _on(
        self,
        given: AsyncHandle,
        bind_arguments: BindArguments | None,
        what: str,
        work: Callable[[Connection], T],
    ) -> Coroutine[Any, Any, T]:
        """Call `work` with the connection that writes the inbox row. Until the caller awaits this, nothing is
        committed there."""
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

        def on_session(session: Session) -> T:
            with AFTER_BODY:
                connection = connection_of(session, bind_of(session, self.tables.message, bind_arguments))
            return work(connection)

        def on_connection(connection: Connection) -> T:
            failed_commit.watch(connection)
            return work(connection)

        run: Callable[[], Awaitable[T]]
        if isinstance(given, async_scoped_session):
            given = given()
        if isinstance(given, AsyncSession):
            owed = [unwritten.owe_in(given.sync_session, Owed(what, NotAwaited))]
            connection, run = given.sync_session.bind, partial(given.run_sync, on_session)
        elif isinstance(given, AsyncConnection):
            check_no_session(bind_arguments)
            owed, connection, run = [], given.sync_connection, partial(given.run_sync, on_connection)
        else:
            raise InvalidOption(
                f"connection={type(given).__name__}: expected an AsyncConnection, an AsyncSession or "
                "an async_scoped_session"
            )
        if isinstance(connection, Connection):
            on_it = Owed(what, NotAwaited, savepoint=innermost(connection))
            owed.append(unwritten.owe(connection, on_it))

        async def call() -> T:
            for pay in owed:
                pay()
            with reaching():
                return await run()

        return call()


async def _connection(handle: AsyncConnection | AsyncSession, transaction: Transaction) -> AsyncConnection:
    """The connection that the transaction is on."""
    from sqlalchemy.ext.asyncio import AsyncSession

    if isinstance(handle, AsyncSession):
        return await handle.connection(bind_arguments={"bind": transaction.bind})
    return handle


def _sleep(seconds: float) -> None:
    from sqlalchemy.util import await_only

    await_only(asyncio.sleep(seconds))
