"""The record of a message, requests to a store, and the rules that every store applies. Pure."""

import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from inbox_outbox_base.checks.keys import is_mismatch
from inbox_outbox_base.monitoring.events import LONGEST_ERROR
from inbox_outbox_base.transactions.declaring import Declaration
from inbox_outbox_base.words.incoming import Status, Verdict

UNDO_ATTEMPTS = 3
"""Extra attempts after `max_attempts`, if finished steps must still be undone."""

NEVER_ENDED = "the attempt did not end within its lease"
USED_UP = "its attempts are used up"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DRAWN = 1_000_000
"""How many tokens a drawn one is chosen from."""
_SAME_INSTANT = 1_000
"""A clock that is behind a token by fewer microseconds has not gone back: SQLite's has milliseconds."""

LONGEST_HISTORY = 20
"""The most attempts in the history; the oldest are dropped first."""


@dataclass(slots=True, kw_only=True)  # made for every message, and frozen costs three times as much
class Request:
    """One attempt to claim one message.

    Attributes:
        claim: 16 random bytes; an attempt recognises its own row by them after a lost answer.
        lease: seconds.
        payload, delivery: what a dead letter keeps; None keeps nothing.
        retention, dead_retention: seconds; for stores that expire records.
        policy: the inbox's policy, for stores that are purged; None compares nothing.
        is_remembered: whether the inbox wants to know how long the record is kept.
    """

    consumer: str
    key: str
    claim: bytes
    owner: str
    lease: float
    max_attempts: int
    digest: bytes | None
    payload: bytes | None
    retention: float
    dead_retention: float
    policy: Declaration | None = None
    is_remembered: bool = False
    delivery: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record of one message; times are the store's.

    Attributes:
        delivery: a JSON object: with what the payload came, if the whole message is kept.
        steps: a JSON object: the steps by name, in the order in which they began.
        history: a JSON array of the attempts that did not succeed, and of operators' decisions.
        pending_step: the step that began, must not be repeated, and has no recorded end.
        undos: how many finished steps have something to undo.
        interruptions: how often an attempt was given back because its handler was interrupted.
    """

    consumer: str
    key: str
    status: Status
    token: int
    claim: bytes
    owner: str
    lease_until: datetime | None
    attempts_started: int
    attempts_finished: int
    digest: bytes | None
    payload: bytes | None
    delivery: str | None
    result: str | None
    error: str | None
    steps: str | None
    history: str | None
    pending_step: str | None
    undos: int
    interruptions: int
    created_at: datetime
    updated_at: datetime


class ClaimAnswer:
    """A store's answer to a claim.

    Attributes:
        verdict: the answer.
        now: the store's clock.
        token: the record's token.
        kept: by the stored policy, for how many seconds the record is kept; 0 if it was not asked.
    """

    __slots__ = ("_record", "_request", "kept", "now", "token", "verdict")

    def __init__(self, *, verdict: Verdict, record: Record, now: datetime) -> None:
        self.verdict = verdict
        self.now = now
        self.kept = 0.0
        self.token = record.token
        self._record: Record | None = record
        self._request: Request | None = None

    @classmethod
    def first(cls, request: Request, token: int, now: datetime) -> "ClaimAnswer":
        """The answer to the first claim of a message. Its record is made only on demand, because it is rarely
        needed and costs more than the rest."""
        answer = cls.__new__(cls)
        answer.verdict, answer.now, answer.token, answer.kept = Verdict.NEW, now, token, 0.0
        answer._record, answer._request = None, request  # noqa: SLF001 - its own
        return answer

    @property
    def is_first(self) -> bool:
        """Whether nobody had claimed the message before."""
        return self._request is not None

    @property
    def record(self) -> Record:
        """The record as it is after the claim."""
        if self._record is None:
            assert self._request is not None  # noqa: S101 - one of them is there
            self._record = new_record(self._request, self.token, self.now)
        return self._record

    @property
    def lease_left(self) -> timedelta:
        """How much time the current holder's lease has left."""
        until = self.record.lease_until
        return timedelta() if until is None else max(timedelta(), until - self.now)


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """What every write of a claim repeats: nobody else ever has this token for this key."""

    consumer: str
    key: str
    token: int


