"""Operators' commands for messages of status-table mode: inspect them, and decide.

Every decision is a conditional write, based on the token and the status that the operator saw, and changes
the token. Of an operator and a worker, or of two operators, one wins, and every later write of the message's
former holder raises `LeaseLost`. A message that can run again does so with its next delivery, which
`retry(..., deliver=True)` brings about.
"""

from typing import Any, Literal

from inbox._status_mode.steps import Steps, checked_name
from inbox._status_mode.stores import Record, Status, Store
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.keys import Key, encode_key
from inbox_outbox_base.errors.inbox import InvalidOption, MessageNotFound, WrongStatus
from inbox_outbox_base.transactions.recording import Recording
from inbox_outbox_base.words.deciding import Listing

from .deciding import Plan, changed, discarded, fence, recording, released, retried, usable, write
from .delivering import Redelivery, redelivery
from .seeing import RETRIED, STOPPED, checked_filter, key_and_error, pack

Resolved = Literal["done", "not_done"]


def list_messages(
    store: Store,
    *,
    consumer: str | None = None,
    status: Status | str | None = None,
    key: Key | None = None,
    error: str | None = None,
    limit: int = 100,
) -> Listing[Record]:
    """Messages of status-table mode, the least recently changed first.

    Args:
        store: a `SqlStore` or a `RedisStore`, not an asynchronous one. Redis has no index of statuses: there
            every record is read.
        consumer: whose messages; None: those of all consumers.
        status: only messages in this status; None is any.
        key: only messages of this key; None is any.
        error: only messages whose last error contains this text, 1 to 1,000 characters; case matters.
        limit: the most messages to return.

    Returns:
        A list, whose `seen` names its first 10,000 messages for `retry_all`, `discard_all` and `release_all`:
        these then take what was listed here, and nothing that came or changed since.

    Raises:
        InvalidOption: an argument cannot be used.
        InvalidKey: the key breaks the rules.
        StoreUnreachable: the store does not answer.
        TablesMissing: the tables do not exist.
    """
    filters = checked_filter(consumer, key, error)
    if status is not None:
        status = Status(options.one_of("status", status, [*Status]))
    options.count("limit", limit, largest=options.MOST_ROWS)
    found = usable(store).list(filters.get("consumer"), status, limit, *key_and_error(filters))
    return Listing(found, lambda: pack(found))


def show_message(store: Store, consumer: str, key: Key) -> Record | None:
    """The record of one message of status-table mode; None if there is none.

    Raises:
        InvalidKey: the key breaks the rules.
        InvalidOption, StoreUnreachable, TablesMissing: as `list_messages`.
    """
    return usable(store).find(options.consumer(consumer), encode_key(key))


def retry(
    store: Store,
    consumer: str,
    key: Key,
    *,
    deliver: bool = False,
    to: str | None = None,
    by: str | None = None,
    why: str | None = None,
) -> None:
    """Let a dead or failed message run again: it becomes failed, and its attempts are counted from zero.

    Finished steps are not called again; undone steps are, each with a new `step_key`.

    With `deliver`, the message is published again in the same transaction, through the outbox of the same
    database: with its payload, key and headers, and a header with its id, so that the consumers of this
    project take it for the message that it is. Every consumer of the topic gets it.

    Args:
        store: as for `list_messages`.
        consumer: whose message.
        key: the message's key.
        deliver: whether to publish it again; its inbox needs `keep_payload=True`.
        to: with `deliver`, the topic; None is the one from which the message came.
        by: who decides, 1 to 255 bytes of UTF-8; None is this host and process.
        why: the reason, 1 to 1,000 characters, if you want to store one.

    Raises:
        MessageNotFound: there is no such message.
        WrongStatus: it is neither dead nor failed (for a halted one, call `resolve_step` first), or somebody
            has just changed it.
        InvalidOption: an argument cannot be used; or with `deliver`, the store is Redis, the record does not
            keep the message, or the outbox cannot take it.
        TablesMissing: the tables do not exist; with `deliver`, those of an outbox.
        InvalidKey, StoreUnreachable: as `show_message`.
    """
    note = recording(store, "retry", by, why)
    again = redelivery(usable(store), deliver, to)
    record = _found(store, consumer, key, among=RETRIED)
    if again is not None:
        again.check(record)
    _decide(store, record, retried(record), note, again)


