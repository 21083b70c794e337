"""The object that a synchronous handler of status-table mode works with."""

from collections.abc import Callable
from typing import Any, overload

from sqlalchemy import Connection

from inbox._listening.json_types import J, JsonResult
from inbox_outbox_base.transactions.sources import EngineSource, S, SessionSource, Source

from .claim_base import ClaimBase, Undo
from .hold import OnUnknown
from .transact import opener, sql_store, transact


class Claim(ClaimBase):
    """One message in status-table mode. Run it if and only if `is_new`.

    Nothing that the handler does is rolled back; a `step` runs again only if it is not known to have
    finished.
    """

    __slots__ = ()

    def heartbeat(self) -> None:
        """Renew the lease immediately.

        Raises:
            LeaseLost: the claim is lost.
            StoreUnreachable: the store does not answer.
        """
        self._held.renew()

    @overload
    def step(
        self, name: str, body: Callable[[], J], *, undo: Undo | None = None, on_unknown: OnUnknown = "retry"
    ) -> J: ...
    @overload
    def step(
        self,
        name: str,
        body: Callable[[], JsonResult],
        *,
        undo: Undo | None = None,
        on_unknown: OnUnknown = "retry",
    ) -> Any: ...
    def step(
        self,
        name: str,
        body: Callable[[], JsonResult],
        *,
        undo: Undo | None = None,
        on_unknown: OnUnknown = "retry",
    ) -> Any:
        """Run a step; if an earlier attempt finished it, return its recorded result.

        A finished step is not called again as long as the record is kept. A step that began and has no
        recorded end (the process died, or the step raised) may or may not have happened. With "retry" it runs
        again, with the same idempotency key (`step_key`) to pass downstream; with "halt" the message halts.

        Args:
            name: 1 to 255 characters, unique in an attempt.
            body: returns a JSON value; every attempt gets it as JSON reads it back. So type checkers know the
                type of the step's result, too, if it is one of JSON's.
            undo: called with that value if the handler gives up for good, and called again if the end of the
                first call was not recorded.
            on_unknown: "retry" (one write per step) or "halt" (two).

        Raises:
            LeaseLost: somebody else has the message; nothing was recorded.
            InvalidResult: the value is not JSON, or a message's values together exceed a million bytes.
            InvalidOption: the name has been used, another step has not ended, or an argument cannot be used.
        """
        return self._step(name, body, undo, on_unknown)

    @overload
    def transact(
        self,
        name: str,
        body: Callable[[Connection], J],
        *,
        source: EngineSource | None = None,
        undo: Undo | None = None,
    ) -> J: ...
    @overload
    def transact(
        self, name: str, body: Callable[[S], J], *, source: SessionSource[S], undo: Undo | None = None
    ) -> J: ...
    @overload
    def transact(
        self,
        name: str,
        body: Callable[[Connection], JsonResult],
        *,
        source: EngineSource | None = None,
        undo: Undo | None = None,
    ) -> Any: ...
    @overload
    def transact(
        self,
        name: str,
        body: Callable[[S], JsonResult],
        *,
        source: SessionSource[S],
        undo: Undo | None = None,
    ) -> Any: ...
    def transact(
        self,
        name: str,
        body: Callable[[Any], JsonResult],
        *,
        source: Source | None = None,
        undo: Undo | None = None,
    ) -> Any:
        """A step whose writes and record commit in one transaction, so that it happens exactly once.

        While the transaction is open, nobody takes the message over, even after the lease; the commit renews
        the lease.

        Args:
            name: as for `step`.
            undo: as for `step`.
            body: gets the Connection (or, from a sessionmaker, the Session) on which a transaction has begun;
                it must neither commit nor roll back.
            source: an Engine, sessionmaker or scoped_session of the store's database, or a function that
                returns one; None is the store's own engine.

        Raises:
            TransactionAborted: the body swallowed a database error; nothing was written.
            TransactionEnded: the body committed or rolled back the transaction.
            CommitLost: the connection broke during COMMIT, and nothing was written.
            UnusableConnection: the engine is in AUTOCOMMIT mode; the body was not called.
            InvalidOption: the store is not a SqlStore.
        """
        store = sql_store(self._store)
        open_handle = opener(store.engine if source is None else source)
        transact(self._held, store, name, open_handle, body, has_undo=undo is not None)
        return self._finished(name, undo)
