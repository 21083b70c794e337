"""The part that the synchronous and the asynchronous inbox of status-table mode share."""

import os
import socket
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from inbox._listening.counting import ClaimedPart
from inbox._listening.handler_counts import HandlerCounts
from inbox._listening.judgements import Recorded
from inbox._listening.noting import RECORDS, Records, fail_unkeyed, note_of, refuse
from inbox._listening.outcome import Outcome
from inbox._listening.series_events import SeriesEvents
from inbox._memory import Known, Memory
from inbox_outbox_base.calls import clock
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.backoff import Backoff
from inbox_outbox_base.checks.extras import check_greenlet
from inbox_outbox_base.checks.key_times import FORMS, KeyTime
from inbox_outbox_base.checks.keys import Key, digest, encode_key
from inbox_outbox_base.checks.retention import SKEW, Retention
from inbox_outbox_base.databases.taking import Attempt
from inbox_outbox_base.errors.blame import OWN, is_excused
from inbox_outbox_base.errors.inbox import InvalidKey, InvalidOption, StoreUnreachable
from inbox_outbox_base.errors.not_taken import OnRefusal, raise_refusal
from inbox_outbox_base.monitoring.events import OF_VERDICT, Event, Hook, Hooks, digests_of
from inbox_outbox_base.transactions.policy import DEAD_RETENTION
from inbox_outbox_base.words.incoming import Verdict

from .claim_base import ClaimBase
from .heartbeats import Schedule
from .hold import Hold
from .kept_message import KeptMessage, kept
from .stores import ClaimAnswer, Request, SqlStore, Store

MissingKey = Literal["refuse", "message_id", "run"]
Unreachable = Literal["raise", "run"]

_SHORTEST_LEASE = 0.1