@dataclass(slots=True, kw_only=True)  # as `Request`
class Change:
    """What to write; None leaves a field as it is.

    Attributes:
        token: a new token; writes with the old one are rejected.
        claim: a new random value, which tells the state of the steps that is written from every other one.
        expects: the write is rejected unless the record's claim is one of these (or there are none): it would
            overwrite steps that the writer does not know.
        lease: seconds from now, by the store's clock.
        finished: how many attempts to add to the finished ones.
        started: how many attempts to add to the started ones (or, if negative, to take away).
        pending_step: a name; the empty text means that there is none.
        forget_after: seconds; for stores that expire records.
    """

    status: Status | None = None
    token: int | None = None
    claim: bytes | None = None
    expects: tuple[bytes, ...] = ()
    lease: float | None = None
    finished: int = 0
    started: int = 0
    result: str | None = None
    error: str | None = None
    payload: bytes | None = None
    delivery: str | None = None
    steps: str | None = None
    history: str | None = None
    pending_step: str | None = None
    undos: int | None = None
    interruptions: int | None = None
    forget_after: float

    def fields(self) -> dict[str, Any]:
        """The columns to write and their values; None empties a column. Lease and attempts are not among
        them, because a store computes them."""
        names = ("token", "claim", "result", "error", "steps", "history", "undos", "interruptions")
        values = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.payload is not None or self.delivery is not None:  # parts of one message
            values |= {"payload": self.payload, "delivery": self.delivery}
        if self.status is not None:
            values["status"] = self.status.value
        if self.pending_step is not None:
            values["pending_step"] = self.pending_step or None
        return values


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a claim may do with a record.

    Attributes:
        verdict: the answer; `NEW` means: take the message over.
        bury: the status to write first, because this claim found that it applies.
    """

    verdict: Verdict
    bury: Status | None = None


def judge(record: Record, now: datetime, request: Request) -> Judgement:
    """The rules for taking over an existing record, the same for every store."""
    # First: the fate of another payload says nothing about this payload.
    if is_mismatch(request.digest, record.digest):
        return Judgement(Verdict.MISMATCH)
    if record.status in _SETTLED:
        return Judgement(_SETTLED[record.status])
    if record.lease_until is not None and record.lease_until > now:
        return Judgement(Verdict.IN_FLIGHT)
    # The holder disappeared during a step that must not be repeated.
    if record.pending_step is not None:
        return Judgement(Verdict.HALTED, bury=Status.HALTED)
    # Attempts beyond `max_attempts` can only undo finished steps.
    extra = UNDO_ATTEMPTS if record.undos else 0
    if record.attempts_started >= request.max_attempts + extra:
        return Judgement(Verdict.DEAD, bury=Status.DEAD)
    return Judgement(Verdict.NEW)


def new_record(request: Request, token: int, now: datetime) -> Record:
    """The record of a message that nobody had claimed before."""
    return Record(
        consumer=request.consumer,
        key=request.key,
        status=Status.CONSUMING,
        token=token,
        claim=request.claim,
        owner=request.owner,
        lease_until=now + timedelta(seconds=request.lease),
        attempts_started=1,
        attempts_finished=0,
        digest=request.digest,
        payload=None,
        delivery=None,
        result=None,
        error=None,
        steps=None,
        history=None,
        pending_step=None,
        undos=0,
        interruptions=0,
        created_at=now,
        updated_at=now,
    )


def is_ours(record: Record, request: Request) -> bool:
    """Whether this same claim has taken the message: just now, or earlier, if that answer was lost."""
    return record.claim == request.claim and record.status is Status.CONSUMING


def successor(record: Record, now: datetime, request: Request, judgement: Judgement) -> dict[str, Any]:
    """The fields to write when a claim takes over or buries a record that nobody holds. The record gets a new
    token in both cases, so that a former holder does not mistake the record for its own."""
    token, history = _next_token(record.token, now), record.history
    # The holder recorded no end, so its attempt is not in the history yet.
    if record.status is Status.CONSUMING:
        history = remember(record, NEVER_ENDED)
    if judgement.bury is not None:
        error = NEVER_ENDED if record.status is Status.CONSUMING else record.error or USED_UP
        is_kept = record.payload is not None or record.delivery is not None
        kept = record if is_kept else request
        fields = {
            "status": judgement.bury,
            "error": error,
            "payload": kept.payload,
            "delivery": kept.delivery,
        }
        return fields | {"token": token, "history": history}
    return {
        "token": token,
        "claim": request.claim,
        "owner": request.owner,
        "digest": record.digest if request.digest is None else request.digest,
        "history": history,
    }


def first_token(now: datetime) -> int:
    """A key's first token: microseconds since 1970 by the store's clock. Each later token is larger by at
    least one; after the record was purged, the next token is the clock again."""
    return (now - EPOCH) // timedelta(microseconds=1)


def _next_token(last: int, now: datetime) -> int:
    """It grows even if the clock has gone back. Then it is drawn: if a failover has lost a claim, the next
    one must not get the token that the lost one's handler still has."""
    clock = first_token(now)
    if clock > last:
        return clock
    return last + 1 + (secrets.randbelow(_DRAWN) if last - clock >= _SAME_INSTANT else 0)


def remember(record: Record, error: str, at: datetime | None = None, *, by: str | None = None) -> str:
    """The history of a record plus its last attempt, or an operator's decision.

    Args:
        error: how the attempt ended, or what was done.
        at: when, by the store's clock; None means the end of the lease.
        by: the operator; None means the attempt's owner.
    """
    ended = at or record.lease_until
    entry = {
        "attempt": record.attempts_started,
        "owner": record.owner if by is None else by,
        "ended": ended.isoformat() if ended else None,
        "error": error[:LONGEST_ERROR],
    }
    entries = [*json.loads(record.history or "[]"), entry]
    return json.dumps(entries[-LONGEST_HISTORY:], ensure_ascii=False)


_SETTLED = {
    Status.CONSUMED: Verdict.DUPLICATE,
    Status.DEAD: Verdict.DEAD,
    Status.HALTED: Verdict.HALTED,
}
