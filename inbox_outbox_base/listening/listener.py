"""The listener, for synchronous code: messages run in threads."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from inbox_outbox_base.calls.signals import Doorbell, as_failure
from inbox_outbox_base.errors.inbox import InvalidOption

from .lanes import Batch, Job
from .listener_base import STOPPING, ListenerBase, caught, checked
from .outcome import Action, Decision, Decisions, Outcome

M = TypeVar("M")


class Listener(ListenerBase):
    """Takes batches of messages as a broker hands them over, and says what to tell the broker about each.

    It talks to no broker and no database itself: the handler looks into the inbox, and whoever fetched the
    messages acknowledges them. One listener may be shared by threads.

    Args:
        order: "each" decides each message by itself; "in_order" gives back what comes behind one that is not
            acknowledged, unless it has begun already.
        concurrency: how many messages run at once, in all calls together.
        key: a function of the message: of one key no two messages run at once, in all calls together, and
            those of one call run in their order. None, or a key that is None: the inbox alone sees to that.
        attempt: a function of the message: the broker's count of its deliveries, from 1, for the backoff.
        failures: a function of the message: how often it has failed before. `Outcome.is_failure` says of a
            decision whether to count it.
        max_attempts: a message that fails so often is a dead letter; needs `failures`. None: never.
        backoff: the delay of a message that failed and whose inbox does not know a better one.
        grace: how long running messages have once the listener is stopped, in seconds or as `timedelta`.
        too_old: what to do with a message that is older than the inbox's retention, so that nobody can know
            whether it was taken: "dead_letter", or "ack", which drops it.
        dead_letter: a function of a message and its decision that puts the message away. When it returns, the
            decision is to acknowledge; when it raises, to deliver again. A message may be put away twice.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    def decide(self, messages: Iterable[M], handler: Callable[[M], Outcome]) -> Decisions:
        """Run a batch, and return one decision for each message, in the batch's order.

        What the handler raises becomes a decision, and is logged. After `stop` the running messages have
        `grace` seconds. One that takes longer is to be delivered again, and its thread is left behind: what
        that still does the inbox will know at the next delivery, and the end of the process ends it.

        Args:
            messages: whatever the handler takes.
            handler: a function of a message that returns an `Outcome`; those that the inboxes decorate do.

        Raises:
            InvalidOption: the handler is no such function; nothing is decided.
            BaseException: what the handler raised, if it is no Exception (SystemExit), once the other running
                messages have ended; nothing is decided.
        """
        woken = Doorbell()
        batch = self._batch(messages, handler, woken.ring)
        if inspect.iscoroutinefunction(batch.handler):
            raise InvalidOption(f"handler={handler!r}: it is asynchronous, which is for AsyncListener")
        self._wakes.add(batch.wake)
        try:
            with self._lanes.lock:
                for job in batch.jobs:
                    self._lanes.add(job)
                begin = self._take()
            self._begin(begin)
            self._wait(batch, woken)
        finally:
            self._wakes.discard(batch.wake)
            with self._lanes.lock:
                batch.give_back("interrupted")
        if batch.interruption is not None:
            raise batch.interruption
        return batch.decisions

    def _wait(self, batch: Batch, woken: Doorbell) -> None:
        while True:
            if self.stopped:
                with self._lanes.lock:
                    batch.give_back(STOPPING)
            if batch.is_decided:
                return
            if not woken.wait(self._patience()):
                with self._lanes.lock:
                    for job in batch.running():
                        self._record(job, self._unfinished(job))

    def _begin(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            # A daemon, so that one that never ends does not keep the process from ending.
            threading.Thread(target=self._work, args=(job,), name="inbox listener", daemon=True).start()

    def _work(self, job: Job) -> None:
        """Run a job, and then those that may begin because it has ended."""
        jobs = [job]
        while jobs:
            job, *others = jobs
            self._begin(others)
            decision = job.context.run(self._settled, job)
            with self._lanes.lock:
                self._lanes.done(job)
                self._record(job, decision)
                jobs = self._take()

    def _settled(self, job: Job) -> Decision:
        try:
            return self._handle(job)
        except BaseException as error:  # noqa: BLE001 - `decide` raises it
            with self._lanes.lock:
                job.batch.interrupt(error)
            return Decision(Action.RETRY, reason="interrupted")

    def _handle(self, job: Job) -> Decision:
        outcome = self._run(job) if job.error is None else caught(job.error)
        decision = self._judge(job, outcome)
        if decision.action is not Action.DEAD_LETTER or self._dead_letter is None:
            return decision
        try:
            self._dead_letter(job.message, decision)
        except Exception as failure:  # noqa: BLE001 - becomes the message's decision
            return self._not_put_away(job, decision, failure)
        return self._put_away(decision)

    def _run(self, job: Job) -> Outcome:
        try:
            if (prepare := job.batch.taken_preparation()) is not None:
                prepare()
            outcome = job.batch.handler(job.message)
        except Exception as error:  # noqa: BLE001 - becomes the message's decision
            return caught(error)
        except asyncio.CancelledError as error:
            return caught(as_failure(error))
        return checked(outcome)
