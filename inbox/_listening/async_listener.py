"""The listener for asynchronous code: messages run in tasks of one event loop."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from inbox_outbox_base.calls.async_calls import run
from inbox_outbox_base.calls.signals import FAILURES, as_failure
from inbox_outbox_base.errors.inbox import InvalidOption

from .lanes import JobBatch, MessageJob
from .listener_base import STOPPING, ListenerBase, caught, checked
from .outcome import Action, Decision, Decisions, Outcome, may_be_asynchronous
from .traced import traced_async

M = TypeVar("M")

_CLEAN_UP = 5.0
"""Seconds that cancelled messages have to roll back or to release their claims."""


class AsyncListener(ListenerBase):
    """`Listener` for asynchronous handlers, which run as tasks instead of threads.

    Arguments, guarantees and errors are those of `Listener`, but `dead_letter` is an asynchronous function. A
    listener belongs to one event loop; `stop` may be called from anywhere.
    """

    _traced = staticmethod(traced_async)

    async def decide(self, messages: Iterable[M], handler: Callable[[M], Awaitable[Outcome]]) -> Decisions:
        """Run a batch, and return one decision for each message, in the batch's order.

        An exception of the handler becomes a decision, and is logged. After `stop` the running messages have
        `grace` seconds. A message that takes longer is redelivered; its handler is cancelled, which releases
        the claim or rolls back the transaction. If the handler does not end within five more seconds, it is
        left behind. When `decide` itself is cancelled, it cancels its running messages in the same way.

        Args:
            messages: any objects that the handler accepts.
            handler: an asynchronous function of a message that returns an `Outcome`, or a plain function that
                returns an awaitable of one. Code that does not wait blocks all messages of the loop.

        Raises:
            InvalidOption: the handler is not such a function; nothing is decided.
            UnsafeDatabase: before the first message, the handler's table cannot keep a promise; nothing is
                decided.
        """
        if not may_be_asynchronous(handler):
            raise InvalidOption(f"handler={handler!r}: expected an asynchronous function; see Listener")
        woken = asyncio.Event()
        batch = self._batch(messages, handler, woken.set)
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)  # `stop` uses it
        self._wakes.add(wake)
        try:
            for job in batch.jobs:
                self._lanes.add(job)
            self._begin()
            await self._wait(batch, woken)
        except asyncio.CancelledError:
            batch.give_back("interrupted")
            await self._cancel(batch)
            raise
        finally:
            self._wakes.discard(wake)
        if batch.interruption is not None:
            raise batch.interruption
        return batch.decisions

    async def _wait(self, batch: JobBatch, woken: asyncio.Event) -> None:
        while True:
            if self.stopped:
                batch.give_back(STOPPING)
            if batch.is_decided:
                return
            # No wake is lost: other threads set the event through this loop, which runs their callbacks only
            # during the wait below.
            woken.clear()
            try:
                async with asyncio.timeout(self._grace_left()):
                    await woken.wait()
            except TimeoutError:
                await self._cancel(batch)
                for job in batch.running():
                    self._record(job, self._unfinished(job))

    def _begin(self) -> None:
        for job in self._take():
            job.task = asyncio.create_task(self._handle(job), context=job.context)
            job.task.add_done_callback(partial(self._ended, job))

    def _ended(self, job: MessageJob, task: asyncio.Task[Decision]) -> None:
        self._lanes.done(job)
        self._record(job, self._result(job, task))
        self._begin()

    def _result(self, job: MessageJob, task: asyncio.Task[Decision]) -> Decision:
        if task.cancelled():
            return self._unfinished(job)
        error = task.exception()
        if error is None:
            return task.result()
        job.batch.interrupt(error)
        return Decision(Action.RETRY, reason="interrupted")

    async def _cancel(self, batch: JobBatch) -> None:
        tasks = [job.task for job in batch.running() if job.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLEAN_UP)

    async def _handle(self, job: MessageJob) -> Decision:
        outcome = await self._run(job) if job.error is None else caught(job.error, job.recordings)
        decision = self._judge(job, outcome)
        if decision.action is not Action.DEAD_LETTER or self._dead_letter is None:
            return decision
        try:
            await self._dead_letter(job.message, decision)
        except FAILURES as error:
            return self._dead_letter_failed(job, decision, as_failure(error))
        return self._dead_letter_stored(decision)

    async def _run(self, job: MessageJob) -> Outcome:
        if (prepare := job.batch.take_preparation()) is not None:
            await run(prepare)  # what it refuses ends the call: no message is to blame
        try:
            given = job.batch.handler(job.message)
            outcome = await given if inspect.isawaitable(given) else given
        except FAILURES as error:
            for pause in job.recordings.asking():
                await asyncio.sleep(pause)
            return caught(as_failure(error), job.recordings)
        finally:
            job.recordings.end()
        return checked(outcome)
