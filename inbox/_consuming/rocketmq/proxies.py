"""The proxies that have the topics' queues."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from inbox._consuming.leased.consumer import NotThere
from inbox_outbox_base.brokers.rocketmq.client import RpcEndpoints, grpc, protocol, text_of
from inbox_outbox_base.errors.inbox import InvalidOption

from .held import HeldMessage
from .link import Calls, Membership, Refusal
from .proxy import FAILURES, Source

_log = logging.getLogger("inbox.rocketmq")
_UNKNOWN = {protocol.Code.TOPIC_NOT_FOUND, protocol.Code.NOT_FOUND}
_LOGIN_REFUSED = {protocol.Code.FORBIDDEN, protocol.Code.UNAUTHORIZED}
GROUP = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}


async def find(member: Membership, dead_letter: object = None) -> dict[str, tuple[Any, list[Any]]]:
    """For each proxy: its endpoints, and one queue of each topic on each broker behind it.

    Raises:
        NotThere: there is no topic of this name.
        InvalidOption: the login is refused.
        AioRpcError: nobody answers.
        Refusal: RocketMQ answers with an error that may pass.
    """
    found: dict[str, tuple[Any, list[Any]]] = {}
    calls = Calls(member)
    try:
        for topic in member.filters:
            for queue in await route_of(calls, "topic", topic):
                endpoints = queue.broker.endpoints
                _, queues = found.setdefault(RpcEndpoints(endpoints).facade, (endpoints, []))
                if (topic, queue.broker.name) not in [(each.topic.name, each.broker.name) for each in queues]:
                    queues.append(queue)
        if isinstance(dead_letter, str):
            await route_of(calls, "dead_letter", dead_letter)
    finally:
        await calls.disconnect()
    return found


async def first(
    member: Membership, dead_letter: object, make: Callable[[Any, list[Any]], Source]
) -> dict[str, Source]:
    """Make a source for each proxy, and connect all of them.

    Raises:
        NotThere: there is no topic of this name.
        InvalidOption: there is no such group, or the login is refused.
        ConnectionError: nobody answers, or RocketMQ answers with an error that may pass.
    """
    place = member.address
    made: dict[str, Source] = {}
    try:
        for name, (endpoints, queues) in (await find(member, dead_letter)).items():
            made[name] = make(endpoints, queues)
            await made[name].connect()
    except BaseException as error:
        for source in made.values():
            await source.close()
        if not isinstance(error, FAILURES):
            raise
        if isinstance(error, grpc.RpcError) and error.code() in GROUP:
            raise InvalidOption(f"group={member.group!r}: {text_of(error)} at {place}") from None
        raise ConnectionError(f"{place} does not answer: {text_of(error)}") from None
    if not made:
        raise InvalidOption(f"topic={', '.join(member.filters)!r}: no broker of {place} permits reading it")
    return made


class Sources:
    """A source for each proxy that RocketMQ names.

    Args:
        member: who receives what.
        make: makes a source of a proxy's endpoints and queues.
        start: lets a source run in a task.
    """

    def __init__(
        self,
        member: Membership,
        make: Callable[[Any, list[Any]], Source],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._member = member
        self._make = make
        self._start = start
        self._sources: dict[str, Source] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def held(self) -> list[HeldMessage]:
        """The messages that are not settled."""
        return [held for source in self._sources.values() for held in source.held]

    @property
    def are_connected(self) -> bool:
        """Whether messages arrive from one of them at least."""
        return any(source.is_connected for source in self._sources.values())

    async def connect(self, dead_letter: object) -> None:
        """Connect to all proxies. Raises as `first` does."""
        self._sources = await first(self._member, dead_letter, self._make)

    def start(self) -> None:
        """Let the sources receive messages."""
        for name, source in self._sources.items():
            self._tasks[name] = self._start(source.run())

    async def refresh(self) -> None:
        """Ask RocketMQ for its proxies: receive from new ones, and leave those that are gone."""
        try:
            found = await find(self._member)
        except (*FAILURES, InvalidOption) as error:
            _log.warning("cannot ask for the topic's brokers: %s", text_of(error))
            return
        for name, (endpoints, queues) in found.items():
            if name in self._sources:
                self._sources[name].cover(queues)
            else:
                self._sources[name] = self._make(endpoints, queues)
                self._tasks[name] = self._start(self._sources[name].run())
        for name in self._sources.keys() - found.keys():
            if self._sources[name].is_idle:
                _log.warning("%s is gone: RocketMQ no longer names it, and it does not answer", name)
                self._tasks.pop(name).cancel()
                await self._sources.pop(name).close()
        for source in self._sources.values():
            await source.refresh()

    async def finished(self) -> None:
        """Wait until nothing more is received."""
        for source in list(self._sources.values()):
            await source.finished()

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(source.close() for source in self._sources.values()))


async def route_of(calls: Calls, option: str, topic: str) -> list[Any]:
    """The queues of a topic that can be read; an option has its name.

    Raises: as `find`.
    """
    try:
        return await calls.route(topic)
    except Refusal as error:
        if error.code in _UNKNOWN:
            raise NotThere(f"{option}={topic!r}: there is no such topic") from None
        if error.code in _LOGIN_REFUSED:
            raise InvalidOption(f"url: RocketMQ refuses the login: {error}") from None
        raise
