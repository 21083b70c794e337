"""Operators' decisions about many messages of status-table mode.

What they take is read once, when the call begins, or was read by the listing whose `seen` is given. Messages
that have changed since are left. In a database, each transaction stores its part of the decision, so a call
that is killed has done what is stored; `release_all` may also have taken one message away from its handler.
"""

import logging
from collections.abc import Callable, Sequence

from inbox._status_mode.stores import Record, Status, Store
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.keys import Key
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.errors.outbox import WrongState
from inbox_outbox_base.transactions.recording import Recording
from inbox_outbox_base.words.deciding import BulkResult

from .deciding import Plan, discarded, fence, recording, released, retried, usable, write
from .delivering import Redelivery, redelivery
from .seeing import (
    RETRIED,
    STOPPED,
    SeenRecord,
    checked_filter,
    is_as_seen,
    is_chosen,
    key_and_error,
    unpack,
)

_log = logging.getLogger("inbox.decisions")

_TOGETHER = 100
"""Messages that one transaction changes."""


def retry_all(
    store: Store,
    status: Status | str,
    *,
    consumer: str | None = None,
    key: Key | None = None,
    error: str | None = None,
    seen: str | None = None,
    deliver: bool = False,
    to: str | None = None,
    by: str | None = None,
    why: str | None = None,
    dry_run: bool = False,
) -> BulkResult:
    """`retry` all messages that are in a status now, in a database a hundred in a transaction. It keeps the
    keys of all of them in memory.

    Args:
        store: as for `list_messages`.
        status: dead or failed.
        consumer: whose messages; None: those of all consumers.
        key: only messages of this key; None is any.
        error: only messages whose last error contains this text, 1 to 1,000 characters; case matters.
        seen: only messages that a listing has seen (`list_messages(...).seen`), and only as they were then;
            None is all that are there when the call begins.
        deliver: whether to publish them again, those that have waited longest first. Those that cannot be
            published are left as they are.
        to: with `deliver`, the topic; None is for each message the one from which it came.
        by: who decides, 1 to 255 bytes of UTF-8; None is this host and process.
        why: the reason, 1 to 1,000 characters, if you want to store one.
        dry_run: only count: nothing is changed or stored.

    Returns:
        How many were retried: a number, with `.changed`, how many others had changed since they were seen or
        since the call began, or were gone; and `.left`, how many cannot be delivered. Those are left as they
        are.

    Raises:
        InvalidOption: an argument cannot be used; with `deliver`, the store is Redis.
        InvalidKey: the key breaks the rules.
        StoreUnreachable: the store does not answer; what was done is done, and look again for the rest.
        TablesMissing: the tables do not exist; with `deliver`, those of an outbox.
    """
    wanted = _status(status, RETRIED)
    run = _BulkDecision(store, "retry_all", wanted, consumer, key, error, seen, by, why, dry_run=dry_run)
    run.deliver(redelivery(usable(store), deliver, to))
    return run.take(retried)


def discard_all(
    store: Store,
    status: Status | str,
    *,
    consumer: str | None = None,
    key: Key | None = None,
    error: str | None = None,
    seen: str | None = None,
    by: str | None = None,
    why: str | None = None,
    dry_run: bool = False,
) -> BulkResult:
    """`discard` all messages that are in a status now, in a database a hundred in a transaction. It keeps the
    keys of all of them in memory.

    Args:
        store: as for `list_messages`.
        status: dead, halted or failed.
        consumer: whose messages; None: those of all consumers.
        key: only messages of this key; None is any.
        error: as for `retry_all`.
        seen: as for `retry_all`.
        by: who decides, as for `retry_all`.
        why: the reason, as for `retry_all`.
        dry_run: only count, as for `retry_all`.

    Returns:
        How many were discarded, as `retry_all`.

    Raises as `retry_all`.
    """
    wanted = _status(status, STOPPED)
    run = _BulkDecision(store, "discard_all", wanted, consumer, key, error, seen, by, why, dry_run=dry_run)
    return run.take(discarded)


