"""Delivery without a broker: the relay runs the handlers itself."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from inspect import isawaitable
from typing import Any, Generic, TypeVar

from inbox import Action, AsyncListener, Decision, Delivery, Listener
from inbox import Outcome as InboxOutcome
from inbox._listening.outcome import may_be_asynchronous, runner_of
from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.checks.options import is_coroutine_function, shown
from inbox_outbox_base.errors.blame import is_own
from inbox_outbox_base.errors.codes import is_passing
from inbox_outbox_base.errors.outbox import InvalidOption
from inbox_outbox_base.words.outgoing import (
    ACCEPTED,
    Envelope,
    Failed,
    Outcome,
    Refused,
    Unavailable,
    identity_of,
)
from inbox_outbox_base.words.redelivered import as_first

H = TypeVar("H")
Handlers = Mapping[str, Callable[[Envelope], H] | Callable[[Delivery], H]]

_GRACE = timedelta(days=30)
"""How long to wait for running handlers: some systems cannot wait much longer."""
_MOST_FAILING = 100_000
"""The most messages whose failures are remembered; beyond that, the oldest are forgotten."""


L = TypeVar("L", Listener, AsyncListener)


class _Delivery(Generic[L, H]):
    """Picks the handler of a message, and turns its verdict into an outcome for the relay."""

    _listens: type[L]
    _is_async: bool

    def __init__(self, handlers: Handlers[H], *, concurrency: int = 1, max_attempts: int = 16) -> None:
        if not isinstance(handlers, Mapping) or not handlers:
            raise InvalidOption(f"handlers={handlers!r:.80}: expected a mapping of topics to handlers")
        self._handlers = {
            outbox_options.topic(topic): self._checked(f"handlers[{topic!r}]", handler)
            for topic, handler in handlers.items()
        }
        self._counts = {topic: getattr(handler, "counts", None) for topic, handler in handlers.items()}
        """What counts the decisions about a topic's messages."""
        self._failures: OrderedDict[tuple[object, ...], int] = OrderedDict()
        self._concurrency = outbox_options.count("concurrency", concurrency)
        self._max_attempts = outbox_options.count("max_attempts", max_attempts)
        self._listener: L = self._new_listener()

    def _checked(self, option: str, handler: Any) -> Callable[[Any], Any]:
        """The function that gives the handler's outcomes, if this class can call it."""
        run: Any = outbox_options.check_function(option, runner_of(handler))
        if not may_be_asynchronous(handler) if self._is_async else is_coroutine_function(run):
            expected, other = ("an asynchronous", "") if self._is_async else ("a synchronous", "Async")
            raise InvalidOption(
                f"{option}={shown(handler)}: expected {expected} function; see {other}DirectDelivery"
            )
        return run  # type: ignore[no-any-return]

    def _new_listener(self) -> L:
        return self._listens(
            concurrency=self._concurrency,
            grace=_GRACE,
            max_attempts=self._max_attempts,
            failures=lambda message: self._failures.get(identity_of(message), 0),
        )

    def _answer(self, message: Envelope, decision: Decision) -> Outcome:
        if (counts := self._counts[message.topic]) is not None:
            counts(decision)
        answer = self._verdict(message, decision)
        if answer == ACCEPTED or isinstance(answer, Refused):
            self._failures.pop(identity_of(message), None)
        return answer

    def _verdict(self, message: Envelope, decision: Decision) -> Outcome:
        if decision.action is Action.ACK:
            return ACCEPTED
        if decision.action is Action.DEAD_LETTER:
            return Refused(decision.reason)
        outcome = decision.outcome
        if outcome is None and not decision.delay:
            return Failed(decision.reason, 0.0)  # the message is given back: its handler has not begun
        if outcome is None:
            return Unavailable(decision.reason)
        if outcome.error is not None and (is_own(outcome.error) or is_passing(outcome.error)):
            return Unavailable(decision.reason, outcome.retry_after)
        if outcome.is_failure:
            self._failed(message)
        return Failed(decision.reason, outcome.retry_after)

    def _failed(self, message: Envelope) -> None:
        identity = identity_of(message)
        self._failures[identity] = self._failures.pop(identity, 0) + 1
        # The oldest count is forgotten, which only gives that message more attempts.
        if len(self._failures) > _MOST_FAILING:
            self._failures.popitem(last=False)

    def _answers(self, batch: Sequence[Envelope], decisions: Iterable[Decision]) -> list[Outcome]:
        """One outcome for each message; only messages with a handler have a decision."""
        given = iter(decisions)
        return [
            self._answer(message, next(given))
            if message.topic in self._handlers
            else Refused(f"no handler for topic {message.topic!r}")
            for message in batch
        ]

    def begin_no_more(self) -> None:
        """Let each running `send` return when its running handlers have ended, however long they take.
        Messages whose handlers have not begun are retried without a delay; a later `send` works as usual.
        Returns immediately; may be called from any thread and from a signal handler."""
        # A stopped listener never begins another message, but a later `send` must be able to.
        listener, self._listener = self._listener, self._new_listener()
        listener.stop()

    def _known(self, batch: Sequence[Envelope]) -> list[Envelope]:
        return [message for message in batch if message.topic in self._handlers]


