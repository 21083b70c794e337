"""What the listeners whose messages run in threads share; they differ in how they wait for decisions."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from inbox_outbox_base.calls.signals import FAILURES, as_failure
from inbox_outbox_base.checks.options import done

from . import thread_pool
from .lanes import JobBatch, MessageJob
from .listener_base import STOPPING, ListenerBase, caught, checked
from .outcome import Action, Decision, Outcome

M = TypeVar("M")


class InThreads(ListenerBase):
    """Begins a batch; after a stop, ends what is left of it.

    A thread that has ended a message begins the next message itself.
    """

    def decide_here(self, message: M, handler: Callable[[M], Outcome]) -> Decision:
        """Run one message in the calling thread, at once, and return the decision about it.

        For frameworks that have threads or processes of their own and interrupt what takes too long. An
        exception of the handler becomes a decision, and is logged; `concurrency`, `key` and `stop` have no
        effect.

        Args:
            message: any object that the handler accepts.
            handler: as for `Listener.decide`.

        Raises:
            InvalidOption: the handler did not return an `Outcome`.
            UnsafeDatabase: before the first message, the handler's table cannot keep a promise.
        """
        (job,) = self._batch([message], handler, lambda: None).jobs
        job.has_begun = True
        decision = job.context.run(self._handle, job)
        self._record(job, decision)
        return decision

    def _add(self, batch: JobBatch) -> None:
        """Begin as many of the batch's messages as may run now; the others follow."""
        with self._lanes.lock:
            for job in batch.jobs:
                self._lanes.add(job)
            jobs = self._take()
        self._begin(jobs)

    def _is_decided(self, batch: JobBatch) -> bool:
        """Whether every message has its decision. After a stop, first give back those that have not begun."""
        if self.stopped:
            self._give_back(batch, STOPPING)
        return batch.is_decided

    def _give_back(self, batch: JobBatch, reason: str) -> None:
        with self._lanes.lock:
            batch.give_back(reason)

    def _leave_behind(self, batch: JobBatch) -> None:
        """Decide the messages that are still running."""
        with self._lanes.lock:
            for job in batch.running():
                self._record(job, self._unfinished(job))

    def _begin(self, jobs: Iterable[MessageJob]) -> None:
        for job in jobs:
            thread_pool.begin(partial(self._work, job))

    def _work(self, job: MessageJob) -> Callable[[], None]:
        return partial(self._ended, job, job.context.run(self._settled, job))

    def _ended(self, job: MessageJob, decision: Decision) -> None:
        with self._lanes.lock:
            self._lanes.done(job)
            self._record(job, decision)
            jobs = self._take()
        self._begin(jobs)

    def _settled(self, job: MessageJob) -> Decision:
        try:
            return self._handle(job)
        except BaseException as error:  # noqa: BLE001 - `decide` raises it
            with self._lanes.lock:
                job.batch.interrupt(error)
            return Decision(Action.RETRY, reason="interrupted")

    def _handle(self, job: MessageJob) -> Decision:
        outcome = self._run(job) if job.error is None else caught(job.error, job.recordings)
        decision = self._judge(job, outcome)
        if decision.action is not Action.DEAD_LETTER or self._dead_letter is None:
            return decision
        try:
            done("dead_letter", self._dead_letter(job.message, decision))
        except FAILURES as error:
            return self._dead_letter_failed(job, decision, as_failure(error))
        return self._dead_letter_stored(decision)

    def _run(self, job: MessageJob) -> Outcome:
        if (prepare := job.batch.take_preparation()) is not None:
            prepare()  # what it refuses ends the call: no message is to blame
        try:
            outcome = job.batch.handler(job.message)
        except FAILURES as error:
            for pause in job.recordings.asking():
                time.sleep(pause)
            return caught(as_failure(error), job.recordings)
        finally:
            job.recordings.end()
        return checked(outcome)
