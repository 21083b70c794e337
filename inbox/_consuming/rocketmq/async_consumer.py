"""The asynchronous consumer for RocketMQ."""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, Unpack

from inbox._consuming.leased.consumer import LeaseConsumer
from inbox._listening.options import ListenerOptions
from inbox._listening.outcome import Decision, Outcome
from inbox_outbox_base.brokers.rocketmq import forking
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.words.incoming import Delivery

from . import options, proxies
from .dead_letters import dead_letter as letter_of
from .delivery import is_damaged
from .held import HeldMessage
from .link import GroupSettings
from .poll import MOST
from .proxy import Source


class AsyncRocketMQConsumer(LeaseConsumer[HeldMessage]):
    """`RocketMQConsumer` for asynchronous handlers: `run` is awaited, and handles no signals; see
    `stopping_on_sigterm`.

    It belongs to one event loop; `stop` may be called from anywhere.
    """

    _log = logging.getLogger("inbox.rocketmq")
    _shortest_delay = 1
    _patience = 30
    """RocketMQ's brokers report their topics twice a minute."""

    def __init__(
        self,
        url: str,
        topic: str | Sequence[str],
        handler: Callable[[Delivery], Awaitable[Outcome]],
        *,
        group: str,
        tag: str = "*",
        prefetch: int | None = None,
        invisible: float | timedelta = 30,
        max_attempts: int | None = 16,
        dead_letter: str | Callable[[Delivery, Decision], Awaitable[Any]] | None = None,
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        self._member = options.member(url, group, topic, tag)
        topics = ", ".join(self._member.filters)
        super().__init__(
            f"consumer of {topics} in group {group!r}",
            self._member.address,
            topics,
            handler,
            lease=options.invisible(invisible),
            prefetch=prefetch,
            fewest=MOST,
            max_attempts=max_attempts,
            dead_letter=options.dead_letter(dead_letter, self._member),
            on_event=on_event,
            options=listener,
        )
        self._settings = GroupSettings(0, in_order=False)
        self._sources = proxies.Sources(self._member, self._source, self._start)
        self._is_running = False

    async def run(self) -> None:
        """See `RocketMQConsumer.run`."""
        forking.check()
        await super().run()

    async def _connect(self) -> None:
        await self._sources.connect(self._dead_letter)
        self._is_running = True

    def _receiving(self) -> Iterable[Coroutine[Any, Any, None]]:
        self._sources.start()
        return ()

    def _look(self) -> None:
        super()._look()
        if self._sources.are_connected:
            self._life.connected()
        else:
            self._life.disconnected(f"no proxy of {self._member.address} answers")

    def _source(self, endpoints: Any, queues: list[Any]) -> Source:
        return Source(
            self._member,
            endpoints,
            queues,
            limit=self.prefetch,
            hidden=self._lease,
            take=self._take,
            tell=self._use_settings,
            stopping=self._stopping,
        )

    def _use_settings(self, settings: GroupSettings) -> None:
        if settings == self._settings:
            return
        try:
            options.check_group(self._member.group, settings, self._max_attempts)
        except InvalidOption as error:
            if not self._is_running:
                raise
            self._log.error("%s", error)
        self._settings = settings

    async def _refresh(self) -> None:
        """Find brokers that are new or gone, and the group's settings if they have changed."""
        await self._sources.refresh()

    def _held(self) -> list[HeldMessage]:
        return self._sources.held

    async def _received(self) -> None:
        await self._sources.finished()

    async def _close(self) -> None:
        await self._sources.close()

    async def _run_until_settled(self, message: HeldMessage) -> None:
        if is_damaged(message.delivery.raw):
            group = self._member.group
            self._log.error("message %s: damaged, so it goes to %%DLQ%%%s", message.delivery.id, group)
            await message.bury()
        await super()._run_until_settled(message)

    def _keeps_order(self) -> bool:
        return self._settings.in_order

    def _is_kept(self, message: HeldMessage) -> bool:
        """In a group in order every message stays: RocketMQ would also deliver the later ones again."""
        return self._settings.in_order or 0 < self._settings.deliveries <= message.deliveries

    async def _send_dead_letter(self, message: HeldMessage, decision: Decision) -> None:
        if self._dead_letter is None:
            await message.bury()
        else:
            await message.put(letter_of(self._dead_letter, message.delivery, decision))
