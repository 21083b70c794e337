"""Connections to RocketMQ's proxies."""

import hashlib
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any

from inbox_outbox_base.brokers.rocketmq import forking
from inbox_outbox_base.brokers.rocketmq.address import Address
from inbox_outbox_base.brokers.rocketmq.client import (
    ClientId,
    RpcEndpoints,
    Signature,
    described,
    grpc,
    protocol,
    text_of,
)
from inbox_outbox_base.errors.inbox import InboxError
from inbox_outbox_base.words.outgoing import Outcome, Unavailable

from .answers import outcome_of_route

_FRESH = 1.0
"""Seconds for which a proxy that has answered is assumed to answer."""
_SHARE_FOR_THE_SERVER = 0.9
"""The server's part of a time limit; in the rest, the client notices that the time is over."""
_ANY_TOPIC = "outbox"
_OPTIONS = [
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]
_WRITABLE = {protocol.Permission.WRITE, protocol.Permission.READ_WRITE}
_TYPES = protocol.MessageType

_inherited: list[Any] = []
"""A fork's copies of its parent's connections: closing them here would disturb the parent."""


class NoAnswer(ConnectionError):
    """A proxy does not answer, so nothing was sent to it."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where messages of a topic go."""

    targets: tuple[str, ...]
    """The proxy of each writable queue."""
    types: frozenset[int]
    """The types of messages that the topic takes."""
    silent: dict[str, Unavailable] = field(default_factory=dict)
    """Proxies that do not answer, with the outcome of their messages."""
    found: float = field(default_factory=time.monotonic)

    @property
    def is_fifo(self) -> bool:
        """Whether messages belong to groups, and are delivered in the order of each group."""
        return _TYPES.FIFO in self.types

    def is_for_group(self, group: str | None) -> bool:
        """Whether a message with this key belongs to a group in this topic."""
        return self.is_fifo and (group is not None or _TYPES.NORMAL not in self.types)

    def target(self, group: str) -> str:
        """The proxy for a message; a group of "" may go to any. Messages of one group go to the same proxy,
        which the client's own producer would choose as well."""
        if not group:
            return random.choice(self.targets)
        number = int.from_bytes(hashlib.sha256(group.encode()).digest(), "big")
        return self.targets[number % len(self.targets)]


