"""Publish an outbox's messages as webhooks, through httpcore, the core of httpx (extra `webhook`)."""

import ssl
from collections.abc import Generator, Sequence
from datetime import timedelta
from functools import partial

from inbox_outbox_base.brokers.webhook.wire import LARGEST
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.words.outgoing import Envelope, Outcome
from outbox._publishers.loop_thread import PublisherInLoop

with brought_by("webhook"):
    from .async_publisher import AsyncWebhookPublisher, Endpoints
    from .endpoint import WebhookEndpoint

__all__ = ["AsyncWebhookPublisher", "WebhookEndpoint", "WebhookPublisher"]


class WebhookPublisher(PublisherInLoop[AsyncWebhookPublisher]):
    """A `Publisher` that posts each message to an endpoint, and says `Accepted` once that has answered with a
    status of success (2xx).

    Requests are signed as Standard Webhooks describes: the id, the time and the body. Messages of different
    keys are sent at the same time, those of one key one after the other. Each request is sent once and
    follows no redirects. It may arrive twice, with the same id: after an `Unknown` outcome, or when a relay
    dies before it has recorded the answer.

    It connects to public addresses only, unless `allow` names others: the address is checked after the name
    has been resolved, and the same address is connected to. Proxies of the environment are not used.

    Thread-safe. All sends share their connections; a forked process opens its own.

    Args:
        endpoints: a `WebhookEndpoint` for all topics, a mapping with one for each topic, or a function of a
            topic that returns one, or None if there is none yet. The function is called for each batch.
        allow: networks that are not public, such as "10.0.0.0/8", to which it may connect, also without TLS.
        tls: how to check certificates; by default by the authorities of the system, of SSL_CERT_FILE, and of
            certifi.
        largest: the most bytes in a message's payload.
        concurrency: the most requests of a batch at the same time.
        timeout: the longest time that `send` takes, in seconds or as `timedelta`; shorter than the relay's
            lease.

    Raises:
        InvalidOption: an argument cannot be used.
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
        new = partial(
            AsyncWebhookPublisher,
            endpoints,
            allow=allow,
            tls=tls,
            largest=largest,
            concurrency=concurrency,
            timeout=timeout,
        )
        super().__init__(new, "outbox webhook")

    def check(self, lease: float) -> None:
        """Check that the settings keep the guarantee within a lease of this many seconds.

        A relay starts even if an endpoint's name does not resolve, or nobody answers there. Endpoints that a
        function finds are not checked.

        Raises:
            UnsafeBroker: `timeout` is not shorter than the lease, or an endpoint has only addresses that may
                not be connected to; it names the setting, and no secret.
        """
        super().check(lease)

    def send(self, batch: Sequence[Envelope]) -> Generator[tuple[int, Outcome]]:
        """Send a batch of one topic, and yield each message's place and outcome as the answers arrive. Errors
        are outcomes, not exceptions. Closing the iterator ends the send.

        `Refused`: no request can carry the message, or the endpoint has answered 400, 413, 415 or 422.
        `Unavailable`: no endpoint, no connection, or an answer that says neither success nor that the message
        is wrong; a Retry-After is heeded. `Failed`: an answer of 500 and more, except 502 to 504, which speak
        of more than this message. `Unknown`: sent, but the connection broke or the time ran out before the
        answer.
        """
        yield from super().send(batch)

    def begin_no_more(self) -> None:
        """Let running sends begin no further requests; the outcome of their messages is `Unavailable`."""
        self._core.begin_no_more()
