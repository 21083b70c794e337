"""Requests to a receiver, without a server between."""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx
from standardwebhooks import Webhook

from outbox import Envelope
from outbox._publishers.webhook.headers import headers_of
from outbox.webhook import WebhookEndpoint

from .webhook_program import SECRET

PATH = "/hooks"
Given = tuple[bytes, Mapping[str, str]]


def signed(body: bytes, message_id: str = "msg_1", *, secret: str = SECRET, age: float = 0) -> Given:
    """A request of another program, which the specification's library has signed."""
    at = datetime.fromtimestamp(int(time.time() - age), UTC)
    signature = Webhook(secret).sign(message_id, at, body.decode())
    headers = {"webhook-id": message_id, "webhook-timestamp": str(int(at.timestamp()))}
    return body, {**headers, "webhook-signature": signature, "content-type": "application/json"}


def of_outbox(envelope: Envelope, secrets: Any = SECRET, *, age: float = 0) -> Given:
    """The request that our publisher makes of a message."""
    endpoint = WebhookEndpoint("https://example.org/", secrets)
    return envelope.payload, dict(headers_of(envelope, endpoint, now=time.time() - age, largest=10**9))


def post(receiver: Any, *requests: Given) -> list[httpx.Response]:
    """The answers to requests that are made at the same time."""
    return asyncio.run(posted(receiver, *requests))


async def posted(receiver: Any, *requests: Given) -> list[httpx.Response]:
    """`post`, awaited."""
    transport = httpx.ASGITransport(receiver)
    async with httpx.AsyncClient(transport=transport, base_url="http://receiver", timeout=60) as client:
        posts = [client.post(PATH, content=body, headers=_bytes(headers)) for body, headers in requests]
        return await asyncio.gather(*posts)


def statuses(receiver: Any, *requests: Given) -> list[int]:
    """The statuses of requests that are made one after the other."""

    async def one_by_one() -> list[int]:
        return [(await posted(receiver, each))[0].status_code for each in requests]

    return asyncio.run(one_by_one())


def _bytes(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode("latin-1") for name, value in headers.items()}
