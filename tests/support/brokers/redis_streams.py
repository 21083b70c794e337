"""Adapters for Redis Streams, as small as docs/adapters.md lets them be: the guide is tried on them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import redis

from inbox import Delivery
from outbox import Accepted, Envelope, Outcome, Refused, Unavailable, Unknown
from outbox.errors import UnsafeBroker

LARGEST = 1_000_000
"""The most bytes in a payload."""


def client_of(url: str, timeout: float) -> Any:  # its types know neither bytes nor RESP2
    """A client that never repeats a command by itself."""
    return redis.Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=None)


def fields_of(message: Envelope) -> dict[str, Any]:
    """A message as a stream's entry. A tombstone has no payload."""
    fields: dict[str, Any] = {
        "id": message.id,
        "type": message.content_type,
        "headers": json.dumps(dict(message.headers)),
        "created": message.created_at.isoformat(),
    }
    fields |= {} if message.key is None else {"key": message.key}
    return fields | ({} if message.payload is None else {"payload": message.payload})


def delivery_of(topic: str, fields: Mapping[bytes, bytes], attempt: int = 1) -> Delivery:
    """An entry as a handler gets it, whichever program has written it."""
    text = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
    try:
        headers = {str(name): str(value) for name, value in json.loads(text.get("headers", "{}")).items()}
        created = datetime.fromisoformat(text["created"]) if "created" in text else None
    except (ValueError, AttributeError):
        headers, created = {}, None
    return Delivery(
        id=text.get("id", ""),
        topic=topic,
        key=text.get("key"),
        payload=fields.get(b"payload"),
        content_type=text.get("type", ""),
        headers=headers,
        attempt=attempt,
        created_at=created,
    )


class SmallPublisher:
    """A `Publisher`: each topic is a stream, which has to exist."""

    def __init__(self, url: str, timeout: float = 10) -> None:
        self.timeout = timeout
        self._client = client_of(url, timeout / 4)

    def check(self, lease: float) -> None:
        """Make sure that a send is shorter than the lease."""
        if self.timeout >= lease:
            raise UnsafeBroker(f"timeout={self.timeout:g}: expected less than the lease of {lease:g} s")

    def send(self, batch: Sequence[Envelope]) -> Iterable[tuple[int, Outcome]]:
        """Send a batch in one round trip."""
        sent: list[int] = []
        try:
            self._client.ping()
        except redis.RedisError as error:
            yield from ((place, Unavailable(f"not sent: {error}")) for place in range(len(batch)))
            return
        with self._client.pipeline(transaction=False) as pipeline:
            for place, message in enumerate(batch):
                if len(message.payload or b"") > LARGEST:
                    yield place, Refused(f"payload: {len(message.payload)} bytes, expected at most {LARGEST}")
                else:
                    pipeline.xadd(message.topic, fields_of(message), nomkstream=True)
                    sent.append(place)
            try:
                answers = pipeline.execute(raise_on_error=False)
            except redis.RedisError as error:
                answers = [error] * len(sent)
        for place, answer in zip(sent, answers, strict=True):
            yield place, outcome_of(answer)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def outcome_of(answer: Any) -> Outcome:
    """What Redis's answer to XADD means."""
    if isinstance(answer, redis.ResponseError):
        return Unavailable(str(answer))  # such as OOM, or a key that is no stream
    if isinstance(answer, Exception):
        return Unknown(f"no answer: {answer!r}")
    return Unavailable("there is no such stream") if answer is None else Accepted()
