"""Which messages may run now, and what has been decided about them; it starts no thread or task itself."""

import asyncio
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from .outcome import Action, Decision, Decisions

BEHIND = "behind a message that was not acknowledged"


@dataclass(slots=True, eq=False)
class Job:
    """One message of a batch."""

    batch: "Batch"
    index: int
    message: Any
    key: Hashable | None = None
    """No two jobs with the same key run at once; None: nothing keeps it from running."""
    error: Exception | None = None
    """Why the message has no usable key."""
    context: Context = field(default_factory=copy_context)
    """The context variables of whoever brought the batch, which the handler sees as well."""
    has_begun: bool = False
    task: asyncio.Task[Decision] | None = None
    """What runs it, where that is a task."""
    decision: Decision | None = None


class Batch:
    """The messages of one call, and what has been decided about each."""

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
        """Let the call look again."""
        self.preparation: Callable[[], None] | None = None
        """What the first message does before its handler: a database that hangs there holds up no stop."""
        self.interruption: BaseException | None = None
        """What ends the call instead of decisions."""
        self.jobs = [Job(self, *numbered) for numbered in enumerate(messages)]
        self._in_order = in_order
        self._undecided = len(self.jobs)

    def taken_preparation(self) -> Callable[[], None] | None:
        """What is to be prepared, if nobody has begun to."""
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

    def record(self, job: Job, decision: Decision) -> bool:
        """Decide a message; False if it had its decision already, which stays.

        In order, one that is not acknowledged gives back those behind it that have not begun, for no earlier
        delivery than its own.
        """
        if job.decision is not None:
            return False
        job.decision = decision
        self._undecided -= 1
        if self._in_order and decision.action is not Action.ACK:
            self._give_back(self.jobs[job.index + 1 :], BEHIND, decision.delay)
        return True

    def give_back(self, reason: str) -> None:
        """Decide all messages that have not begun: they never will, and may come again at once."""
        self._give_back(self.jobs, reason)

    def _give_back(self, jobs: Iterable[Job], reason: str, delay: float = 0.0) -> None:
        for job in jobs:
            if job.decision is None and not job.has_begun:
                job.decision = Decision(Action.RETRY, delay, reason=reason)
                self._undecided -= 1

    def running(self) -> Iterator[Job]:
        """The messages that have begun and are not decided."""
        return (job for job in self.jobs if job.has_begun and job.decision is None)

    def interrupt(self, error: BaseException) -> None:
        """Something came up that is no message's fault: begin nothing more, and let the call raise it."""
        self.interruption = error
        self.give_back("interrupted")


class Lanes:
    """Lets jobs begin in the order in which they came: so many at once, and of each key one.

    A job that waits for its key holds up nobody else. Threads that share the lanes hold `lock` while they use
    them, or a batch whose jobs are in them.
    """

    def __init__(self, limit: int) -> None:
        self.lock = threading.Lock()
        self._limit = limit
        self._running = 0
        self._numbers = itertools.count()
        self._ready: list[tuple[int, Job]] = []
        self._behind: dict[Hashable, deque[tuple[int, Job]]] = {}

    def add(self, job: Job) -> None:
        """Let it begin when its turn comes."""
        place = (next(self._numbers), job)
        if job.key is None:
            heapq.heappush(self._ready, place)
        elif job.key in self._behind:
            self._behind[job.key].append(place)
        else:
            self._behind[job.key] = deque()
            heapq.heappush(self._ready, place)

    def take(self) -> list[Job]:
        """The jobs that begin now; hand each to `done` when it has ended."""
        taken = []
        while self._ready and self._running < self._limit:
            _, job = heapq.heappop(self._ready)
            if job.decision is None:
                job.has_begun = True
                self._running += 1
                taken.append(job)
            else:
                self._free(job.key)
        return taken

    def done(self, job: Job) -> None:
        """It has ended: its key and its place are free."""
        self._running -= 1
        self._free(job.key)

    def _free(self, key: Hashable | None) -> None:
        if key is None:
            return
        if self._behind[key]:
            heapq.heappush(self._ready, self._behind[key].popleft())
        else:
            del self._behind[key]