class StatusConsumer:
    """A consumer's name, its store and its options, checked."""

    _is_async: bool

    def __init__(
        self,
        consumer: str,
        *,
        store: Store,
        lease: float | timedelta = timedelta(minutes=10),
        max_attempts: int = 16,
        heartbeat: bool = True,
        max_runtime: float | timedelta | None = None,
        backoff: Backoff | None = None,
        retention: Retention | float | timedelta | None = None,
        dead_retention: float | timedelta | None = None,
        keep_payload: bool = False,
        missing_key: MissingKey = "refuse",
        unreachable: Unreachable = "raise",
        on_event: Hook | Iterable[Hook] | None = None,
        on_refusal: OnRefusal = "raise",
        remember: int = 0,
        record_refusals: Records = "listening",
        key_time: KeyTime | None = None,
    ) -> None:
        if self._is_async:
            check_greenlet()
        if not isinstance(store, Store):
            raise InvalidOption(f"store={type(store).__name__}: expected a SqlStore or a RedisStore")
        if store.is_async is not self._is_async:
            other = "AsyncStatusInbox" if store.is_async else "StatusInbox"
            raise InvalidOption(f"store={store!r}: this store needs {other}")
        self.consumer = options.consumer(consumer)
        self.store = store
        self.lease = options.seconds("lease", lease)
        if self.lease < _SHORTEST_LEASE:
            raise InvalidOption(f"lease={lease!r}: expected at least {_SHORTEST_LEASE} seconds")
        self.max_attempts = options.count("max_attempts", max_attempts)
        self.heartbeat = options.flag("heartbeat", heartbeat)
        self.max_runtime = None if max_runtime is None else options.seconds("max_runtime", max_runtime)
        if self.max_runtime is not None and self.max_runtime < _SHORTEST_LEASE:
            raise InvalidOption(f"max_runtime={max_runtime!r}: expected at least {_SHORTEST_LEASE} seconds")
        if not isinstance(backoff, Backoff | None):
            raise InvalidOption(f"backoff={backoff!r}: expected a Backoff")
        self.backoff = backoff or Backoff()
        self.retention = Retention.of(retention)
        self._kept = self.retention.duration.total_seconds()
        asked = None if dead_retention is None else options.seconds("dead_retention", dead_retention)
        self.dead_retention = DEAD_RETENTION.total_seconds() if asked is None else asked
        if key_time is not None:
            options.one_of("key_time", key_time, tuple(FORMS))
            if missing_key == "message_id":
                raise InvalidOption(f"missing_key='message_id': the broker's ids are no keys of {key_time=}")
        self.key_time = key_time
        self._form = None if key_time is None else FORMS[key_time]
        self._policy = store.declaration(consumer, retention, asked, key_time)
        if self._form is not None and self._policy is None:
            # A record that expires by itself must outlive its key's time, which may be ahead of the clock.
            self._kept += SKEW.total_seconds()
        self.keep_payload = options.flag("keep_payload", keep_payload)
        self.missing_key = options.one_of("missing_key", missing_key, ("refuse", "message_id", "run"))
        self.unreachable = options.one_of("unreachable", unreachable, ("raise", "run"))
        self.hooks = Hooks(on_event)
        self.on_refusal = options.one_of("on_refusal", on_refusal, ("raise", "return"))
        self.remember = options.whole("remember", remember)
        self._memory = Memory(remember) if remember else None
        options.one_of("record_refusals", record_refusals, RECORDS)
        self.record_refusals: Records = record_refusals
        self._host = socket.gethostname()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.consumer!r}, store={self.store!r})"

    def _counting(self) -> HandlerCounts | None:
        """Counts what listeners decide, unless a hook counts the events."""
        return None if self.hooks.has(SeriesEvents) else self.store.counts(self.consumer)

    def _fail_unkeyed(self, error: BaseException) -> None:
        """A handler has failed before the store was asked."""
        if isinstance(store := self.store, SqlStore):
            table, engine = store.tables.refused, store.engine
            fail_unkeyed(self.record_refusals, error, self.consumer, table, lambda: engine)

    @staticmethod
    def _call(work: Callable[[], Any]) -> Any:
        """Synchronous calls cannot be cancelled, so call directly."""
        return work()

    def _claim(
        self,
        key: Key | None,
        payload: Any,
        message_id: str | None,
        message_time: datetime | None,
        message: object,
    ) -> tuple[str, Hold | Outcome, ClaimedPart]:
        """Claim a message, or return why not, with the stored key and the listener's view of the claim.
        Synchronous for every kind of store."""
        part = ClaimedPart()  # before the store is asked: another claim may end meanwhile
        try:
            stored_key, given = self._ask(key, payload, message_id, message_time, message)
        except BaseException as error:
            part.end(None, Recorded(Verdict.NEW, None) if is_excused(error) else None)
            raise
        part.is_asked = True
        if isinstance(given, Hold):
            part.answers = part.answers and given.is_protected
        else:
            is_in_flight = given.verdict is Verdict.IN_FLIGHT
            part.end(None, Recorded(given.verdict, given.retry_after) if is_in_flight else None)
        return stored_key, given, part

    def _ask(
        self,
        key: Key | None,
        payload: Any,
        message_id: str | None,
        message_time: datetime | None,
        message: object,
    ) -> tuple[str, Hold | Outcome]:
        stored_key = self._stored_key(key, message_id)
        if self._form is not None:
            if message_time is not None:
                raise InvalidOption(f"message_time: with key_time={self.key_time!r}, the key names the time")
            if stored_key is not None:
                self._form.check(stored_key)
                self._form.check_time(stored_key, self._now, "store")
        known = (
            None
            if self._memory is None or stored_key is None
            else self._memory.recall((self.store.history, stored_key))
        )
        if stored_key is not None and known is not None:
            digests = digest(payload), known.digest
            return stored_key, self._refused(known.outcome(digests[0]), stored_key, digests)
        request = self._request(stored_key or "", payload, message)
        if stored_key is None:
            return "", self._unprotected(request)
        return stored_key, self._claim_key(request, message_time)

    def _claim_key(self, request: Request, message_time: datetime | None) -> Hold | Outcome:
        sent = clock.now()
        try:
            is_old = (
                self._has_expired(request.key)
                if message_time is None
                else self._is_too_old(message_time, request.key)
            )
            if not is_old:
                with OWN:
                    answer: ClaimAnswer = self._call(lambda: self.store.claim(request))
                is_old = answer.verdict is Verdict.TOO_OLD
            if is_old:
                return self._refused(Outcome(Verdict.TOO_OLD), request.key, (request.digest, None))
        except StoreUnreachable:
            if self.unreachable == "raise" or self.store.settles(request.consumer, request.key):
                raise
            return self._unprotected(request)
        if answer.verdict is Verdict.NEW:
            return self._hold(self.store, request, answer, sent)
        digests = request.digest, answer.record.digest
        return self._refused(self._refusal(answer), request.key, digests, answer)

    def _check_taken(self, claim: ClaimBase) -> None:
        """Raise if the message was taken neither now nor before, unless the caller wants verdicts."""
        if self.on_refusal == "raise":
            raise_refusal(claim.verdict, self.consumer, claim.key, claim.retry_after)

    def _stored_key(self, key: Key | None, message_id: str | None) -> str | None:
        """The key to claim; None means that the message runs without a claim."""
        if key is not None:
            return encode_key(key)
        if self.missing_key == "message_id":
            if message_id is None:
                raise InvalidKey("key=None, message_id=None: missing_key='message_id' needs one of them")
            return encode_key(("message id", message_id))
        if self.missing_key == "run":
            return None
        raise InvalidKey("key=None: the message has no key (missing_key='refuse')")

    def _request(self, key: str, payload: Any, message: object) -> Request:
        found = kept(message, payload) if self.keep_payload else KeptMessage()
        return Request(
            consumer=self.consumer,
            key=key,
            claim=os.urandom(16),
            # Of a name that is too long, keep the end: it has the process id.
            owner=f"{self._host}:{os.getpid()}"[-255:],
            lease=self.lease,
            max_attempts=self.max_attempts,
            digest=digest(payload),
            payload=found.payload,
            delivery=found.delivery,
            retention=self._kept,
            dead_retention=self.dead_retention,
            policy=self._policy,
            is_remembered=self._memory is not None,
        )

    def _hold(self, store: Store | None, request: Request, answer: ClaimAnswer, sent: float) -> Hold:
        return Hold(
            store,
            request,
            answer,
            sent=sent,
            hooks=self.hooks,
            call=self._call,
            max_runtime=self.max_runtime,
            memory=self._memory,
            remembered=self._remembered(answer),
        )

    def _remembered(self, answer: ClaimAnswer) -> float:
        """For how many seconds to remember the message: as long as its record is kept, if that is known."""
        if self._policy is None or self._policy.asked is not None:
            return self._kept
        return answer.kept

    def _schedule(self) -> Schedule:
        """A schedule for the heartbeats of one process or event loop."""
        keep = self.lease + self._kept
        return Schedule(self.store, self.lease, keep, renews=self.heartbeat, max_runtime=self.max_runtime)

    def _unprotected(self, request: Request) -> Hold:
        """The message runs without a claim."""
        return self._hold(None, request, ClaimAnswer.first(request, 0, datetime.now(UTC)), clock.now())

    def _refusal(self, answer: ClaimAnswer) -> Outcome:
        record = answer.record
        if answer.verdict is Verdict.DUPLICATE:
            known = Known(record.digest, record.result)
            if self._memory is not None:
                # Remember it no longer than the record itself is kept.
                left = self._remembered(answer) - (answer.now - record.updated_at).total_seconds()
                self._memory.remember((self.store.history, record.key), known, left)
            return known.outcome(None)
        if answer.verdict is Verdict.IN_FLIGHT:
            wait, left = self.backoff.delay(record.attempts_started), answer.lease_left.total_seconds()
            # No time is left if the record is locked without a lease.
            return Outcome(answer.verdict, None, min(wait, left) if left else wait)
        return Outcome(answer.verdict)

    def _refused(
        self,
        refusal: Outcome,
        key: str,
        digests: tuple[bytes | None, bytes | None],
        answer: ClaimAnswer | None = None,
    ) -> Outcome:
        self._note_refusal(refusal.verdict, key, *digests)
        event = Event(
            kind=OF_VERDICT[refusal.verdict],
            consumer=self.consumer,
            key=key,
            attempt=answer.record.attempts_started if answer else 0,
            error=answer.record.error if answer else None,
            **digests_of(refusal.verdict, *digests),
        )
        self.hooks(event)
        return refusal

    def _note_refusal(self, verdict: Verdict, key: str, digest: bytes | None, stored: bytes | None) -> None:
        """Record a refusal of which the message's record says nothing, if the store is a database."""
        if verdict in (Verdict.MISMATCH, Verdict.TOO_OLD) and isinstance(self.store, SqlStore):
            attempt = Attempt(self.store.tables, self.consumer, key, b"", digest)
            refuse(self.record_refusals, note_of(self.store.engine, attempt, verdict, stored))

    def _is_too_old(self, message_time: datetime, key: str) -> bool:
        """By the store's clock; the store is asked only if the worker's clock is near the limit."""
        made = options.aware("message_time", message_time)
        with OWN:
            kept = self.retention if self._policy is None else self.store.retention(self._policy)
            if not self._is_older(made, kept):
                return False
            # By a policy that was not looked at for long, nothing is too old.
            if self._policy is not None and not self._is_older(made, self.store.agreed(self._policy)):
                return False
            # A key that is still stored keeps its verdict, however old the message is.
            return self.store.find(self.consumer, key) is None

    def _has_expired(self, key: str) -> bool:
        """Whether the key names a time whose records have expired, in a store that expires them one by one; a
        store that is purged knows it better."""
        if self._form is None or self._policy is not None:
            return False
        with OWN:
            kept = self.retention.duration
            if key >= self._form.since(datetime.now(UTC) - kept + SKEW):
                return False
            if key >= self._form.since(self.store.now() - kept):
                return False
            # A key that is still stored keeps its verdict.
            return self.store.find(self.consumer, key) is None

    def _now(self) -> datetime:
        with OWN:
            return self.store.now()

    def _is_older(self, made: datetime, kept: Retention) -> bool:
        return not kept.surely_covers(made) and made < self.store.now() - kept.duration
