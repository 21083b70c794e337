"""The contract between status-table mode and a store."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TypeVar

from inbox._listening.handler_counts import HandlerCounts
from inbox_outbox_base.calls.retry import MayRetry, retry
from inbox_outbox_base.checks.key_times import KeyTime
from inbox_outbox_base.checks.retention import Retention
from inbox_outbox_base.errors.inbox import StoreUnreachable
from inbox_outbox_base.transactions.declaring import Declaration
from inbox_outbox_base.words.incoming import Status, Verdict

from .late_ends import LateEnds
from .records import Change, ClaimAnswer, HeldRecord, Record, Request

T = TypeVar("T")

_ROUNDS = 100
"""How often a claim looks again if others change the record meanwhile."""

_TRIES, _TRIES_WITHIN = 8, 1.0
"""How often a call is tried, and for how many seconds, because a driver may itself have retried for long. A
call that took longer is tried once more, on another connection."""


class Store(ABC):
    """Where status-table mode keeps its records. All times are the store's own clock.

    Methods are synchronous; a store on an asynchronous engine or client is called inside a greenlet.
    """

    is_async: bool

    def claim(self, request: Request) -> ClaimAnswer:
        """Take the message, or answer why not; one atomic decision.

        Raises:
            StoreUnreachable: the store did not answer, after some retries, or could not record that the
                message is settled.
        """
        # Before the claim, which must find the end of this process's last attempt at the message. Without it,
        # the claim could take the message over although its handler has succeeded.
        if self._late:
            message = (request.consumer, request.key)
            try:
                self._late.write(message)
            except Exception:
                if self._late.settles(message):
                    raise
        for _ in range(_ROUNDS):
            answer = self._claim(request)
            if answer is not None:
                if answer.verdict is not Verdict.NEW:  # else the lease has begun
                    self._write_late()
                return answer
        raise StoreUnreachable(f"key={request.key!r}: others changed its record {_ROUNDS} times in a row")

    def end(self, held: HeldRecord, change: Change) -> bool:
        """Write how a handler ended; return False if it no longer has the message."""
        is_written = self.write(held, change)
        self._write_late()
        return is_written

    def keep_end(self, held: HeldRecord, change: Change) -> None:
        """Nobody knows whether an end was written: write it when this process claims the message again, or
        gets an answer about another message."""
        self._late.keep(held, change)

    def _write_late(self) -> None:
        """The store answers, so the ends of other messages may get through, too."""
        if self._late:
            self._late.write_all()

    def settles(self, consumer: str, key: str) -> bool:
        """Whether this process knows, although the store does not yet, that the message is settled."""
        return self._late.settles((consumer, key))

    @cached_property
    def _late(self) -> LateEnds:
        return LateEnds(self.write)

    @property
    def history(self) -> object:
        """Another object once something shows that the store may have lost records: what was remembered
        about it is not believed any more."""
        return self

    def prepare(self) -> None:  # noqa: B027 - most stores have nothing to prepare
        """A listener calls this before the first message, for instance to warn of settings that lose
        messages.

        Raises:
            UnsafeDatabase: the store cannot keep its promises. This ends the listener's call.
        """

    def counts(self, consumer: str) -> HandlerCounts | None:
        """What counts a listener's decisions about a consumer's messages; None if the store has no table for
        it."""
        return None

    def declaration(
        self,
        consumer: str,
        retention: Retention | float | timedelta | None,
        dead_retention: float | None,
        key_time: KeyTime | None,
    ) -> Declaration | None:
        """The inbox's policy, which the store keeps with the records; None if records expire one by one."""
        return None

    def retention(self, policy: Declaration) -> Retention:
        """How long the records of an inbox with this policy are kept."""
        return policy.asked or Retention()

    def agreed(self, policy: Declaration) -> Retention:
        """The same, compared with the stored policy unless this process has just done so.

        Raises:
            PolicyConflict: the stored policy differs.
        """
        return self.retention(policy)

    @abstractmethod
    def _claim(self, request: Request) -> ClaimAnswer | None:
        """The answer; None if others changed the record meanwhile, so that the claim must look again."""

    @abstractmethod
    def write(self, held: HeldRecord, change: Change, among: Iterable[Status] = (Status.CONSUMING,)) -> bool:
        """Write if the record still has this token and one of these statuses; else return False."""

    def renew(
        self, claims: Sequence[HeldRecord], lease: float, keep: float, within: float
    ) -> Iterator[tuple[HeldRecord, float | None]]:
        """Renew the leases of one consumer's claims, skipping locked records. For each claim, yield the
        seconds that its lease now has left, or None if the claim is lost.

        Args:
            claims: one or more.
            lease: seconds.
            keep: seconds, for stores that expire records.
            within: seconds after which a missing answer is an error.
        """
        change = Change(lease=lease, forget_after=keep)
        for held in claims:
            yield held, lease if self.write(held, change) else None

    @abstractmethod
    def find(self, consumer: str, key: str) -> Record | None:
        """The record of one message."""

    @abstractmethod
    def list(
        self,
        consumer: str | None,
        status: Status | None,
        limit: int,
        key: str | None = None,
        error: str | None = None,
    ) -> list[Record]:
        """Records, the least recently changed first; if given, only those of a consumer, in a status, of a
        key, and with this text in their error."""

    @abstractmethod
    def places(
        self, consumer: str | None, status: Status | None, key: str | None = None, error: str | None = None
    ) -> Sequence[HeldRecord]:
        """The same, all of them, with no more than what finds a record again."""

    @abstractmethod
    def delete(self, held: HeldRecord, among: Iterable[Status]) -> bool:
        """Delete the record if it still has this token and one of these statuses."""

    @abstractmethod
    def now(self) -> datetime:
        """The store's clock."""

    def _has_happened(self, held: HeldRecord, change: Change) -> bool:
        """Whether a refused write had taken effect before, so that only its answer was lost."""
        record = self.find(held.consumer, held.key) if change.status is not None else None
        return record is not None and (record.token, record.status) == (held.token, change.status)

    def _retrying(self, call: Callable[[], T], may_retry: MayRetry) -> T:
        """Call the store, retry these errors, and raise the last error."""
        return retry(call, _TRIES, may_retry, within=_TRIES_WITHIN, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        if self.is_async:
            from sqlalchemy.util import await_only  # the import needs greenlet

            await_only(asyncio.sleep(seconds))
        else:
            time.sleep(seconds)