class Proxies:
    """One connection to each proxy, opened when it is first needed; thread-safe. A forked process opens its
    own.

    Each request is sent once. The client's own producer repeats requests, and reports the last of three
    answers although the first request may have arrived.

    Args:
        timeout: seconds after which a send has ended.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        self._configuration = address.configuration(1)
        self._endpoints = self._configuration.rpc_endpoints
        self._has_tls = address.has_tls
        self._id = ClientId().client_id
        self._process = os.getpid()
        self._timeout = timeout
        self._channels: dict[str, Any] = {}
        self._left: dict[Any, float] = {}
        """Connections that were replaced, and when: sends may still wait for answers there."""
        self._routes: dict[str, Route] = {}

    def route(self, topic: str, timeout: float) -> Route | Outcome:
        """Where messages of a topic go now, or their outcome if they cannot be sent. Each proxy of the route
        has just answered, except those that are `silent`.

        Raises:
            NoAnswer: no proxy answers within this many seconds.
        """
        known = self._routes.get(topic)
        if known is not None and time.monotonic() < known.found + _FRESH and self._process == os.getpid():
            return known
        deadline = time.monotonic() + timeout
        answer = self._ask(self._endpoints.facade, topic, timeout)
        if answer.status.code != protocol.Code.OK:
            return outcome_of_route(answer)
        route = _route(answer.message_queues)
        if not isinstance(route, Route):
            return route
        for target in {*route.targets} - {self._endpoints.facade}:
            try:
                self._ask(target, topic, max(0.01, deadline - time.monotonic()))
            except NoAnswer as silence:
                route.silent[target] = Unavailable(str(silence))
        self._routes[topic] = route
        return route

    def login_refusal(self, timeout: float) -> str | None:
        """What RocketMQ says if it refuses the login.

        Raises:
            NoAnswer: no proxy answers within this many seconds.
        """
        answer = self._ask(self._endpoints.facade, _ANY_TOPIC, timeout)
        return described(answer.status) if answer.status.code == protocol.Code.UNAUTHORIZED else None

    def forget(self, topic: str) -> None:
        """Before the next send, ask again where this topic's messages go: something is wrong."""
        self._routes.pop(topic, None)

    def send(self, target: str, message: Any, timeout: float) -> Any:
        """Send a message; the answer is a future of gRPC.

        Raises:
            ValueError: the connection has just been closed; nothing was sent.
        """
        request = protocol.SendMessageRequest(messages=[message])
        return self._stub(target).SendMessage.future(request, timeout=timeout, metadata=self._signed())

    def close(self) -> None:
        """Close the connections; requests without an answer are not sent any more."""
        self._leave_inherited()
        self._routes.clear()
        for target in list(self._channels):
            self._leave(target)
        for channel in list(self._left):
            self._close(channel)

    def _ask(self, target: str, topic: str, timeout: float) -> Any:
        """A proxy's answer to the question where a topic's messages go."""
        request = protocol.QueryRouteRequest(endpoints=self._endpoints.endpoints)
        request.topic.name = topic
        try:
            asked = self._stub(target).QueryRoute.future(
                request, timeout=timeout * _SHARE_FOR_THE_SERVER, metadata=self._signed()
            )
            return asked.result(timeout)
        except (grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError, ValueError) as error:
            if not (isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.UNAVAILABLE):
                # This connection may hang as long as the system keeps it; a new one may get an answer.
                self._leave(target)
            raise NoAnswer(f"not sent: {target} does not answer: {text_of(error)}") from None

    def _stub(self, target: str) -> Any:
        self._leave_inherited()
        channel = self._channels.get(target)
        if channel is None:
            opened = self._open(target)
            channel = self._channels.setdefault(target, opened)
            if channel is not opened:
                opened.close()  # another thread was faster
        return protocol.MessagingServiceStub(channel)

    def _open(self, target: str) -> Any:
        try:
            forking.begin_synchronous()
        except InboxError as error:
            raise NoAnswer(f"not sent: {error}") from None
        if self._has_tls:
            return grpc.secure_channel(target, grpc.ssl_channel_credentials(), _OPTIONS)
        return grpc.insecure_channel(target, _OPTIONS)

    def _leave(self, target: str) -> None:
        channel = self._channels.pop(target, None)
        if channel is not None:
            self._left[channel] = time.monotonic()
        for each, since in list(self._left.items()):
            if since + self._timeout < time.monotonic():
                self._close(each)

    def _close(self, channel: Any) -> None:
        channel.close()
        self._left.pop(channel, None)

    def _leave_inherited(self) -> None:
        if self._process != os.getpid():
            _inherited.append((self._channels, self._left))
            self._channels, self._left, self._routes, self._process = {}, {}, {}, os.getpid()

    def _signed(self) -> Any:
        return Signature.metadata(self._configuration, self._id)


def _route(queues: Any) -> Route | Unavailable:
    usable = [queue for queue in queues if queue.permission in _WRITABLE and queue.broker.id == 0]
    if not usable:
        return Unavailable("no broker takes messages of this topic now")
    types = frozenset(kind for queue in usable for kind in queue.accept_message_types)
    if not types & {_TYPES.NORMAL, _TYPES.FIFO}:
        names = ", ".join(sorted(_TYPES.Name(kind) for kind in types))
        return Unavailable(f"the topic's message.type is {names}: expected NORMAL or FIFO")
    return Route(tuple(RpcEndpoints(queue.broker.endpoints).facade for queue in usable), types)
