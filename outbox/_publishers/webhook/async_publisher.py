"""The asynchronous publisher of webhooks."""

import asyncio
import inspect
import logging
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import httpcore

from inbox._listening.thread_pool import in_thread
from inbox_outbox_base.brokers.webhook.wire import LARGEST
from inbox_outbox_base.calls import clock
from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import InvalidOption, UnsafeBroker
from inbox_outbox_base.words.outgoing import Envelope, Outcome, Unavailable
from outbox._publishers.publisher import check_lease

from .connecting import ForbiddenAddress, WebhookConnections, addresses_of
from .endpoint import WebhookEndpoint
from .networks import Networks
from .sending import WebhookSending

Endpoints: TypeAlias = (
    WebhookEndpoint | Mapping[str, WebhookEndpoint] | Callable[[str], WebhookEndpoint | None]
)
"""One endpoint for all topics, one for each topic, or a function that finds a topic's."""

_log = logging.getLogger("outbox.webhook")
_SHARE_FOR_STARTING = 0.5
_SHARE_FOR_SENDING = 0.9
"""Of `timeout`; the rest is for ending what is given up."""
_EXPECTED = "expected a WebhookEndpoint, a mapping of topics to them, or a function of a topic"


class AsyncWebhookPublisher:
    """`WebhookPublisher` for an `AsyncRelay`: the same arguments and promises. It belongs to one event loop.

    A function that finds endpoints is called in a thread.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        *,
        allow: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        largest: int = LARGEST,
        concurrency: int = 8,
        timeout: float | timedelta = 10,
    ) -> None:
        self._networks = Networks(allow)
        self._find, self._known = _finder(endpoints)
        for endpoint in self._known:
            self._checked(endpoint)
        self._tls = tls
        if tls is not None and not _verifies(tls):
            raise InvalidOption("tls: expected a context that verifies certificates and the names in them")
        self._largest = outbox_options.count("largest", largest)
        self._at_once = outbox_options.count("concurrency", concurrency)
        self.timeout = outbox_options.seconds("timeout", timeout, positive=True)
        self._connections: WebhookConnections | None = None
        self._sendings: set[WebhookSending] = set()

    def __repr__(self) -> str:
        places = [each.place for each in self._known[:3]]
        more = ["..."] if len(self._known) > len(places) else []
        return f"{type(self).__name__}({', '.join(places + more) or 'a function'})"

    def _checked(self, endpoint: Any) -> WebhookEndpoint:
        if not isinstance(endpoint, WebhookEndpoint):
            raise InvalidOption(f"endpoints: {_EXPECTED}")
        if not endpoint.is_encrypted and not self._networks:
            raise InvalidOption(
                f"url: {endpoint.place} has no TLS, and allow= names no network that may be reached without"
            )
        return endpoint

    async def check(self, lease: float) -> None:
        """See `WebhookPublisher.check`."""
        check_lease(self.timeout, lease)
        try:
            async with asyncio.timeout(self.timeout):
                for endpoint in self._known:
                    await self._check_address(endpoint)
        except TimeoutError:
            _log.warning("%r: not all addresses are checked within %g s", self, self.timeout)

    async def _check_address(self, endpoint: WebhookEndpoint) -> None:
        target = endpoint.target
        port = target.port or 0
        try:
            await addresses_of(target.host.decode(), port, self._networks, is_encrypted=endpoint.is_encrypted)
        except ForbiddenAddress as error:
            raise UnsafeBroker(f"url={endpoint.place!r}: {error}") from None
        except httpcore.ConnectError as error:
            _log.warning("%r: not checked: %s", self, error)

    async def send(self, batch: Sequence[Envelope]) -> AsyncGenerator[tuple[int, Outcome]]:
        """See `WebhookPublisher.send`."""
        if not batch:
            return
        now = clock.now()
        found = await self._endpoint(batch[0].topic)
        if not isinstance(found, WebhookEndpoint):
            for place in range(len(batch)):
                yield place, found
            return
        sending = WebhookSending(
            self._open().of(found),
            found,
            batch,
            largest=self._largest,
            at_once=self._at_once,
            last_start=now + self.timeout * _SHARE_FOR_STARTING,
            end=now + self.timeout * _SHARE_FOR_SENDING,
        )
        self._sendings.add(sending)
        try:
            async with aclosing(sending.answers()) as answers:
                async for answer in answers:
                    yield answer
        finally:
            self._sendings.discard(sending)

    async def _endpoint(self, topic: str) -> WebhookEndpoint | Unavailable:
        try:
            async with asyncio.timeout(self.timeout * _SHARE_FOR_STARTING):
                found = await self._find(topic)
            if found is None:
                return Unavailable(f"topic {topic!r} has no endpoint")
            return self._checked(found)
        except Exception as error:  # noqa: BLE001 - the function is not ours, and its text may have a secret
            _log.error("%r: no endpoint of topic %r: %s", self, topic, type(error).__name__)
            return Unavailable(f"no endpoint was found: {type(error).__name__}")

    def _open(self) -> WebhookConnections:
        if self._connections is None:
            self._connections = WebhookConnections(
                self._networks, self._tls or httpcore.default_ssl_context()
            )
        return self._connections

    def begin_no_more(self) -> None:
        """See `WebhookPublisher.begin_no_more`."""
        for sending in tuple(self._sendings):
            sending.begins = False

    async def close(self) -> None:
        """See `WebhookPublisher.close`."""
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()


def _verifies(tls: Any) -> bool:
    is_context = isinstance(tls, ssl.SSLContext)
    return is_context and tls.verify_mode is ssl.CERT_REQUIRED and tls.check_hostname


def _finder(endpoints: Any) -> tuple[Callable[[str], Any], list[WebhookEndpoint]]:
    """A coroutine function that finds a topic's endpoint, and the endpoints that are known now."""
    find: Callable[[str], Any]
    if callable(endpoints) and not inspect.isclass(endpoints):
        return in_thread(endpoints), []
    if isinstance(endpoints, Mapping):
        known, find = [*endpoints.values()], dict(endpoints).get
    else:
        known, find = [endpoints], partial(_same, endpoints)

    async def found(topic: str) -> Any:
        return find(topic)

    return found, known


def _same(endpoint: WebhookEndpoint, _: str) -> WebhookEndpoint:
    return endpoint
