"""One batch on its way to an endpoint."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence

import httpcore

from inbox_outbox_base.calls import clock
from inbox_outbox_base.words.outgoing import Envelope, Outcome, Refused, Unavailable

from .endpoint import WebhookEndpoint
from .headers import headers_of
from .request import WebhookRequest

_ENOUGH = 3
"""Answers in a row after which the rest of a batch is not sent."""
_CONNECT_SHARE = 0.5
"""Of the time that is left when a request begins."""


class WebhookSending:
    """Sends the messages of a batch, several at the same time, in tasks that end with it.

    Args:
        pool: the connections.
        largest: the most bytes of a body.
        at_once: the most requests at the same time.
        last_start: the time, by `clock.now`, after which no request begins.
        end: the time when requests without an answer are given up.
    """

    def __init__(
        self,
        pool: httpcore.AsyncConnectionPool,
        endpoint: WebhookEndpoint,
        batch: Sequence[Envelope],
        *,
        largest: int,
        at_once: int,
        last_start: float,
        end: float,
    ) -> None:
        self._pool = pool
        self._endpoint = endpoint
        self._batch = batch
        self._largest = largest
        self._at_once = at_once
        self._last_start = last_start
        self._end = end
        self._places = deque(range(len(batch)))
        self._in_a_row = 0
        """How many times it was said that no message is taken, since another answer."""
        self._for_all: Unavailable | None = None
        """What was said too often."""
        self._arrived: asyncio.Queue[tuple[int, Outcome]] = asyncio.Queue()
        self.begins = True
        """Whether it may begin further requests."""

    async def answers(self) -> AsyncGenerator[tuple[int, Outcome]]:
        """Send, and yield places and outcomes as the answers arrive."""
        count = min(self._at_once, len(self._batch))
        tasks = [asyncio.create_task(self._work()) for _ in range(count)]
        try:
            for _ in self._batch:
                yield await self._arrived.get()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        while self._places:
            place = self._places.popleft()
            try:
                outcome = await self._outcome(self._batch[place])
            except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for an outcome
                outcome = Unavailable(f"not sent: {_text_of(error)}")
            self._arrived.put_nowait((place, outcome))

    async def _outcome(self, envelope: Envelope) -> Outcome:
        if (reason := self._reason_not_to_begin()) is not None:
            return reason
        request = WebhookRequest(self._pool, self._endpoint)
        failure = "no answer"
        try:
            headers = headers_of(envelope, self._endpoint, now=time.time(), largest=self._largest)
        except ValueError as error:
            return Refused(str(error))
        try:
            async with asyncio.timeout(max(0.0, self._end - clock.now())) as limit:
                await request.send(headers, envelope.payload, (self._end - clock.now()) * _CONNECT_SHARE)
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for an outcome
            failure = "no answer within the time limit" if limit.expired() else _text_of(error)
        outcome = request.outcome(failure)
        self._note(request, outcome)
        return outcome

    def _note(self, request: WebhookRequest, outcome: Outcome) -> None:
        if not isinstance(outcome, Unavailable) or not request.says_it_for_all:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        # One answer may be about one message after all; without a connection there is nothing to ask.
        if self._in_a_row >= _ENOUGH or not request.has_begun:
            self._for_all = outcome

    def _reason_not_to_begin(self) -> Unavailable | None:
        if not self.begins:
            return Unavailable("not sent: the relay is stopping")
        if self._for_all is not None:
            return Unavailable(f"not sent, after {self._for_all.reason}", self._for_all.retry_after)
        return Unavailable("no time was left to send it") if clock.now() > self._last_start else None


def _text_of(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
