"""The asynchronous publisher for NATS JetStream."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import timedelta

from nats.js.errors import NotFoundError

from inbox_outbox_base.brokers.nats import address
from inbox_outbox_base.brokers.nats.client import (
    FAILURES,
    Client,
    NoRight,
    has_no_jetstream,
    is_login_refused,
    text_of,
)
from inbox_outbox_base.brokers.nats.message import reason_not_a_subject
from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import InvalidOption, UnsafeBroker
from inbox_outbox_base.words.outgoing import Envelope, Outcome, Unavailable
from outbox._publishers.publisher import check_lease, topic_names

from .link import NatsLink
from .sending import NatsSending
from .streams import reason_unsafe

_log = logging.getLogger("outbox.nats")
_SHARE_FOR_CONNECTING = 0.5
"""The part of the time limit in which a connection is made."""
_SHARE_FOR_STARTING = 0.8
"""The part of the time limit in which messages leave."""
_SHARE_FOR_SENDING = 0.95


class AsyncNatsPublisher:
    """`NatsPublisher` for an `AsyncRelay`: the same, awaited. It belongs to one event loop."""

    ordered = True

    def __init__(self, url: str, *, topics: Sequence[str] = (), timeout: float | timedelta = 10) -> None:
        self._address = address.parse(url, error=InvalidOption)
        self._topics = topic_names(topics)
        for topic in topics:
            if reason := reason_not_a_subject(topic):
                raise InvalidOption(f"topics={topic!r}: {reason}")
        self.timeout = outbox_options.seconds("timeout", timeout, positive=True)
        self._links: set[NatsLink] = set()
        self._idle: list[NatsLink] = []
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._sendings: set[NatsSending] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._address)!r})"

    async def check(self, lease: float) -> None:
        """See `NatsPublisher.check`."""
        check_lease(self.timeout, lease)
        link, is_usable = self._link(), False
        try:
            async with asyncio.timeout(self.timeout):
                client = await link.ready(self.timeout * _SHARE_FOR_CONNECTING)
                await self._check_streams(client)
            is_usable = True
        except (FileNotFoundError, PermissionError) as error:
            raise UnsafeBroker(f"url={str(self._address)!r}: cannot read {error.filename!r}") from None
        except NoRight as error:
            raise UnsafeBroker(f"url={str(self._address)!r}: {error}") from None
        except FAILURES as error:
            if is_login_refused(error):
                said = f"url={str(self._address)!r}: NATS refuses the login: {text_of(error)}"
                raise UnsafeBroker(said) from None
            if has_no_jetstream(error):
                said = f"url={str(self._address)!r}: JetStream is not enabled there: {text_of(error)}"
                raise UnsafeBroker(said) from None
            # A relay starts even if the server is away.
            _log.warning("%r: not checked: %s", self, link.complaint or text_of(error))
        finally:
            self._give_back(link, is_usable=is_usable)

    async def _check_streams(self, client: Client) -> None:
        jetstream = client.jetstream(timeout=self.timeout * _SHARE_FOR_CONNECTING)
        await jetstream.account_info()
        for topic in self._topics:
            try:
                name = await jetstream.find_stream_name_by_subject(topic)
            except NotFoundError:
                raise UnsafeBroker(f"topics={topic!r}: no stream takes this subject") from None
            reason = reason_unsafe((await jetstream.stream_info(name)).config)
            if reason is not None:
                raise UnsafeBroker(f"topics={topic!r}: stream {name!r} has {reason}")

    async def send(self, batch: Sequence[Envelope]) -> AsyncGenerator[tuple[int, Outcome]]:
        """See `NatsPublisher.send`."""
        if not batch:
            return
        now = asyncio.get_running_loop().time()
        link = self._link()
        sending = NatsSending(
            link,
            batch,
            last_start=now + self.timeout * _SHARE_FOR_STARTING,
            end=now + self.timeout * _SHARE_FOR_SENDING,
        )
        is_usable = False
        self._sendings.add(sending)
        try:
            try:
                client = await self._ready(link)
            except (NoRight, *FAILURES) as error:
                reason = f"not sent: {str(self._address)!r} cannot be reached: {text_of(error)}"
                for place in range(len(batch)):
                    yield place, Unavailable(reason)
                return
            async with aclosing(sending.answers(client)) as answers:
                async for ending in answers:
                    yield ending
            is_usable = sending.is_answered
        finally:
            self._sendings.discard(sending)
            self._give_back(link, is_usable=is_usable)

    def begin_no_more(self) -> None:
        """See `NatsPublisher.begin_no_more`."""
        for sending in tuple(self._sendings):
            sending.begin_no_more()

    async def close(self) -> None:
        """Close the connections; another `send` opens a new one."""
        self._idle.clear()
        for link in tuple(self._links):
            self._drop(link)
        if self._goodbyes:
            await asyncio.wait(self._goodbyes)

    async def _ready(self, link: NatsLink) -> Client:
        patience = self.timeout * _SHARE_FOR_CONNECTING
        async with asyncio.timeout(patience):
            return await link.ready(patience)

    def _link(self) -> NatsLink:
        """A connection that no other send uses, preferably the last one used."""
        while self._idle:
            link = self._idle.pop()
            if link.is_open:
                return link
            self._drop(link)
        link = NatsLink(self._address)
        self._links.add(link)
        return link

    def _give_back(self, link: NatsLink, *, is_usable: bool) -> None:
        if is_usable and link.is_open and link in self._links:  # unless the publisher was closed
            self._idle.append(link)
            return
        self._drop(link)
        # What has broken one connection may have broken the others, too.
        while self._idle:
            self._drop(self._idle.pop())

    def _drop(self, link: NatsLink) -> None:
        """Close a connection without waiting: if it hangs, that takes time."""
        self._links.discard(link)
        goodbye = asyncio.create_task(link.close())
        self._goodbyes.add(goodbye)
        goodbye.add_done_callback(self._goodbyes.discard)
