"""Operators' commands for messages of status-table mode: inspect them, and decide.

Every decision is a conditional write, based on the token and the status that the operator saw, and changes
the token. Of an operator and a worker, or of two operators, one wins, and every later write of the message's
former holder raises `LeaseLost`. Nothing here delivers a message: if it can run again, its next delivery
does so.
"""

import os
import socket
from datetime import timedelta
from typing import Any, Literal

from inbox._status_mode.steps import Steps, checked_name
from inbox._status_mode.stores import Change, HeldRecord, Record, Status, Store, remember
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.keys import Key, encode_key
from inbox_outbox_base.errors.inbox import InvalidOption, MessageNotFound, WrongStatus

Resolved = Literal["done", "not_done"]

_STOPPED = (Status.DEAD, Status.HALTED, Status.FAILED)
_KEPT = timedelta(days=365).total_seconds()
"""How long Redis keeps an operator's change: the inbox's own retention is not known here, and a record
forgotten too early would run again."""


def list_messages(
    store: Store, *, consumer: str | None = None, status: Status | str | None = None, limit: int = 100
) -> list[Record]:
    """Messages of status-table mode, the least recently changed first.

    Args:
        store: a `SqlStore` or a `RedisStore`, not an asynchronous one. Redis has no index of statuses: there
            every record is read.
        consumer: whose messages; None: those of all consumers.
        status: only messages in this status; None is any.
        limit: the most messages to return.

    Raises:
        InvalidOption: an argument cannot be used.
        StoreUnreachable: the store does not answer.
        TablesMissing: the tables do not exist.
    """
    if consumer is not None:
        options.consumer(consumer)
    if status is not None:
        status = Status(options.one_of("status", status, [*Status]))
    return _usable(store).list(consumer, status, options.count("limit", limit, largest=options.MOST_ROWS))


def show_message(store: Store, consumer: str, key: Key) -> Record | None:
    """The record of one message of status-table mode; None if there is none.

    Raises:
        InvalidKey: the key breaks the rules.
        InvalidOption, StoreUnreachable, TablesMissing: as `list_messages`.
    """
    return _usable(store).find(options.consumer(consumer), encode_key(key))


def retry(store: Store, consumer: str, key: Key, *, by: str | None = None) -> None:
    """Let a dead or failed message run again: it becomes failed, and its attempts are counted from zero.

    Finished steps are not called again; undone steps are, each with a new `step_key`.

    Args:
        store: as for `list_messages`.
        by: who decides, for the history; None is this process.

    Raises:
        MessageNotFound: there is no such message.
        WrongStatus: it is neither dead nor failed (for a halted one, call `resolve_step` first), or somebody
            has just changed it.
        InvalidKey, InvalidOption, StoreUnreachable, TablesMissing: as `show_message`.
    """
    record = _found(store, consumer, key, among=(Status.DEAD, Status.FAILED))
    _decide(store, record, "to be retried", by, status=Status.FAILED, steps=Steps(record.steps).anew())


def discard(store: Store, consumer: str, key: Key, *, by: str | None = None) -> None:
    """Drop a dead, halted or failed message: it becomes consumed, without a result, and never runs.

    The record stays, so that a later delivery is a `DUPLICATE`. No step is undone.

    Args, raises: as `retry`, but any halted message is accepted.
    """
    record = _found(store, consumer, key, among=_STOPPED)
    _decide(store, record, "discarded", by, status=Status.CONSUMED, resolved=True)


def release(store: Store, consumer: str, key: Key, *, by: str | None = None) -> None:
    """Take a message that is being consumed away from its handler. The attempt does not count.

    It becomes failed, so that the next delivery runs immediately; or halted, if a step that must not be
    repeated has begun. The handler may still be running: its outside calls go on until its next step or
    heartbeat.

    Args, raises: as `retry`; `WrongStatus` if the message is not consuming.
    """
    # Two writes: after the first one, the handler can neither begin nor end a step before the decision.
    record = _fenced(store, _found(store, consumer, key, among=(Status.CONSUMING,)))
    if record.pending_step is None:
        _decide(store, record, "released", by, status=Status.FAILED, started=-1)
    else:
        note = f"the outcome of step {record.pending_step!r} is unknown: released"
        _decide(store, record, note, by, status=Status.HALTED)


