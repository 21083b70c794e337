"""The asynchronous publisher for RabbitMQ."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

import aiormq
from aiormq import exceptions
from aiormq.abc import AbstractChannel, AbstractConnection

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import InvalidOption, UnsafeBroker
from inbox_outbox_base.words.outgoing import Envelope, Outcome, Unavailable, Unknown

from . import address
from .message import closes_channel, is_unsent, outcome_of, properties_of

_log = logging.getLogger("outbox.rabbitmq")
_GOODBYE = 5.0
"""Seconds that a connection has to close in good order."""


class AsyncRabbitPublisher:
    """`RabbitPublisher` for an `AsyncRelay`: the same, awaited. It belongs to one event loop."""

    def __init__(self, url: str, *, exchange: str = "", timeout: float | timedelta = 10) -> None:
        self._url = address.parse(url, error=InvalidOption)
        if not isinstance(exchange, str):
            raise InvalidOption(f"exchange={exchange!r}: expected a string")
        self.exchange = exchange
        self.timeout = outbox_options.seconds("timeout", timeout)
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._connecting = asyncio.Lock()
        self._goodbyes: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({address.shown(self._url)!r}, exchange={self.exchange!r})"

    async def check(self, lease: float) -> None:
        """See `RabbitPublisher.check`."""
        if self.timeout >= lease:
            raise UnsafeBroker(f"timeout={self.timeout:g}: expected less than the lease of {lease:g} s")
        try:
            async with asyncio.timeout(self.timeout):
                channel = await self._opened()
                if self.exchange:
                    await channel.exchange_declare(self.exchange, passive=True)
        except exceptions.ChannelNotFoundEntity:
            self._drop()
            raise UnsafeBroker(f"exchange={self.exchange!r}: there is no such exchange") from None
        except address.REFUSALS as error:
            raise UnsafeBroker(address.refusal(self._url, error)) from None
        except Exception as error:  # noqa: BLE001 - a relay starts even if the broker is down
            await self._drop_unless_blocked()
            _log.warning("%r: not checked, because RabbitMQ cannot be reached: %s", self, error)

    async def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """See `RabbitPublisher.send`."""
        if not batch:
            return []
        deadline = asyncio.get_running_loop().time() + self.timeout
        try:
            # At most half of the time, to leave some for the answers.
            async with asyncio.timeout(self.timeout / 2):
                channel = await self._opened()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing has been sent
            is_blocked = await self._drop_unless_blocked()
            trouble = (
                "blocks publishers, because it lacks memory or disk" if is_blocked else "does not answer"
            )
            return [Unavailable(f"{address.shown(self._url)} {trouble}: {error!r}")] * len(batch)
        errors = await self._sent(channel, batch, deadline)
        is_shared = len(batch) > 1 and any(map(closes_channel, errors))
        return [
            await self._alone(envelope, error, deadline)
            if is_shared and (closes_channel(error) or is_unsent(error))
            else outcome_of(error, self.exchange, envelope)
            for envelope, error in zip(batch, errors, strict=True)
        ]

    async def close(self) -> None:
        """Close the connection; another `send` opens a new one."""
        self._drop()
        if self._goodbyes:
            await asyncio.wait(self._goodbyes)

    async def _opened(self) -> AbstractChannel:
        """A channel with confirms. It waits while RabbitMQ blocks publishers because it lacks memory or
        disk."""
        async with self._connecting:
            connection, channel = self._connection, self._channel
            if connection is None or not connection.is_opened or channel is None or channel.is_closed:
                # Without its channel the connection is useless, too: frames that the client still writes for
                # the channel make RabbitMQ close the connection as well.
                self._drop()
                self._connection = connection = await aiormq.connect(self._url)
                self._channel = channel = await connection.channel(publisher_confirms=True)
        await connection.ready()
        return channel

    async def _sent(
        self, channel: AbstractChannel, batch: Sequence[Envelope], deadline: float
    ) -> list[BaseException | None]:
        """How each message's publish ended; None: it was confirmed."""
        # Tasks start in the order in which they are made, so the batch keeps its order on the wire.
        tasks = [asyncio.create_task(self._publish(channel, envelope)) for envelope in batch]
        try:
            _, late = await asyncio.wait(tasks, timeout=deadline - asyncio.get_running_loop().time())
        finally:
            for task in tasks:
                task.cancel()
        if late:
            await self._drop_unless_blocked()
        return [TimeoutError() if task in late else _error(task) for task in tasks]

    async def _publish(self, channel: AbstractChannel, envelope: Envelope) -> None:
        await channel.basic_publish(
            envelope.payload,
            exchange=self.exchange,
            routing_key=envelope.topic,
            properties=properties_of(envelope),
            mandatory=True,
        )

    async def _alone(self, envelope: Envelope, first: BaseException | None, deadline: float) -> Outcome:
        """Resend a message of a channel that RabbitMQ closed, perhaps because of another message.

        Unless the error `first` shows that it was not sent, RabbitMQ may already have taken it: only a
        confirm, or a refusal of the message itself, is certain.
        """
        try:
            async with asyncio.timeout_at(deadline):
                channel = await self._opened()
        except Exception as error:  # noqa: BLE001 - nothing has been sent again
            outcome: Outcome = Unavailable(f"RabbitMQ closed the channel, and does not answer: {error!r}")
        else:
            (answer,) = await self._sent(channel, [envelope], deadline)
            outcome = outcome_of(answer, self.exchange, envelope)
        if isinstance(outcome, Unavailable) and not is_unsent(first):
            return Unknown(outcome.reason)
        return outcome

    async def _drop_unless_blocked(self) -> bool:
        """Drop the connection, unless RabbitMQ blocks it, which is returned. A new connection would learn of
        the block only after its first message, whose fate would be unknown again."""
        is_blocked = self._connection is not None and await _is_blocked(self._connection)
        if not is_blocked:
            self._drop()
        return is_blocked

    def _drop(self) -> None:
        """Drop the connection without waiting: closing one that hangs takes time."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            goodbye = asyncio.create_task(_close(connection))
            self._goodbyes.add(goodbye)
            goodbye.add_done_callback(self._goodbyes.discard)


async def _is_blocked(connection: AbstractConnection) -> bool:
    if not connection.is_opened:
        return False
    try:
        # It waits only if the connection is blocked.
        async with asyncio.timeout(0):
            await connection.ready()
    except TimeoutError:
        return True
    return False


async def _close(connection: AbstractConnection) -> None:
    try:
        async with asyncio.timeout(_GOODBYE):
            await connection.close()
    except Exception as error:  # noqa: BLE001 - it is gone either way
        _log.debug("closing the connection failed: %r", error)


def _error(task: asyncio.Task[None]) -> BaseException | None:
    # The client cancels tasks that wait on a connection that ends.
    return asyncio.CancelledError() if task.cancelled() else task.exception()