class DirectDelivery(_Delivery[Listener, InboxOutcome]):
    """A `Publisher` that passes each message to a handler in this process: an outbox and an inbox without a
    broker.

    Decorate the handlers with an inbox of either mode, so that each message takes effect once; key them by
    `inbox.message_key` or `inbox.message_id`. A message that was taken, now or before, is accepted; a dead
    letter is refused; after any other verdict the handler runs again after the relay's backoff.

    Args:
        handlers: by topic. A message to any other topic is refused. A handler gets the `Envelope`, which has
            all that a broker's `Delivery` has, except `raw`. One that returns no `inbox.Outcome`, because no
            inbox decorates it, has its effect; its message becomes a dead letter, with what it returned.
        concurrency: how many handlers run at the same time, in threads, each on its own connection.
        max_attempts: failures of the handler after which its message is refused. The count is in memory: it
            starts at zero after a restart, or when another process takes the message over. Errors of the
            inbox's own statements do not count (`inbox.Outcome.is_failure`). For messages that it has
            claimed, a `StatusInbox` keeps its own, durable count instead: a message that is dead there is
            refused, with its steps undone.

    Raises:
        InvalidOption: an argument is invalid, such as an asynchronous handler.
    """

    _listens = Listener
    _is_async = False

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Run the handlers of a batch; outcome i belongs to message i."""
        decisions = self._listener.decide(self._known(batch), self._handle)
        return self._answers(batch, decisions)

    def _handle(self, message: Envelope) -> InboxOutcome:
        return _outcome(message, self._handlers[message.topic](as_first(message)))


class AsyncDirectDelivery(_Delivery[AsyncListener, Awaitable[InboxOutcome]]):
    """`DirectDelivery` for an `AsyncRelay`: handlers are decorated by asynchronous inboxes and run as
    tasks."""

    _listens = AsyncListener
    _is_async = True

    async def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Run the handlers of a batch; outcome i belongs to message i."""
        decisions = await self._listener.decide(self._known(batch), self._handle)
        return self._answers(batch, decisions)

    async def _handle(self, message: Envelope) -> InboxOutcome:
        given = self._handlers[message.topic](as_first(message))
        return _outcome(message, await given if isawaitable(given) else given)


def _outcome(message: Envelope, given: Any) -> InboxOutcome:
    """The handler's outcome. Anything else is a dead letter at once: no inbox was asked, so the handler's
    effects would be repeated by each further send.

    Raises:
        InvalidOption: not an `inbox.Outcome`.
    """
    if not isinstance(given, InboxOutcome):
        raise InvalidOption(
            f"handlers[{message.topic!r}]: it returned {shown(given)}, expected an inbox.Outcome"
        )
    return given
