"""One request: it is sent once, and follows no redirects."""

import asyncio
from contextlib import suppress
from typing import Any

import httpcore

from inbox_outbox_base.words.outgoing import Outcome, Unavailable, Unknown

from . import answers
from .endpoint import WebhookEndpoint
from .headers import RequestHeaders

_BEGINS = "http11.send_request_headers.started"
"""What the client says before it writes the first byte of a request."""
_MOST_TEXT = 500
"""Bytes of a response that a reason has."""
_MOST_BYTES = 65_536
"""Bytes of a response that are read, so that its connection can be used again."""
_TEXT_TIME = 1.0
"""Seconds in which they are read."""


class WebhookRequest:
    """A request, and how far it is."""

    def __init__(self, pool: httpcore.AsyncConnectionPool, endpoint: WebhookEndpoint) -> None:
        self._pool = pool
        self._endpoint = endpoint
        self.has_begun = False
        """Whether a byte of it may have been sent."""
        self._status: int | None = None
        self._retry_after: float | None = None
        self._text = b""

    @property
    def says_it_for_all(self) -> bool:
        """Whether other messages would get the same answer."""
        return not self.has_begun if self._status is None else answers.says_it_for_all(self._status)

    def outcome(self, failure: str) -> Outcome:
        """The outcome; `failure` says what has ended the request, if it has no answer."""
        if self._status is not None:
            return answers.outcome_of(self._status, _readable(self._text), self._retry_after)
        return Unknown(failure) if self.has_begun else Unavailable(f"not sent: {failure}")

    async def send(self, headers: RequestHeaders, body: bytes, to_connect: float) -> None:
        """Send it, and read the answer.

        Args:
            headers: its headers.
            body: its body.
            to_connect: seconds in which a connection must be made.
        """
        async with self._pool.stream(
            "POST",
            self._endpoint.target,
            headers=[("host", self._endpoint.authority), ("user-agent", "inbox-outbox"), *headers],
            content=body,
            extensions={"timeout": {"connect": to_connect, "pool": to_connect}, "trace": self._trace},
        ) as response:
            self._retry_after = answers.retry_after(response.headers)
            self._status = response.status
            with suppress(TimeoutError, httpcore.ProtocolError, httpcore.NetworkError):
                async with asyncio.timeout(_TEXT_TIME):
                    await self._read(response)

    async def _trace(self, event: str, _: dict[str, Any]) -> None:
        self.has_begun |= event == _BEGINS

    async def _read(self, response: httpcore.Response) -> None:
        """Read the response to its end, if that is not far."""
        size = 0
        async for chunk in response.aiter_stream():
            self._text += chunk[: _MOST_TEXT - len(self._text)]
            size += len(chunk)
            if size > _MOST_BYTES:
                return


def _readable(text: bytes) -> str:
    """On one line, without control characters."""
    shown = "".join(each if each.isprintable() else " " for each in text.decode(errors="replace"))
    return " ".join(shown.split())