def discard(store: Store, consumer: str, key: Key, *, by: str | None = None, why: str | None = None) -> None:
    """Drop a dead, halted or failed message: it becomes consumed, without a result, and never runs.

    The record stays, so that a later delivery is a `DUPLICATE`. No step is undone.

    Args:
        store: as for `list_messages`.
        consumer: whose message.
        key: the message's key.
        by: who decides, as for `retry`.
        why: the reason, as for `retry`.

    Raises as `retry`, but any halted message is accepted.
    """
    note = recording(store, "discard", by, why)
    record = _found(store, consumer, key, among=STOPPED)
    _decide(store, record, discarded(record), note)


def release(store: Store, consumer: str, key: Key, *, by: str | None = None, why: str | None = None) -> None:
    """Take a message that is being consumed away from its handler. The attempt does not count.

    It becomes failed, so that the next delivery runs immediately; or halted, if a step that must not be
    repeated has begun. The handler may still be running: its outside calls go on until its next step or
    heartbeat.

    Args:
        store: as for `list_messages`.
        consumer: whose message.
        key: the message's key.
        by: who decides, as for `retry`.
        why: the reason, as for `retry`.

    Raises as `retry`; `WrongStatus` if the message is not consuming.
    """
    note = recording(store, "release", by, why)
    found = _found(store, consumer, key, among=(Status.CONSUMING,))
    record = fence(store, found)
    if record is None:
        raise changed(found)
    _decide(store, record, released(record), note)


def resolve_step(
    store: Store,
    consumer: str,
    key: Key,
    step: str,
    outcome: Resolved,
    *,
    result: Any = None,
    by: str | None = None,
    why: str | None = None,
) -> None:
    """Record the outcome of the step for which a message is halted.

    The message becomes failed, and its attempts are counted from zero.

    Args:
        store: as for `list_messages`.
        consumer: whose message.
        key: the message's key.
        step: the step's name, as a check against answering for another step.
        outcome: "done": no attempt calls the step again; "not_done": the next attempt does.
        result: the JSON value that a done step returned.
        by: who decides, as for `retry`.
        why: the reason, as for `retry`.

    Raises:
        MessageNotFound: there is no such message.
        WrongStatus: it is not halted, or halted for another step, or somebody has just changed it.
        InvalidResult: the result is not JSON, or too large.
        InvalidKey, InvalidOption, StoreUnreachable, TablesMissing: as `show_message`.
    """
    options.one_of("outcome", outcome, ("done", "not_done"))
    if outcome == "not_done" and result is not None:
        raise InvalidOption(f"result={result!r:.80}: expected None with outcome='not_done'")
    answer = recording(store, "resolve_step", by, why)
    record = _found(store, consumer, key, among=(Status.HALTED,))
    if checked_name(step) != record.pending_step:
        raise WrongStatus(f"key={record.key!r}: it is halted for step {record.pending_step!r}, not {step!r}")
    steps = Steps(record.steps)
    if outcome == "done":
        steps = steps.done(step, result, has_undo=steps.has_undo(step))
    else:
        steps = steps.without(step)
    note = f"step {step!r}: {outcome.replace('_', ' ')}"
    plan = Plan(note=note, status=Status.FAILED, steps=steps, resolved=True)
    _decide(store, record, plan, answer)


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


def _decide(
    store: Store, record: Record, plan: Plan, note: Recording, again: Redelivery | None = None
) -> None:
    note.filter = {"consumer": record.consumer, "key": record.key, "status": record.status.value}
    if plan.resolved and record.pending_step is not None:
        note.filter = {**note.filter, "step": record.pending_step}
    if again is not None:
        note.filter = {**note.filter, **again.told}
    if not all(write(store, [(record, plan)], note, again)):
        raise changed(record)
