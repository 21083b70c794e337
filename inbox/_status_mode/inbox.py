"""Status-table mode for synchronous code."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, TypeVar, cast

from inbox._listening.json_types import JsonResult
from inbox._listening.listener import Listener
from inbox._listening.listener_factory import Listens
from inbox._listening.outcome import Outcome
from inbox_outbox_base.calls.signals import FAILURES, as_failure, original
from inbox_outbox_base.checks.keys import Key
from inbox_outbox_base.errors.blame import OWN

from .base import StatusConsumer
from .claim import Claim
from .claim_base import end_claim, outcome_of, raise_rest
from .handlers import StatusHandler
from .heartbeats import Heartbeats
from .hold import Hold

M = TypeVar("M")


class StatusInbox(StatusConsumer, Listens[Listener]):
    """Takes each message once without a transaction around its handler, which may call other services.

    At any time at most one handler has the message's lease. A handler runs at least once, never concurrently
    as long as its lease is renewed, and resumes step by step: a finished `Claim.step` is not called again as
    long as the record is kept.

    Args:
        consumer: the scope of the keys, 1 to 128 bytes of UTF-8; two consumers can take the same message.
        store: a `SqlStore` or a `RedisStore`; its clock decides, never a worker's.
        lease: how long a claim holds without a heartbeat, in seconds or as `timedelta`; after that another
            worker can take the message over.
        max_attempts: attempts until the message is dead, including attempts that never ended.
        heartbeat: whether to renew the lease while the handler runs.
        max_runtime: how long a handler may run, in seconds or as `timedelta`. After that its claim is lost,
            and when the lease ends another worker can take the message over. None: no limit.
        backoff: how long to wait before a message is delivered again.
        retention: how long records are kept (`Retention`, seconds or `timedelta`). A database stores it; None
            uses the stored value, or 7 days if there is none.
        dead_retention: how long records of dead and halted messages are kept; None uses the stored value, or
            30 days.
        keep_payload: whether the record of a dead or halted message keeps the message, of up to 1,000,000
            bytes, until the record is purged. A `handler` keeps the whole message that a consumer or a relay
            of ours gives it, with its headers and its topic, so that `retry` can deliver it again; a larger
            one runs, and is not kept. A `claim` keeps its `payload`.
        missing_key: what to do with a message without a key: "refuse" raises an error, "message_id" takes
            the message id as the key, and "run" runs the message without protection.
        unreachable: what to do when the store does not answer: "raise" an error, or "run" without protection.
        on_event: a function, or several, called with each `Event`.
        on_refusal: what `claim` and `handler` do with a message that was taken neither now nor before:
            "raise" the `NotTaken` error of its verdict, or "return" the verdict. With "return", check it
            before you acknowledge the message.
        remember: how many finished messages this object remembers, with their results: it answers their
            duplicates without asking the store.
        record_refusals: which `MISMATCH` and `TOO_OLD` answers `inbox.refused` lists afterwards: "listening",
            those about messages that a listener or a consumer handles; "always"; or "never". With a
            `RedisStore`, none are recorded. (Dead and halted messages are in the store itself.)
        key_time: the form of keys that name their time, as for `Inbox`: retention then counts from the key's
            time, and a key that has been forgotten is `TOO_OLD`, never `NEW`. Not with
            `missing_key="message_id"`.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    _is_async = False
    _listener = Listener
    _beats: Heartbeats | None = None

    @property
    def _heartbeats(self) -> Heartbeats:
        """This process's heartbeats."""
        if self._beats is None or self._beats.pid != os.getpid():
            self._beats = Heartbeats(self._schedule())
        return self._beats

    def claim(
        self,
        key: Key | None,
        payload: Any = None,
        *,
        message_id: str | None = None,
        message_time: datetime | None = None,
    ) -> AbstractContextManager[Claim]:
        """Claim the message, run the block, and record how it ended.

        The block runs for a new message and for a duplicate; look at `claim.is_new`. Leaving it normally
        completes the message: acknowledge it. An exception fails it and propagates unchanged.

        Args:
            key: text of 1 to 512 bytes of UTF-8 without NUL, a whole number, a UUID, or a tuple of these.
            payload: bytes, text or a JSON value, such as a tuple of the fields that matter. A digest of it is
                kept, and the same key with another payload is a `MISMATCH`.
            message_id: the broker's message id, for `missing_key="message_id"`.
            message_time: when the message was made; a message older than the retention is `TOO_OLD`. Not with
                `key_time`.

        Raises:
            NotTaken: `MessageInFlight`, `PayloadMismatch`, `MessageTooOld`, `MessageDead` or `MessageHalted`;
                the block does not run. `MessageDead` is also raised after a run that could only undo finished
                steps. With `on_refusal="return"` the block runs, and `claim.verdict` has the verdict.
            InvalidKey: the key breaks the rules, or there is none; with `key_time`, it has another form, or
                its time is more than a day ahead of the store's clock.
            LeaseLost: somebody else has the message: do not acknowledge it.
            StoreUnreachable: the store does not answer.
            TablesMissing: the tables do not exist.
            PolicyConflict: the consumer's stored policy differs; nothing was claimed.
        """
        return self._claimed(key, payload, message_id, message_time, raises=True)

    @contextmanager
    def _claimed(
        self,
        key: Key | None,
        payload: Any,
        message_id: str | None,
        message_time: datetime | None,
        message: object = None,
        *,
        raises: bool = False,
    ) -> Iterator[Claim]:
        """Run the block for every verdict; but if `raises`, raise refusals as `on_refusal` says."""
        stored_key, given, part = self._claim(key, payload, message_id, message_time, message)
        claim = Claim(stored_key, self.store, given, part)
        if not isinstance(given, Hold):
            if raises:
                self._check_taken(claim)
            yield claim
            return
        heartbeats = self._heartbeats
        try:
            if heartbeats.is_needed and given.is_protected:
                with OWN:
                    heartbeats.add(given)
            yield claim
        except BaseException as error:  # noqa: BLE001 - raised again
            end_claim(claim, error, self.backoff.delay)
            raise_rest(error)
        else:
            end_claim(claim, None, self.backoff.delay)
        finally:
            if given.is_here:  # a fork may have copied their lock while a thread held it
                heartbeats.remove(given)
            given.leave()
        if raises:
            self._check_taken(claim)

    def handler(
        self,
        *,
        key: Callable[[Any], Key | None],
        payload: Callable[[Any], Any] | None = None,
        message_id: Callable[[Any], str] | None = None,
        message_time: Callable[[Any], datetime] | None = None,
    ) -> Callable[[Callable[[Claim, M], JsonResult]], StatusHandler[M]]:
        """Decorate `body(claim, message)`: it runs in `claim`, once unless it fails.

        The body's return value (JSON) is stored and is the `Outcome.result` of every duplicate. Its
        exceptions propagate unchanged. When the decorated function returns, acknowledge the message; it
        raises what `claim` raises. A `Listener` calls its `outcome(message)` instead, which puts errors of
        the body into `Outcome.error` and refusals into `Outcome.verdict`; if there is a decorator around the
        handler, it calls that one.

        Args:
            key: a function of the message.
            payload: a function of the message.
            message_id: a function of the message.
            message_time: a function of the message.
        """

        def decorate(body: Callable[[Claim, M], JsonResult]) -> StatusHandler[M]:
            def run(message: M) -> tuple[Claim | None, Outcome]:
                claim: Claim | None = None
                try:
                    with self._claimed(
                        key(message),
                        payload and payload(message),
                        message_id and message_id(message),
                        message_time and message_time(message),
                        message,
                    ) as claim:
                        if claim.is_new:
                            claim.result = body(claim, message)
                except FAILURES as error:
                    if claim is None:
                        self._fail_unkeyed(error)
                    return claim, outcome_of(claim, as_failure(error))
                return claim, outcome_of(claim)

            @functools.wraps(body)
            def handle_message(message: M) -> Outcome:
                claim, outcome = run(message)
                if outcome.error is not None:
                    raise original(outcome.error)
                if claim is not None:
                    self._check_taken(claim)
                return outcome

            handle_message.outcome = lambda message: run(message)[1]  # type: ignore[attr-defined]
            handle_message.prepare = self.store.prepare  # type: ignore[attr-defined]
            handle_message.counts = self._counting()  # type: ignore[attr-defined]
            return cast("StatusHandler[M]", handle_message)

        return decorate
