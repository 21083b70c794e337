"""The listener for synchronous code: messages run in threads."""

import asyncio
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from inbox_outbox_base.calls import threads
from inbox_outbox_base.calls.signals import SignalSafeEvent, as_failure
from inbox_outbox_base.errors.inbox import InvalidOption

from .lanes import Job, JobBatch
from .listener_base import STOPPING, ListenerBase, caught, checked
from .outcome import Action, Decision, Decisions, Outcome

M = TypeVar("M")


class Listener(ListenerBase):
    """Runs batches of messages from a broker, and decides what to tell the broker about each.

    It does not talk to a broker or a database itself: the handler asks the inbox, and the code that fetched
    the messages acknowledges them. Threads can share one listener.

    Args:
        order: "each" decides each message separately; "in_order" gives back the messages behind an
            unacknowledged one, unless they have begun.
        concurrency: how many messages run at the same time, in all calls together.
        key: a function of the message: no two messages with the same key run at the same time, in all calls
            together, and those of one call run in order. None, or a key that is None: only the inbox prevents
            that.
        attempt: a function of the message: the broker's count of its deliveries, from 1, for the backoff.
        failures: a function of the message: how often it has failed before. `Outcome.is_failure` says whether
            to count a decision.
        max_attempts: a message becomes a dead letter when it has failed this often; needs `failures`. None:
            never.
        backoff: the delay of a failed message, unless its inbox knows a better one.
        grace: the time for running messages to finish after `stop`, in seconds or as `timedelta`.
        too_old: what to do with a message that is older than the inbox's retention, so that nobody can know
            whether it was taken: "dead_letter", or "ack", which drops it.
        dead_letter: a function of a message and its decision that stores the message. When it returns, the
            decision is to acknowledge; when it raises, to redeliver. A message may be stored twice.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    def decide(self, messages: Iterable[M], handler: Callable[[M], Outcome]) -> Decisions:
        """Run a batch, and return one decision for each message, in the batch's order.

        An exception of the handler becomes a decision, and is logged. After `stop` the running messages have
        `grace` seconds. One that takes longer is redelivered, and its thread is left behind until the process
        ends; at the next delivery the inbox knows what that thread did.

        Args:
            messages: any objects that the handler accepts.
            handler: a function of a message that returns an `Outcome`, such as one decorated by an inbox.

        Raises:
            InvalidOption: the handler is not such a function; nothing is decided.
            BaseException: an error of the handler that is not an Exception (SystemExit), raised once the
                other running messages have ended; nothing is decided.
        """
        woken = SignalSafeEvent()
        batch = self._batch(messages, handler, woken.set)
        if inspect.iscoroutinefunction(batch.handler):
            raise InvalidOption(f"handler={handler!r}: it is asynchronous; use AsyncListener")
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
                # Ctrl-C can end the wait: then nothing of the batch may begin afterwards.
                batch.give_back("interrupted")
        if batch.interruption is not None:
            raise batch.interruption
        return batch.decisions

    def _wait(self, batch: JobBatch, woken: SignalSafeEvent) -> None:
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
            threads.begin(partial(self._work, job))

    def _work(self, job: Job) -> Callable[[], None]:
        return partial(self._ended, job, job.context.run(self._settled, job))

    def _ended(self, job: Job, decision: Decision) -> None:
        with self._lanes.lock:
            self._lanes.done(job)
            self._record(job, decision)
            jobs = self._take()
        self._begin(jobs)

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
