"""Find the proxies that have a topic's queues."""

from collections.abc import Callable
from typing import Any

from inbox_outbox_base.errors.inbox import InvalidOption

from .answers import text_of
from .client import RpcEndpoints, grpc, protocol
from .link import Calls, Membership, Refusal
from .source import FAILURES, Source

_UNKNOWN = {protocol.Code.TOPIC_NOT_FOUND, protocol.Code.NOT_FOUND}
_LOGIN_REFUSED = {protocol.Code.FORBIDDEN, protocol.Code.UNAUTHORIZED}
_GROUP = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}


class NoSuchTopic(InvalidOption):
    """RocketMQ does not know the topic, or not yet."""


async def find(member: Membership, dead_letter: object = None) -> dict[str, tuple[Any, list[Any]]]:
    """By place: a proxy's endpoints, and one queue of each topic on each broker behind it.

    Raises:
        NoSuchTopic: there is none of this name.
        InvalidOption: the login is refused.
        AioRpcError: nobody answers.
        Refusal: RocketMQ answers with an error that may pass.
    """
    found: dict[str, tuple[Any, list[Any]]] = {}
    calls = Calls(member)
    try:
        for topic in member.filters:
            for queue in await _route(calls, "topic", topic):
                endpoints = queue.broker.endpoints
                _, queues = found.setdefault(RpcEndpoints(endpoints).facade, (endpoints, []))
                if (topic, queue.broker.name) not in [(each.topic.name, each.broker.name) for each in queues]:
                    queues.append(queue)
        if isinstance(dead_letter, str):
            await _route(calls, "dead_letter", dead_letter)
    finally:
        await calls.disconnect()
    return found


async def first(
    member: Membership, dead_letter: object, make: Callable[[Any, list[Any]], Source]
) -> dict[str, Source]:
    """Sources that are connected.

    Raises:
        NoSuchTopic: there is none of this name.
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
        if isinstance(error, grpc.RpcError) and error.code() in _GROUP:
            raise InvalidOption(f"group={member.group!r}: {text_of(error)} at {place}") from None
        raise ConnectionError(f"{place} does not answer: {text_of(error)}") from None
    if not made:
        raise InvalidOption(f"topic={', '.join(member.filters)!r}: no broker of {place} lets it be read")
    return made


async def _route(calls: Calls, option: str, topic: str) -> list[Any]:
    try:
        return await calls.route(topic)
    except Refusal as error:
        if error.code in _UNKNOWN:
            raise NoSuchTopic(f"{option}={topic!r}: there is no such topic") from None
        if error.code in _LOGIN_REFUSED:
            raise InvalidOption(f"url: RocketMQ refuses the login: {error}") from None
        raise
