"""Writes operators' decisions about messages of status-table mode.

Each is a conditional write: it checks the token and the status that were seen, and changes the token. In a
database it commits together with the row that stores the decision; on Redis, the message's history has who
decided and why.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import compress
from typing import Any

from sqlalchemy import Connection

from inbox._status_mode.steps import Steps
from inbox._status_mode.stores import Change, HeldRecord, Record, SqlStore, Status, Store, remember
from inbox_outbox_base.checks import deciding
from inbox_outbox_base.errors.inbox import InvalidOption, WrongStatus
from inbox_outbox_base.tables.inbox import tables
from inbox_outbox_base.transactions.recording import Recording

from .delivering import Redelivery

KEPT = timedelta(days=365).total_seconds()
"""How long Redis keeps an operator's change: the inbox's own retention is not known here, and a record
forgotten too early would run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a decision makes of a message.

    Attributes:
        note: what is done, for the error and the history.
        steps: if given, the message continues from these, and its attempts are counted from zero.
        started: how many attempts to add to the started ones.
        resolved: whether a step without a recorded end has none any more. Otherwise it stays, even if it has
            begun just now.
    """

    note: str
    status: Status
    steps: Steps | None = None
    started: int = 0
    resolved: bool = False


def recording(store: Store, action: str, by: str | None, why: str | None, **what: Any) -> Recording:
    """How a call is stored; checks who decides and why.

    Raises:
        InvalidOption: one of the two is invalid.
    """
    table = store.tables.decision if isinstance(store, SqlStore) else tables().decision
    return Recording(table, f"inbox.{action}", deciding.operator(by), deciding.reason("why", why), what)


def usable(store: Store) -> Store:
    """A synchronous store.

    Raises:
        InvalidOption: not one.
    """
    if not isinstance(store, Store) or store.is_async:
        raise InvalidOption(f"store={store!r}: expected a synchronous SqlStore or RedisStore")
    return store


def retried(record: Record) -> Plan:
    """Let a message run again."""
    return Plan(note="to be retried", status=Status.FAILED, steps=Steps(record.steps).anew())


def discarded(record: Record) -> Plan:
    """Let a message never run again."""
    return Plan(note="discarded", status=Status.CONSUMED, resolved=True)


def released(record: Record) -> Plan:
    """Take a message, which was fenced, away from its handler."""
    if record.pending_step is None:
        return Plan(note="released", status=Status.FAILED, started=-1)
    note = f"the outcome of step {record.pending_step!r} is unknown: released"
    return Plan(note=note, status=Status.HALTED)


def fence(store: Store, record: Record) -> Record | None:
    """The record of a message that is being consumed, after its handler has lost the right to begin or end a
    step; None if it has changed since it was read.

    Without this, the handler could do so between the look at its steps and the decision."""
    change = Change(token=record.token + 1, forget_after=KEPT)
    if not store.write(HeldRecord(record.consumer, record.key, record.token), change, among=[record.status]):
        return None
    fenced = store.find(record.consumer, record.key)
    is_ours = fenced is not None and (fenced.token, fenced.status) == (change.token, record.status)
    return fenced if is_ours else None  # else somebody has claimed it since


def write(
    store: Store, plans: Sequence[tuple[Record, Plan]], note: Recording, again: Redelivery | None = None
) -> list[bool]:
    """Write these decisions, in a database in one transaction, and publish in it what is to be delivered
    again; for each, return whether the message was still as it was read."""
    if not plans:
        return []
    now = store.now()
    writes = [(_held(each), _change(each, plan, note, now), [each.status]) for each, plan in plans]
    if not isinstance(store, SqlStore):
        return [store.write(*each) for each in writes]

    def together(connection: Connection) -> list[bool]:
        written = [store.write_on(connection, *each) for each in writes]
        if again is not None:
            again.publish(connection, compress((record for record, _ in plans), written))
        note.note(connection, sum(written))
        return written

    return store.transact(note.once(together))


def changed(record: Record) -> WrongStatus:
    """Somebody else was faster."""
    return WrongStatus(f"key={record.key!r}: it has just been changed; look at it again")


def _held(record: Record) -> HeldRecord:
    return HeldRecord(record.consumer, record.key, record.token)


def _change(record: Record, plan: Plan, note: Recording, now: Any) -> Change:
    steps, reason = plan.steps, "" if note.why is None else f": {note.why}"
    return Change(
        status=plan.status,
        token=record.token + 1,
        started=plan.started if steps is None else -record.attempts_started,
        finished=0 if steps is None else -record.attempts_finished,
        steps=None if steps is None else steps.text(),
        undos=None if steps is None else steps.undos,
        interruptions=None if steps is None else 0,
        pending_step="" if plan.resolved else None,
        error=f"{plan.note} by {note.by}{reason}",
        history=remember(record, f"{plan.note}{reason}", now, by=note.by),
        forget_after=KEPT,
    )
