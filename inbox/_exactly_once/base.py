"""The part that the synchronous and the asynchronous inbox share."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Engine

from inbox._listening.handler_counts import HandlerCounts
from inbox._listening.noting import RECORDS, Records, fail_unkeyed, note_of, refuse
from inbox._listening.outcome import Outcome
from inbox._listening.series_events import SeriesEvents
from inbox._memory import Memory, place_of
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.extras import check_greenlet
from inbox_outbox_base.checks.key_times import FORMS, KeyTime
from inbox_outbox_base.checks.keys import Key, digest, encode_key
from inbox_outbox_base.checks.retention import Retention
from inbox_outbox_base.databases.taking import Attempt
from inbox_outbox_base.errors.blame import is_worth_another_try
from inbox_outbox_base.errors.groups import find
from inbox_outbox_base.errors.inbox import InvalidOption, NotTaken
from inbox_outbox_base.errors.not_taken import OnRefusal, raise_refusal
from inbox_outbox_base.monitoring.events import (
    OF_VERDICT,
    Event,
    EventKind,
    Hook,
    Hooks,
    describe,
    digests_of,
)
from inbox_outbox_base.tables.inbox import tables
from inbox_outbox_base.transactions.declaring import Declaration
from inbox_outbox_base.transactions.durability import engine_behind
from inbox_outbox_base.transactions.session import BindArguments
from inbox_outbox_base.words.incoming import Verdict

from .accept import Terms, new_attempt
from .accept_many import Messages
from .transaction import Transaction

ATTEMPTS = 12
"""How often a handler tries one message: transient errors are retried for about five seconds. If an attempt
itself takes that long, one more follows."""


class Consumer:
    """A consumer's name and options, checked."""

    _is_async = False

    def __init__(
        self,
        consumer: str,
        *,
        wait: float | timedelta = 10,
        retention: Retention | float | timedelta | None = None,
        schema: str | None = None,
        on_refusal: OnRefusal = "raise",
        on_event: Hook | Iterable[Hook] | None = None,
        remember: int = 0,
        record_refusals: Records = "listening",
        key_time: KeyTime | None = None,
    ) -> None:
        if self._is_async:
            check_greenlet()
        self.consumer = options.consumer(consumer)
        self.wait = options.seconds("wait", wait, options.LONGEST_WAIT)
        self.retention = Retention.of(retention)
        self.schema = schema
        self.on_refusal = options.one_of("on_refusal", on_refusal, ("raise", "return"))
        self.hooks = Hooks(on_event)
        self.remember = options.whole("remember", remember)
        self.tables = tables(schema)
        if key_time is not None:
            options.one_of("key_time", key_time, tuple(FORMS))
        self.key_time = key_time
        self._policy = Declaration(self.tables, consumer, "exactly-once", retention, key_time=key_time)
        self._memory = Memory(remember) if remember else None
        options.one_of("record_refusals", record_refusals, RECORDS)
        self.record_refusals: Records = record_refusals
        self._terms = Terms(self.wait, self._policy, self._memory, record_refusals, self.hooks or None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.consumer!r})"

    def _attempt(self, key: Key, payload: Any, *, marks: bool = False) -> Attempt:
        return new_attempt(self.tables, self.consumer, self._key(key), payload, marks=marks)

    def _key(self, key: Key) -> str:
        """The key as it is stored."""
        text = encode_key(key)
        form = self._policy.form
        return text if form is None else form.check(text)

    def _begin(
        self,
        key: Key,
        payload: Any,
        message_time: datetime | None,
        bind_arguments: BindArguments | None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> Transaction:
        return Transaction(
            self._attempt(key, payload, marks=True),
            self._terms,
            self._checked_time(message_time),
            bind_arguments=bind_arguments,
            sleep=sleep,
        )

    def _remembered(self, source: object, key: Key, payload: Any) -> Outcome | None:
        """The answer to a duplicate that this process remembers, if no connection is needed to look it up.

        Raises:
            PayloadMismatch: the same key came with another payload.
        """
        if self._memory is None:
            return None
        engine = getattr(source, "sync_engine", source)
        # Only an engine tells without a connection which database it uses.
        if not isinstance(engine, Engine):
            return None
        stored_key = encode_key(key)
        known = self._memory.recall(place_of(engine, stored_key))
        if known is None:
            return None
        its_digest = digest(payload)
        outcome = known.outcome(its_digest)
        if outcome.verdict is Verdict.MISMATCH:
            attempt = self._attempt(key, payload)
            refuse(self.record_refusals, note_of(engine, attempt, outcome.verdict, known.digest))
        if self.hooks:
            kind, digests = OF_VERDICT[outcome.verdict], digests_of(outcome.verdict, its_digest, known.digest)
            self.hooks(Event(kind=kind, consumer=self.consumer, key=stored_key, **digests))
        if self.on_refusal == "raise":
            raise_refusal(outcome.verdict, self.consumer, stored_key)
        return outcome

    def _check_taken(self, transaction: Transaction) -> None:
        """Raise if the message was taken neither now nor before, unless the caller wants verdicts."""
        if transaction.verdict is not Verdict.NEW and self.on_refusal == "raise":
            raise_refusal(transaction.verdict, self.consumer, transaction.key)

    def _decide_retry(self, error: Exception, attempt: int, key: Key) -> bool:
        """Decide whether `handler` tries again, and tell monitoring if it does. A message in flight is not
        retried: the call has already waited for it."""
        if find(error, NotTaken) is not None or not is_worth_another_try(error):
            return False
        if self.hooks:
            self.hooks(
                Event(
                    kind=EventKind.RETRIED,
                    consumer=self.consumer,
                    key=encode_key(key),
                    attempt=attempt,
                    error=describe(error),
                )
            )
        return True

    def _counting(self, source: object, bind_arguments: BindArguments | None) -> HandlerCounts | None:
        """Counts what listeners decide, unless a hook counts the events."""
        if self.hooks.has(SeriesEvents):
            return None
        engine = partial(engine_behind, source, self.tables.message, bind_arguments)
        return HandlerCounts(self.consumer, self.tables.minute, engine)

    def _fail_unkeyed(self, error: Exception, source: object, bind_arguments: BindArguments | None) -> None:
        """An error leaves a handler, perhaps before the inbox has got the message's key."""
        engine = partial(engine_behind, source, self.tables.message, bind_arguments)
        fail_unkeyed(self._terms.records, error, self.consumer, self.tables.refused, engine)

    def _messages(
        self, keys: Sequence[Key], payloads: Sequence[Any] | None, times: Sequence[datetime | None] | None
    ) -> Messages:
        for option, given in (("keys", keys), ("payloads", payloads), ("message_times", times)):
            if isinstance(given, str | bytes | bytearray | Mapping):  # iterable, but not a sequence of keys
                kind = type(given).__name__
                raise InvalidOption(f"{option}={kind}: expected a sequence with one item for each message")
            if option != "keys" and given is not None and len(given) != len(keys):
                raise InvalidOption(f"{option}: {len(given)} for {len(keys)} keys, expected one for each")
        return Messages(
            [self._key(key) for key in keys],
            None if payloads is None else [digest(payload) for payload in payloads],
            None if times is None else [self._checked_time(each) for each in times],
        )

    def _checked_time(self, message_time: datetime | None) -> datetime | None:
        """The time, which must have a time zone; none if the key names it."""
        if message_time is None:
            return None
        if self.key_time is not None:
            raise InvalidOption(f"message_time: with key_time={self.key_time!r}, the key names the time")
        return options.aware("message_time", message_time)
