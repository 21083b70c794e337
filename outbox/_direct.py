"""Delivery without a broker: the relay runs the handlers itself."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from inbox import Action, AsyncListener, Decision, Listener, is_transient
from inbox import Outcome as InboxOutcome

from . import _options
from ._envelope import Envelope
from ._outcomes import ACCEPTED, Failed, Outcome, Refused, Unavailable
from .errors import InvalidOption

Handlers = Mapping[str, Callable[[Envelope], Any]]


class _Delivery:
    """Which handler takes a message, and what its verdict means to the relay."""

    def __init__(self, handlers: Handlers, max_attempts: int) -> None:
        if not isinstance(handlers, Mapping) or not handlers:
            raise InvalidOption(f"handlers={handlers!r:.80}: expected a mapping of topics to handlers")
        for topic, handler in handlers.items():
            _options.topic(topic)
            _options.check_function(f"handlers[{topic!r}]", handler)
        self._handlers = {topic: getattr(each, "outcome", each) for topic, each in handlers.items()}
        self._max_attempts = _options.count("max_attempts", max_attempts)

    def _answer(self, message: Envelope, decision: Decision) -> Outcome:
        if decision.action is Action.ACK:
            return ACCEPTED
        if decision.action is Action.DEAD_LETTER:
            return Refused(decision.reason)
        outcome = decision.outcome
        if outcome is None:
            return Unavailable(decision.reason)
        if outcome.error is not None and is_transient(outcome.error):
            return Unavailable(decision.reason, outcome.retry_after)
        if outcome.error is not None and message.attempt >= self._max_attempts:
            return Refused(f"gave up after {message.attempt} attempts: {decision.reason}")
        return Failed(decision.reason, outcome.retry_after)

    def _answers(self, batch: Sequence[Envelope], decisions: Iterable[Decision]) -> list[Outcome]:
        """One for each message; decisions are there for those that have a handler."""
        given = iter(decisions)
        return [
            self._answer(message, next(given))
            if message.topic in self._handlers
            else Refused(f"no handler for topic {message.topic!r}")
            for message in batch
        ]

    def _known(self, batch: Sequence[Envelope]) -> list[Envelope]:
        return [message for message in batch if message.topic in self._handlers]


class DirectDelivery(_Delivery):
    """A `Publisher` that hands each message to a handler in this process: an outbox and an inbox, and no
    broker.

    The handlers are those that an inbox decorates, in either mode, so each message takes effect once; key
    them by `inbox.message_key` or `inbox.message_id`. What a verdict means: the message was taken, or had
    been before: accepted; a dead letter: refused; everything else: it is run again after the relay's backoff.

    Args:
        handlers: by topic. A message to another topic is refused.
        concurrency: how many run at once, in threads, each on a connection of its own.
        max_attempts: attempts after which a message whose handler raises is refused; errors that are
            transient (`inbox.is_transient`) do not count as its fault.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    def __init__(self, handlers: Handlers, *, concurrency: int = 1, max_attempts: int = 16) -> None:
        super().__init__(handlers, max_attempts)
        self._listener = Listener(concurrency=_options.count("concurrency", concurrency))

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Run the handlers of a batch; outcome i belongs to message i."""
        decisions = self._listener.decide(self._known(batch), self._handle)
        return self._answers(batch, decisions)

    def _handle(self, message: Envelope) -> InboxOutcome:
        outcome: InboxOutcome = self._handlers[message.topic](message)
        return outcome


class AsyncDirectDelivery(_Delivery):
    """`DirectDelivery` for an `AsyncRelay`: the handlers are those of the asynchronous inboxes, and run as
    tasks."""

    def __init__(self, handlers: Handlers, *, concurrency: int = 1, max_attempts: int = 16) -> None:
        super().__init__(handlers, max_attempts)
        self._listener = AsyncListener(concurrency=_options.count("concurrency", concurrency))

    async def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Run the handlers of a batch; outcome i belongs to message i."""
        decisions = await self._listener.decide(self._known(batch), self._handle)
        return self._answers(batch, decisions)

    async def _handle(self, message: Envelope) -> InboxOutcome:
        outcome: InboxOutcome = await self._handlers[message.topic](message)
        return outcome
