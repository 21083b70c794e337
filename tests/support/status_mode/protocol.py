"""The protocol of status-table mode as a transition system: one message, some workers, every interleaving.

The functions that the stores call decide what may be claimed and which token a claim gets; the rest repeats
the stores' statements. It is a model of the protocol, not a replacement for a store.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import NamedTuple

from inbox import Record, Status, Verdict
from inbox._status_mode.stores.records import EPOCH, Judgement, judge, successor

from .stores import request

MAX_ATTEMPTS = 3
CLAIMS = 4
"""How many claims are granted in all: release and purge would let them go on for ever."""

ASKED = request(max_attempts=MAX_ATTEMPTS)


class Row(NamedTuple):
    """The stored row. `live` is whether the lease still holds, `pending` whether a step that must not be
    repeated has no recorded end."""

    status: Status
    token: int
    live: bool
    started: int
    finished: int
    pending: bool


class Worker(NamedTuple):
    """A worker that has no claim (`token` 0), has read a row that it may change, or has a claim."""

    token: int = 0
    seen: Row | None = None
    in_step: bool = False


class State(NamedTuple):
    """The whole state; workers are sorted, because their identity does not matter."""

    row: Row | None
    workers: tuple[Worker, ...]
    newest: int
    claims: int = 0
    purges: int = 0


class Step(NamedTuple):
    """Something that can happen; `wrote` is the token of a write that was accepted."""

    name: str
    after: State
    wrote: int | None = None


@dataclass(frozen=True)
class Protocol:
    """The rules; a test can leave one out to show that it is necessary."""

    fences: bool = True
    """A write repeats its token."""
    looks_again: bool = True
    """What changes a row that was looked at repeats what it has seen."""
    knows_steps: bool = True
    """And whether a step was pending."""
    judges: Callable[[Row, int], tuple[Judgement, int]] | None = None

    def start(self, workers: int) -> State:
        """The initial state."""
        return State(None, (Worker(),) * workers, 0)

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that can happen next."""
        row = state.row
        if row is not None and row.live:
            yield Step("the lease ends", state._replace(row=row._replace(live=False)))
        if row is not None and not row.live and not state.purges:
            yield Step("the row is purged", state._replace(row=None, purges=1))
        for number, worker in enumerate(state.workers):
            others = state.workers[:number] + state.workers[number + 1 :]
            for name, after, token, changed in self._of(state, worker):
                workers = tuple(sorted([*others, changed], key=repr))
                yield Step(name, after._replace(workers=workers), token)

    def _of(self, state: State, worker: Worker) -> Iterator[tuple[str, State, int | None, Worker]]:
        if worker.token:
            yield "a worker dies", state, None, Worker()
            yield from self._writes(state, worker)
        elif worker.seen is not None:
            yield "a claim is made", *self._change(state, worker.seen)
        elif state.claims < CLAIMS:
            yield "a worker looks", *self._look(state)

    def _look(self, state: State) -> tuple[State, int | None, Worker]:
        if state.row is None:
            token = _clock(state) + 1
            return _granted(state, Row(Status.CONSUMING, token, True, 1, 0, False))
        judgement, _ = (self.judges or judged)(state.row, _clock(state) + 1)
        may_change = judgement.bury is not None or judgement.verdict is Verdict.NEW
        return state, None, Worker(seen=state.row) if may_change else Worker()

    def _change(self, state: State, seen: Row) -> tuple[State, int | None, Worker]:
        row = state.row
        judgement, token = (self.judges or judged)(seen, _clock(state) + 1)
        if row is None or (self.looks_again and (row[:2] != seen[:2] or row.live)):
            return state, None, Worker()
        if self.knows_steps and row.pending != seen.pending:
            return state, None, Worker()
        if judgement.bury is not None:
            buried = row._replace(status=judgement.bury, token=token, live=False)
            return state._replace(row=buried, newest=token), None, Worker()
        taken = row._replace(status=Status.CONSUMING, token=token, live=True, started=row.started + 1)
        return _granted(state, taken)

    def _writes(self, state: State, worker: Worker) -> Iterator[tuple[str, State, int | None, Worker]]:
        row, running = state.row, worker._replace(in_step=False)
        if row is None or row.status is not Status.CONSUMING or (self.fences and row.token != worker.token):
            yield "a write is refused", state, None, Worker()
            return
        yield "a heartbeat", *_wrote(state, row._replace(live=True), worker, worker)
        if worker.in_step:
            ended = row._replace(live=True, pending=False)
            yield "a step ends", *_wrote(state, ended, worker, running)
            halted = row._replace(status=Status.HALTED, live=False, finished=row.finished + 1)
            yield "the step fails", *_wrote(state, halted, worker, Worker())
            return
        begun = row._replace(live=True, pending=True)
        yield "a step begins", *_wrote(state, begun, worker, worker._replace(in_step=True))
        over = row._replace(live=False, finished=row.finished + 1)
        last = Status.DEAD if row.started >= MAX_ATTEMPTS else Status.FAILED
        yield "complete", *_wrote(state, over._replace(status=Status.CONSUMED), worker, Worker())
        yield "fail", *_wrote(state, over._replace(status=last), worker, Worker())
        back = row._replace(status=Status.FAILED, live=False, started=row.started - 1)
        yield "release", *_wrote(state, back, worker, Worker())


def _clock(state: State) -> int:
    """Advance the store's clock, which otherwise stands still: no two claims happen in the same
    microsecond."""
    return state.claims + state.purges


def _granted(state: State, row: Row) -> tuple[State, int | None, Worker]:
    after = state._replace(row=row, newest=row.token, claims=state.claims + 1)
    return after, None, Worker(token=row.token)


def _wrote(state: State, row: Row, writer: Worker, after: Worker) -> tuple[State, int | None, Worker]:
    return state._replace(row=row), writer.token, after


@cache
def judged(row: Row, clock: int) -> tuple[Judgement, int]:
    """The decision of the stores' own rules on a row, and the token that a claim would get."""
    now = EPOCH + timedelta(microseconds=clock)
    until = now + timedelta(seconds=1 if row.live else -1) if row.status is Status.CONSUMING else None
    record = Record(
        consumer=ASKED.consumer,
        key=ASKED.key,
        status=row.status,
        token=row.token,
        claim=b"",
        owner="",
        lease_until=until,
        attempts_started=row.started,
        attempts_finished=row.finished,
        digest=None,
        payload=None,
        delivery=None,
        result=None,
        error="no",
        steps=None,
        history=None,
        pending_step="charge" if row.pending else None,
        undos=0,
        interruptions=0,
        created_at=now,
        updated_at=now,
    )
    judgement = judge(record, now, ASKED)
    return judgement, successor(record, now, ASKED, judgement)["token"]