def resolve_step(
    store: Store,
    consumer: str,
    key: Key,
    step: str,
    outcome: Resolved,
    *,
    result: Any = None,
    by: str | None = None,
) -> None:
    """Record the outcome of the step for which a message is halted.

    The message becomes failed, and its attempts are counted from zero.

    Args:
        store, by: as for `retry`.
        step: the step's name, as a check against answering for another step.
        outcome: "done": no attempt calls the step again; "not_done": the next attempt does.
        result: the JSON value that a done step returned.

    Raises:
        MessageNotFound: there is no such message.
        WrongStatus: it is not halted, or halted for another step, or somebody has just changed it.
        InvalidResult: the result is not JSON, or too large.
        InvalidKey, InvalidOption, StoreUnreachable, TablesMissing: as `show_message`.
    """
    options.one_of("outcome", outcome, ("done", "not_done"))
    if outcome == "not_done" and result is not None:
        raise InvalidOption(f"result={result!r:.80}: expected None with outcome='not_done'")
    record = _found(store, consumer, key, among=(Status.HALTED,))
    if checked_name(step) != record.pending_step:
        raise WrongStatus(f"key={record.key!r}: it is halted for step {record.pending_step!r}, not {step!r}")
    steps = Steps(record.steps)
    if outcome == "done":
        steps = steps.done(step, result, has_undo=steps.has_undo(step))
    else:
        steps = steps.without(step)
    note = f"step {step!r}: {outcome.replace('_', ' ')}"
    _decide(store, record, note, by, status=Status.FAILED, steps=steps, resolved=True)


def _usable(store: Store) -> Store:
    if not isinstance(store, Store) or store.is_async:
        raise InvalidOption(f"store={store!r}: expected a synchronous SqlStore or RedisStore")
    return store


def _found(store: Store, consumer: str, key: Key, among: tuple[Status, ...]) -> Record:
    record = show_message(store, consumer, key)
    if record is None:
        raise MessageNotFound(
            f"consumer {consumer!r} has no message {encode_key(key)!r} in status-table mode"
        )
    if record.status not in among:
        halted = f" (for step {record.pending_step!r})" if record.status is Status.HALTED else ""
        found, needed = f"status is {record.status}{halted}", " or ".join(among)
        raise WrongStatus(f"key={record.key!r}: {found}; this needs {needed}")
    return record


def _fenced(store: Store, record: Record) -> Record:
    """The record, after its handler has lost the right to begin or end a step."""
    change = Change(token=record.token + 1, forget_after=_KEPT)
    if not store.write(HeldRecord(record.consumer, record.key, record.token), change, among=[record.status]):
        raise _changed(record)
    fenced = _found(store, record.consumer, record.key, among=(record.status,))
    if fenced.token != change.token:  # somebody has claimed it since
        raise _changed(record)
    return fenced


def _changed(record: Record) -> WrongStatus:
    return WrongStatus(f"key={record.key!r}: it has just been changed; look at it again")


def _decide(
    store: Store,
    record: Record,
    note: str,
    by: str | None,
    *,
    status: Status,
    steps: Steps | None = None,
    started: int = 0,
    resolved: bool = False,
) -> None:
    """Write a decision. With `steps` the message continues from these, and its attempts are counted from
    zero. A step without a recorded end stays, even if it has begun just now, unless the decision has
    `resolved` it."""
    operator = f"{socket.gethostname()}:{os.getpid()}" if by is None else by
    options.utf8("by", operator)
    change = Change(
        status=status,
        token=record.token + 1,
        started=started if steps is None else -record.attempts_started,
        finished=0 if steps is None else -record.attempts_finished,
        steps=None if steps is None else steps.text(),
        undos=None if steps is None else steps.undos,
        interruptions=None if steps is None else 0,
        pending_step="" if resolved else None,
        error=f"{note} by {operator}",
        history=remember(record, note, store.now(), by=operator),
        forget_after=_KEPT,
    )
    if not store.write(HeldRecord(record.consumer, record.key, record.token), change, among=[record.status]):
        raise _changed(record)
