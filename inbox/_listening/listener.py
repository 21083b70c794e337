"""The listener for synchronous code: messages run in threads."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from inbox_outbox_base.calls.signals import SignalSafeEvent
from inbox_outbox_base.checks.options import is_coroutine_function
from inbox_outbox_base.errors.inbox import InvalidOption

from .outcome import Decisions, Outcome
from .thread_listener_base import InThreads

M = TypeVar("M")


class Listener(InThreads):
    """Runs batches of messages from a broker, and decides what to tell the broker about each.

    It does not talk to a broker or a database itself: the handler asks the inbox, and the code that fetched
    the messages acknowledges them. Threads can share one listener.

    Args:
        order: "each" decides each message separately; with "in_order", an unacknowledged message gives back
            the messages behind it, unless they have begun.
        concurrency: how many messages run at the same time, in all calls together.
        key: a function of the message. In all calls together, messages with the same key never run at the
            same time; those of one call run in order. None, or a key that is None: only the
            inbox prevents concurrent runs.
        attempt: a function of the message: how often the broker has delivered it, from 1; for the backoff.
        failures: a function of the message: how often it has failed before. `Outcome.is_failure` says whether
            to count a decision.
        max_attempts: a message becomes a dead letter when it has failed this often; needs `failures`. None:
            never.
        backoff: the delay of a failed message, unless its inbox knows a better one.
        grace: the time for running messages to finish after `stop`, in seconds or as `timedelta`.
        too_old: what to do with a message older than the inbox's retention, because nobody can know whether
            it was taken: "dead_letter", or "ack", which drops it.
        dead_letter: a function of a message and its decision that stores the message. If it returns, the
            message is acknowledged; if it raises, redelivered. A message may be stored twice.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    def decide(self, messages: Iterable[M], handler: Callable[[M], Outcome]) -> Decisions:
        """Run a batch, and return one decision for each message, in the batch's order.

        An exception of the handler becomes a decision, and is logged. After `stop` the running messages have
        `grace` seconds. A message that takes longer is redelivered, and its thread is left behind until the
        process ends; at the next delivery the inbox knows what that thread did.

        Args:
            messages: any objects that the handler accepts.
            handler: a function of a message that returns an `Outcome`, such as one decorated by an inbox.

        Raises:
            InvalidOption: the handler is not such a function; nothing is decided.
            UnsafeDatabase: before the first message, the handler's table cannot keep a promise; nothing is
                decided.
            BaseException: an error of the handler that is not an Exception (SystemExit), raised once the
                other running messages have ended; nothing is decided.
        """
        woken = SignalSafeEvent()
        batch = self._batch(messages, handler, woken.set)
        if is_coroutine_function(batch.handler):
            raise InvalidOption(f"handler={handler!r}: it is asynchronous; use AsyncListener")
        self._wakes.add(batch.wake)
        try:
            self._add(batch)
            while not self._is_decided(batch):
                if not woken.wait(self._grace_left()):
                    self._leave_behind(batch)
        finally:
            self._wakes.discard(batch.wake)
            self._give_back(batch, "interrupted")  # Ctrl-C can end the wait: begin no more of it
        if batch.interruption is not None:
            raise batch.interruption
        return batch.decisions