def release_all(
    store: Store,
    *,
    consumer: str | None = None,
    key: Key | None = None,
    error: str | None = None,
    seen: str | None = None,
    by: str | None = None,
    why: str | None = None,
    dry_run: bool = False,
) -> BulkResult:
    """`release` all messages that are being consumed now, one after the other. It keeps the keys of all of
    them in memory.

    Args:
        store: as for `list_messages`.
        consumer: whose messages; None: those of all consumers.
        key: only messages of this key; None is any.
        error: as for `retry_all`.
        seen: as for `retry_all`.
        by: who decides, as for `retry_all`.
        why: the reason, as for `retry_all`.
        dry_run: only count, as for `retry_all`.

    Returns:
        How many were released, as `retry_all`.

    Raises as `retry_all`.
    """
    wanted = Status.CONSUMING
    run = _BulkDecision(store, "release_all", wanted, consumer, key, error, seen, by, why, dry_run=dry_run)
    return run.take(released)


def _status(value: Status | str, among: tuple[Status, ...]) -> Status:
    status = Status(options.one_of("status", value, [*Status]))
    if status not in among:
        raise InvalidOption(f"status={status.value!r}: expected one of {', '.join(among)}")
    return status


class _BulkDecision:
    """One call."""

    def __init__(
        self,
        store: Store,
        action: str,
        status: Status,
        consumer: str | None,
        key: Key | None,
        error: str | None,
        seen: str | None,
        by: str | None,
        why: str | None,
        *,
        dry_run: bool,
    ) -> None:
        self._store = usable(store)
        self._status = status
        self._filter = checked_filter(consumer, key, error)
        self._named = None if seen is None else unpack(seen)
        self._dry_run = options.flag("dry_run", dry_run)
        told = self._filter | {"seen": None if self._named is None else len(self._named)}
        self._note: Recording = recording(store, action, by, why, status=status.value, **told)
        self._again: Redelivery | None = None
        self._left = 0

    def deliver(self, again: Redelivery | None) -> None:
        """Publish the messages again, too."""
        self._again = again
        if again is not None:
            self._note.filter = {**self._note.filter, **again.told}

    def take(self, plan: Callable[[Record], Plan]) -> BulkResult:
        """Take part after part, and count."""
        named = self._every() if self._named is None else self._named
        done = changed = 0
        for start in range(0, len(named), _TOGETHER):
            part = named[start : start + _TOGETHER]
            found = [self._store.find(each.consumer, each.key) for each in part]
            as_seen = [
                record
                for record, each in zip(found, part, strict=True)
                if record is not None and is_as_seen(record, each)
            ]
            matching = [each for each in as_seen if is_chosen(each, self._status, self._filter)]
            chosen = [each for each in matching if self._can_be_delivered(each)]
            taken = len(chosen) if self._dry_run else self._write(chosen, plan)
            done, changed = done + taken, changed + len(part) - len(as_seen) + len(chosen) - taken
        return BulkResult(done, changed, self._left)

    def _can_be_delivered(self, record: Record) -> bool:
        """Whether a message can be delivered, if it is to be."""
        try:
            if self._again is not None:
                self._again.check(record)
        except InvalidOption as error:
            self._left += 1
            _log.warning("left as it is: %s", error)
            return False
        return True

    def _every(self) -> Sequence[SeenRecord]:
        """What there is now."""
        consumer, others = self._filter.get("consumer"), key_and_error(self._filter)
        places = self._store.places(consumer, self._status, *others)
        return [SeenRecord(each.consumer, each.key, each.token, self._status.value) for each in places]

    def _write(self, records: Sequence[Record], plan: Callable[[Record], Plan]) -> int:
        if self._status is Status.CONSUMING:
            return sum(self._take_away(each, plan) for each in records)
        try:
            return sum(write(self._store, [(each, plan(each)) for each in records], self._note, self._again))
        except WrongState:  # the outbox has one of them, and somebody has just decided about it there
            return sum(self._write([each], plan) for each in records) if len(records) > 1 else 0

    def _take_away(self, record: Record, plan: Callable[[Record], Plan]) -> bool:
        # One after the other: a call that ends in between has taken no other message away from its handler.
        fenced = fence(self._store, record)
        return fenced is not None and all(write(self._store, [(fenced, plan(fenced))], self._note))
