"""The asynchronous publisher for RabbitMQ."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import timedelta

from aiormq import exceptions
from aiormq.channel import Channel

from inbox_outbox_base.brokers.rabbitmq import address
from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import InvalidOption, UnsafeBroker
from inbox_outbox_base.words.outgoing import Envelope, Outcome, Unavailable, Unknown
from outbox._publishers.publisher import check_lease

from .link import RabbitLink
from .message import Unsent, closes_channel, is_about_one, outcome_of
from .publishing import ChannelPublishing

_log = logging.getLogger("outbox.rabbitmq")


class AsyncRabbitPublisher:
    """`RabbitPublisher` for an `AsyncRelay`: the same, awaited. It belongs to one event loop."""

    def __init__(self, url: str, *, exchange: str = "", timeout: float | timedelta = 10) -> None:
        self._url = address.parse(url, error=InvalidOption)
        if not isinstance(exchange, str):
            raise InvalidOption(f"exchange={exchange!r}: expected a string")
        self.exchange = exchange
        self.timeout = outbox_options.seconds("timeout", timeout, positive=True)
        self._links: set[RabbitLink] = set()
        self._idle: list[RabbitLink] = []
        self._goodbyes: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({address.shown(self._url)!r}, exchange={self.exchange!r})"

    async def check(self, lease: float) -> None:
        """See `RabbitPublisher.check`."""
        check_lease(self.timeout, lease)
        link, is_usable = self._link(), False
        try:
            async with asyncio.timeout(self.timeout):
                channel = await link.ready()
                if self.exchange:
                    await channel.exchange_declare(self.exchange, passive=True)
            is_usable = True
        except exceptions.ChannelNotFoundEntity:
            raise UnsafeBroker(f"exchange={self.exchange!r}: there is no such exchange") from None
        except address.REFUSALS as error:
            raise UnsafeBroker(address.refusal(self._url, error)) from None
        except Exception as error:  # noqa: BLE001 - a relay starts even if the broker is down
            _log.warning("%r: not checked, because RabbitMQ cannot be reached: %s", self, error)
        finally:
            await self._give_back(link, is_usable=is_usable)

    async def send(self, batch: Sequence[Envelope]) -> AsyncGenerator[tuple[int, Outcome]]:
        """See `RabbitPublisher.send`."""
        deadline = asyncio.get_running_loop().time() + self.timeout
        groups = [dict(enumerate(batch))] if batch else []
        doubtful = set[int]()
        while groups:
            group, again = groups.pop(), list[tuple[int, Envelope]]()
            async with aclosing(self._endings(group, deadline)) as endings:
                async for place, error in endings:
                    if len(group) > 1 and closes_channel(error):
                        doubtful.add(place)  # RabbitMQ may have taken it before another message of the group
                    if len(group) > 1 and is_about_one(error):
                        again.append((place, group[place]))
                        continue
                    outcome = outcome_of(error, self.exchange, group[place])
                    if isinstance(outcome, Unavailable) and place in doubtful:
                        outcome = Unknown(outcome.reason)
                    yield place, outcome
            # RabbitMQ does not say for which message it closes a channel: send halves until it is alone.
            middle = (len(again) + 1) // 2
            groups += [dict(half) for half in (again[middle:], again[:middle]) if half]

    async def close(self) -> None:
        """Close the connections; another `send` opens a new one."""
        self._idle.clear()
        for link in tuple(self._links):
            self._drop(link)
        if self._goodbyes:
            await asyncio.wait(self._goodbyes)

    async def _endings(
        self, messages: dict[int, Envelope], deadline: float
    ) -> AsyncGenerator[tuple[int, BaseException | None]]:
        """How the publishing of each message ended, as it becomes known; None: it was confirmed."""
        link, is_usable = self._link(), False
        try:
            channel = await self._ready(link, deadline)
            if isinstance(channel, Unsent):
                for place in messages:
                    yield place, channel
                return
            publishing = ChannelPublishing(channel, self.exchange, messages)
            async for ending in publishing.endings(deadline):
                yield ending
            is_usable = not publishing.waiting
        finally:
            await self._give_back(link, is_usable=is_usable)

    async def _ready(self, link: RabbitLink, deadline: float) -> Channel | Unsent:
        now = asyncio.get_running_loop().time()
        try:
            # At most half of the time: the rest is for the answers.
            async with asyncio.timeout_at(min(deadline, now + self.timeout / 2)):
                return await link.ready()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing has been sent
            is_blocked = await link.is_blocked()
            trouble = (
                "blocks publishers, because it lacks memory or disk" if is_blocked else "does not answer"
            )
            return Unsent(f"{address.shown(self._url)} {trouble}: {error!r}")

    def _link(self) -> RabbitLink:
        """A connection that no other send uses, preferably the last one used."""
        while self._idle:
            link = self._idle.pop()
            if link.is_open:
                return link
            self._drop(link)
        link = RabbitLink(self._url)
        self._links.add(link)
        return link

    async def _give_back(self, link: RabbitLink, *, is_usable: bool) -> None:
        # A connection that RabbitMQ blocks is kept: on a new one, RabbitMQ reports the block only after the
        # first message, whose outcome would be unknown again.
        is_kept = link in self._links  # unless the publisher was closed
        if is_kept and link.is_open and (is_usable or await link.is_blocked()):
            self._idle.append(link)
        else:
            self._drop(link)

    def _drop(self, link: RabbitLink) -> None:
        """Close a connection without waiting: if it hangs, that takes time."""
        self._links.discard(link)
        goodbye = asyncio.create_task(link.close())
        self._goodbyes.add(goodbye)
        goodbye.add_done_callback(self._goodbyes.discard)
