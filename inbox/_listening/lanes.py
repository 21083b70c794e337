"""Which messages can run now, and the decisions about them; nothing here starts a thread or a task."""

import asyncio
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from .counting import Recordings
from .outcome import Action, Decision, Decisions

BEHIND = "behind a message that was not acknowledged"


@dataclass(slots=True, eq=False)
class MessageJob:
    """One message of a batch."""

    batch: "JobBatch"
    index: int
    message: Any
    key: Hashable | None = None
    """Jobs with the same key never run at the same time; a job without a key (None) waits for no other."""
    error: Exception | None = None
    """Why the message has no usable key."""
    context: Context = field(default_factory=copy_context)
    """The context variables of the caller that brought the batch; the handler sees them as well."""
    recordings: Recordings = field(default_factory=Recordings)
    has_begun: bool = False
    task: asyncio.Task[Decision] | None = None
    """The task that runs the message, if a task does."""
    decision: Decision | None = None


class JobBatch:
    """The messages of one call, and the decision about each."""

    def __init__(
        self,
        messages: Iterable[Any],
        handler: Callable[[Any], Any],
        *,
        in_order: bool,
        wake: Callable[[], Any],
    ) -> None:
        self.handler = handler
        self.wake = wake
        """Wakes the call, which then looks again."""
        self.preparation: Callable[[], None] | None = None
        """Runs in the first message, before its handler: a database that hangs there does not block a
        stop."""
        self.counts: Callable[[Decision], object] | None = None
        """Called with each decision about a message that has begun."""
        self.interruption: BaseException | None = None
        """The error that ends the call instead of decisions."""
        self.jobs = [MessageJob(self, *numbered) for numbered in enumerate(messages)]
        self._in_order = in_order
        self._undecided = len(self.jobs)

    def take_preparation(self) -> Callable[[], None] | None:
        """The preparation, if nobody has begun it."""
        preparation, self.preparation = self.preparation, None
        return preparation

    @property
    def is_decided(self) -> bool:
        """Whether every message has its decision."""
        return self._undecided == 0

    @property
    def decisions(self) -> Decisions:
        """One for each message."""
        return Decisions(job.decision for job in self.jobs if job.decision is not None)

    def record(self, job: MessageJob, decision: Decision) -> bool:
        """Decide a message. Return False if it was decided already: then that decision stays.

        With "in_order", an unacknowledged message gives back the later messages that have not begun; they are
        redelivered no earlier than it.
        """
        if job.decision is not None:
            return False
        job.decision = decision
        self._undecided -= 1
        if self._in_order and decision.action is not Action.ACK:
            self._give_back(self.jobs[job.index + 1 :], BEHIND, decision.delay)
        return True

    def give_back(self, reason: str) -> None:
        """Decide all messages that have not begun: they never will, and can be redelivered immediately."""
        self._give_back(self.jobs, reason)

    def _give_back(self, jobs: Iterable[MessageJob], reason: str, delay: float = 0.0) -> None:
        for job in jobs:
            if job.decision is None and not job.has_begun:
                job.decision = Decision(Action.RETRY, delay, reason=reason)
                self._undecided -= 1

    def running(self) -> Iterator[MessageJob]:
        """The messages that have begun and are not decided."""
        return (job for job in self.jobs if job.has_begun and job.decision is None)

    def interrupt(self, error: BaseException) -> None:
        """No message is to blame for this error: begin nothing more, and let the call raise the error."""
        self.interruption = error
        self.give_back("interrupted")


class KeyLanes:
    """Starts jobs in the order of their arrival: at most `limit` at the same time, and one of each key.

    A job that waits for its key blocks no other key. Threads that share the lanes hold `lock` while they use
    the lanes, or a batch that has jobs in them.
    """

    def __init__(self, limit: int) -> None:
        self.lock = threading.Lock()
        self._limit = limit
        self._running = 0
        self._numbers = itertools.count()
        self._ready: list[tuple[int, MessageJob]] = []
        self._behind: dict[Hashable, deque[tuple[int, MessageJob]]] = {}

    def add(self, job: MessageJob) -> None:
        """Let the job begin when its turn comes."""
        place = (next(self._numbers), job)
        if job.key is None:
            heapq.heappush(self._ready, place)
        elif job.key in self._behind:
            self._behind[job.key].append(place)
        else:
            # The first job of its key: the empty queue marks the key as busy for later jobs.
            self._behind[job.key] = deque()
            heapq.heappush(self._ready, place)

    def take(self) -> list[MessageJob]:
        """The jobs that begin now; pass each to `done` when it has ended."""
        taken = []
        while self._ready and self._running < self._limit:
            _, job = heapq.heappop(self._ready)
            if job.decision is None:
                job.has_begun = True
                self._running += 1
                taken.append(job)
            else:  # given back while it waited: it never begins, and frees its key
                self._free(job.key)
        return taken

    def done(self, job: MessageJob) -> None:
        """The job has ended: free its key and its place."""
        self._running -= 1
        self._free(job.key)

    def _free(self, key: Hashable | None) -> None:
        if key is None:
            return
        if self._behind[key]:
            # The job keeps its number, so it goes before ready jobs that came later.
            heapq.heappush(self._ready, self._behind[key].popleft())
        else:
            del self._behind[key]
