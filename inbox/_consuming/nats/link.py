"""A consumer's connection to NATS, on which it asks for messages and answers them."""

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError

from inbox._consuming.leased.message import NoLongerHeld
from inbox_outbox_base.brokers.nats.address import NatsAddress
from inbox_outbox_base.brokers.nats.client import FAILURES, Client, Msg, close, connect, text_of
from inbox_outbox_base.calls import clock

_log = logging.getLogger("inbox.nats")
PATIENCE = 5.0
"""Seconds in which a connection must be made, and in which any answer must come."""
_WAIT = 5
"""Seconds for which a request for messages is valid; then JetStream says that it is over."""
_LOOK = 0.5
"""Seconds until `receive` returns, if nothing comes, and looks at the connection."""
_NOT_AGAIN = 1.0
"""Seconds after a connection that was not made, in which no other is tried."""
_OVER, _NOBODY = "408", "503"
_CONSUMER_IS_MISSING = 10014


class PullLink:
    """The connection, and the consumer of a stream. It belongs to one event loop.

    Args:
        wanted: the consumer's settings, if it has to be made.
    """

    def __init__(self, address: NatsAddress, stream: str, wanted: ConsumerConfig) -> None:
        self._address = address
        self._stream = stream
        self._wanted = wanted
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._failed: tuple[float, str] = (-_NOT_AGAIN, "")
        self._answers = ""
        """How the subjects begin on which JetStream confirms answers."""
        self._asked: dict[str, asyncio.Future[dict[str, str]]] = {}
        """By such a subject, who waits for the confirmation."""
        self._subscription: Any = None
        """To messages."""
        self._prefix = ""
        self._numbers = count()
        self._number = ""
        """Of the current request."""
        self._left = 0
        """How many messages the current request may still bring."""
        self._ends_at = 0.0
        """When it is over at the latest, if the server answers."""
        self._trouble = ""
        self._arrived: list[Msg] = []
        self._news = asyncio.Event()

    async def open(self) -> ConsumerConfig:
        """The consumer's settings; it is made if it is not there.

        Raises:
            Exception: one of the client's `FAILURES`.
        """
        jetstream = (await self._connected()).jetstream(timeout=PATIENCE)
        durable = str(self._wanted.durable_name)
        try:
            found = await jetstream.consumer_info(self._stream, durable)
        except NotFoundError as error:
            if error.err_code != _CONSUMER_IS_MISSING:
                raise
            found = await jetstream.add_consumer(self._stream, self._wanted)
            _log.info("made the consumer %r of stream %r", durable, self._stream)
        config: ConsumerConfig = found.config
        return config

    async def stream_of(self, subject: str) -> str:
        """The name of the stream that takes a subject. Raises as `open`; `NotFoundError` if there is none."""
        jetstream = (await self._connected()).jetstream(timeout=PATIENCE)
        return str(await jetstream.find_stream_name_by_subject(subject))

    async def receive(self, most: int) -> list[Msg]:
        """What has come; none if nothing has come for a while.

        Raises:
            Exception: one of the client's `FAILURES`.
        """
        try:
            client = await self._pulling()
            if not self._arrived:
                if self._left == 0:
                    await self._request(client, most)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await self._news.wait()
            self._check(client)
        except FAILURES:
            await self._drop()
            raise
        self._news.clear()
        arrived, self._arrived = self._arrived, []
        return arrived

    def interrupt(self) -> None:
        """Let `receive` return now."""
        self._news.set()

    async def ask(self, subject: str, payload: bytes) -> None:
        """Answer a message, and wait until JetStream has confirmed that.

        Raises:
            NoLongerHeld: the consumer is gone, and with it all that it knew.
            Exception: one of the client's `FAILURES`.
        """
        client = await self._connected()
        place = f"{self._answers}.{next(self._numbers)}"
        answer = self._asked[place] = asyncio.get_running_loop().create_future()
        try:
            await client.publish(subject, payload, reply=place)
            async with asyncio.timeout(PATIENCE):
                headers = await answer
        finally:
            del self._asked[place]
        if headers.get("Status") == _NOBODY:
            raise NoLongerHeld("its consumer or its stream is gone")

    async def put(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Publish a message, and wait until a stream has it. Raises as `receive`."""
        jetstream = (await self._connected()).jetstream(timeout=PATIENCE)
        await jetstream.publish(subject, payload, headers=dict(headers), timeout=PATIENCE)

    @property
    def largest(self) -> int:
        """The most bytes in a message, its headers included."""
        return 1 if self._client is None else int(self._client.max_payload)

    async def end(self) -> list[Msg]:
        """Receive no more; the messages that have come and were not returned."""
        with suppress(*FAILURES):
            async with asyncio.timeout(PATIENCE):
                if self._subscription is not None:
                    await self._subscription.drain()
        arrived, self._arrived = self._arrived, []
        return arrived

    async def close(self) -> None:
        """Close the connection."""
        await self._drop(None)

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is not None:
                if self._client.is_connected:
                    return self._client
                await self._drop()
            at, why = self._failed
            if clock.now() < at + _NOT_AGAIN:
                raise ConnectionError(why)
            try:
                client = await connect(
                    self._address,
                    PATIENCE,
                    on_error=lambda said: _log.debug("the server said: %s", said),
                    on_end=self._lost,
                    name=f"inbox {self._wanted.durable_name}",
                )
                self._answers = client.new_inbox()
                await client.subscribe(f"{self._answers}.*", cb=self._confirmed)
            except FAILURES as error:
                self._failed = clock.now(), text_of(error)
                raise
            self._client = client
            return client

    async def _pulling(self) -> Client:
        """The client, with a subscription that gets messages."""
        client = await self._connected()
        if self._subscription is None:
            await self.open()  # the consumer may be gone
            self._prefix, self._left, self._trouble = client.new_inbox(), 0, ""
            self._subscription = await client.subscribe(
                f"{self._prefix}.*", cb=self._take, pending_bytes_limit=0
            )
        return client

    async def _drop(self, within: float | None = 1.0) -> None:
        client, self._client, self._subscription = self._client, None, None
        self._lost()
        if client is not None:
            await (close(client) if within is None else close(client, within))

    async def _request(self, client: Client, most: int) -> None:
        self._number, self._left = f"{self._prefix}.{next(self._numbers)}", most
        self._ends_at = clock.now() + _WAIT + PATIENCE
        await client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._wanted.durable_name}",
            json.dumps({"batch": most, "expires": _WAIT * 1_000_000_000}).encode(),
            reply=self._number,
        )

    async def _confirmed(self, message: Msg) -> None:
        answer = self._asked.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message.headers or {})

    def _lost(self) -> None:
        """The connection has broken."""
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the connection broke"))
        self._news.set()

    async def _take(self, message: Msg) -> None:
        if message.reply:
            self._arrived.append(message)
            self._left = max(0, self._left - 1)
        elif message.subject == self._number:
            said = message.headers or {}
            self._left = 0
            if said.get("Status") != _OVER:
                self._trouble = f"{said.get('Status')} {said.get('Description', '')}".strip()
        self._news.set()

    def _check(self, client: Client) -> None:
        if self._arrived:
            return
        if not client.is_connected:
            raise ConnectionError("the connection broke")
        if self._trouble:
            raise ConnectionError(f"JetStream gives no messages: {self._trouble}")
        if self._left and clock.now() > self._ends_at:
            raise TimeoutError("JetStream does not answer")
