"""The options of a relay, checked."""

import os
import socket
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import URL

from inbox import Backoff
from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.checks.url import database_url
from inbox_outbox_base.databases.registry import notifying
from inbox_outbox_base.errors.outbox import InvalidOption, UnsafeBroker
from inbox_outbox_base.monitoring.events import Hook, Hooks
from inbox_outbox_base.monitoring.tracing import Tracing
from outbox._publishers.publisher import is_concurrent, keeps_order
from outbox.schema import tables

AfterDead = Literal["continue", "hold"]

SEND_SHARE = 0.8
"""The part of a lease that a send may take; the rest leaves time to renew the lease."""
LONGEST_LEASE = timedelta(days=1).total_seconds()


class RelaySettings:
    """A relay's options, checked; the publisher's own attributes are checked against them."""

    def __init__(
        self,
        publisher: Any,
        *,
        name: str | None,
        schema: str | None,
        buckets: int | None,
        batch: int,
        lease: float | timedelta,
        poll: float | timedelta,
        max_attempts: int,
        backoff: Backoff | None,
        after_dead: AfterDead,
        keep_sent: float | timedelta | None,
        listen_url: str | URL | None,
        give_up_after: float | timedelta | None,
        on_event: Hook | Iterable[Hook] | None,
    ) -> None:
        if not callable(getattr(publisher, "send", None)):
            raise InvalidOption(f"publisher={type(publisher).__name__}: expected an object with send(batch)")
        if not isinstance(backoff, Backoff | None):
            raise InvalidOption(f"backoff={backoff!r}: expected a Backoff")
        self.name = outbox_options.text("name", name or f"{socket.gethostname()[:200]}:{os.getpid()}", 255)
        self.tables = tables(schema)
        self.buckets = None if buckets is None else outbox_options.count("buckets", buckets)
        self.batch = outbox_options.count("batch", batch)
        self.lease = outbox_options.seconds("lease", lease, LONGEST_LEASE)
        if self.lease < 1:
            raise InvalidOption(f"lease={lease!r}: expected at least one second")
        self.poll = outbox_options.seconds("poll", poll, LONGEST_LEASE)
        self.max_attempts = outbox_options.count("max_attempts", max_attempts)
        self.backoff = backoff or Backoff()
        self.holds = outbox_options.one_of("after_dead", after_dead, ("continue", "hold")) == "hold"
        self.keep_sent = None
        if keep_sent is not None:
            self.keep_sent = outbox_options.seconds("keep_sent", keep_sent, positive=True)
        self.listen_url = None if listen_url is None else _listen_url(listen_url)
        self.give_up_after = None
        if give_up_after is not None:
            self.give_up_after = outbox_options.seconds("give_up_after", give_up_after, positive=True)
        self.hooks = Hooks(on_event, error=InvalidOption)
        self.tracing = Tracing(self.hooks, "sending")
        self.timeout = _timeout(publisher, self.lease)
        self.ordered = keeps_order(publisher)
        self.concurrent = is_concurrent(publisher)

    @property
    def tend_every(self) -> float:
        """The most seconds between calls of `tend`, which also renews the lease."""
        return min(max(1.0, self.poll), 0.4 * self.lease)


def _listen_url(given: object) -> URL:
    """The URL, checked; no error contains its password."""
    if not isinstance(given, str | URL):
        raise InvalidOption(f"listen_url={type(given).__name__}: expected the URL of the database")
    text = given if isinstance(given, str) else given.render_as_string(hide_password=False)
    url = database_url(text, "listen_url", error=InvalidOption)
    server = notifying(url.get_backend_name())
    if server is None or url.get_driver_name() != server.driver:
        raise InvalidOption(
            f"listen_url: {url.drivername}: expected postgresql+psycopg; no other driver wakes relays"
        )
    return url


def _timeout(publisher: Any, lease: float) -> float | None:
    """The longest time a send can take, in seconds; None if the publisher does not say."""
    timeout = getattr(publisher, "timeout", None)
    if timeout is None:
        return None
    seconds = outbox_options.seconds("publisher.timeout", timeout, positive=True)
    if seconds > SEND_SHARE * lease:
        raise UnsafeBroker(
            f"publisher.timeout={seconds:g}: expected at most {SEND_SHARE * lease:g}, or a send could "
            f"outlast the relay's lease of {lease:g} seconds"
        )
    return seconds
