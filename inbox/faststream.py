"""Let a listener decide about the messages of FastStream's subscribers:

    broker = RabbitBroker(url, ack_policy=AckPolicy.NACK_ON_ERROR)
    settle(broker, inbox.listener(dead_letter=put_away))

FastStream itself is imported by `settle` only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Self

from inbox._listening.async_listener import AsyncListener
from inbox._listening.outcome import Action
from inbox_outbox_base.checks import options
from inbox_outbox_base.errors.inbox import InvalidOption

__all__ = ["settle"]

_log = logging.getLogger("inbox.faststream")
_POLICY = "nack_on_error"
"""The only policy with which FastStream loses no message that it cannot parse."""


def settle(
    broker: Any,
    listener: AsyncListener,
    *,
    dead_letter_exchange: bool = False,
    longest_wait: float | timedelta = 60,
) -> None:
    """From now on, the listener decides about every message of this FastStream broker's subscribers.

    A subscriber is a function that returns the `Outcome` of a handler of an inbox. FastStream publishes the
    outcome's `result`, if it publishes what the function returns, and otherwise nothing. The broker does not
    start if a subscriber acknowledges messages before it has run, or loses those that fail.

    Args:
        broker: a broker of FastStream that has not started.
        listener: decides from outcomes and errors, and has `dead_letter=`, a coroutine function of
            FastStream's message and the decision that stores the message elsewhere. Its `concurrency` limits
            all subscribers of the broker together.
        dead_letter_exchange: RabbitMQ only: each queue has a dead letter exchange, so what no delivery can
            change is rejected. Without one, RabbitMQ deletes what is rejected.
        longest_wait: for RETRY, the most seconds (or a `timedelta`) to wait before the message is given back,
            because the brokers deliver it again immediately. The message counts as unacknowledged meanwhile.

    Raises:
        InvalidOption: an argument cannot be used; also at the start of the broker, for a subscriber whose
            `ack_policy` is not NACK_ON_ERROR.
    """
    if not isinstance(listener, AsyncListener):
        raise InvalidOption(f"listener={listener!r}: expected an AsyncListener")
    if not isinstance(dead_letter_exchange, bool):
        raise InvalidOption(f"dead_letter_exchange={dead_letter_exchange!r}: expected True or False")
    if listener.has_dead_letter == dead_letter_exchange:
        raise InvalidOption(
            "listener: expected one with dead_letter=, or else dead_letter_exchange=True if each queue has "
            "such an exchange; without either, a message that no delivery can change would be lost"
        )
    kinds = [kind.__module__ for kind in type(broker).__mro__]
    if dead_letter_exchange and not any(each.startswith("faststream.rabbit") for each in kinds):
        raise InvalidOption(
            f"dead_letter_exchange=True: {type(broker).__name__} has none, and a rejected message is gone; "
            "use dead_letter= of the listener"
        )
    settler = _Settler(listener, options.seconds("longest_wait", longest_wait))
    broker.add_middleware(settler)
    start = broker.start

    async def start_checked() -> None:
        for subscriber in broker.subscribers:
            _check(subscriber)
        await start()

    broker.start = start_checked


def _check(subscriber: Any) -> None:
    """Refuse a subscriber that loses messages.

    Raises:
        InvalidOption: its policy is not NACK_ON_ERROR.
    """
    policy = subscriber.ack_policy
    if policy.value != _POLICY:
        raise InvalidOption(
            f"subscriber {subscriber.calls.name}: ack_policy={policy.name}, expected NACK_ON_ERROR: with "
            "ACK_FIRST, Kafka's default, a message is acknowledged before it is handled, and with the others "
            "one that cannot be parsed is lost"
        )


class _Settler:
    """Makes the middleware of each message."""

    def __init__(self, listener: AsyncListener, longest_wait: float) -> None:
        self.listener = listener
        self.longest_wait = longest_wait

    def __call__(self, message: object, /, *, context: Any) -> "_SettlingMiddleware":
        subscriber = context.get_local("handler_")
        if message is not None and subscriber is not None:  # else it is for a message to publish
            _check(subscriber)  # it may have been started without its broker
        return _SettlingMiddleware(self)


class _SettlingMiddleware:
    """FastStream's protocol for the middleware of one message."""

    def __init__(self, settler: _Settler) -> None:
        self._settler = settler

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> bool:
        from faststream.exceptions import IgnoredException

        # It could not be parsed or decided, or its result not published: FastStream gives it back.
        if isinstance(error, Exception) and not isinstance(error, IgnoredException):
            await asyncio.sleep(self._settler.longest_wait)
        return False

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], message: Any) -> Any:
        """Run the subscriber's function, and tell FastStream what the listener has decided."""
        from faststream.exceptions import AckMessage, NackMessage, RejectMessage

        (decision,) = await self._settler.listener.decide([message], call_next)
        match decision.action:
            case Action.RETRY:
                await asyncio.sleep(min(decision.delay, self._settler.longest_wait))
                raise NackMessage
            case Action.DEAD_LETTER:
                _log.warning("rejected, for the dead letter exchange: %s", decision.reason)
                raise RejectMessage
        outcome = decision.outcome
        if outcome is None or outcome.error is not None or outcome.result is None:
            raise AckMessage  # there is nothing to publish
        return outcome.result

    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], command: Any) -> Any:
        """Messages that are published pass."""
        return await call_next(command)
