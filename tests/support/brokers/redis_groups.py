"""Streams of a test's own."""

from collections.abc import Mapping
from typing import Any, Self
from uuid import uuid4

from inbox_outbox_base.brokers.redis_streams import address
from inbox_outbox_base.brokers.redis_streams.client import new_client

GROUP = "tests"


class Streams:
    """Streams of a test's own, each with a group, on the server at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client: Any = new_client(address.parse(url), 30)
        self._made: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            for key in self.client.scan_iter(f"{name}*"):
                self.client.delete(key)
        self.client.close()

    def new(self) -> str:
        """Make a stream; its name."""
        name = f"test-{uuid4()}"
        self._made.append(name)
        self.client.xgroup_create(name, GROUP, id="0", mkstream=True)
        return name

    def put(self, stream: str, *entries: Mapping[Any, Any]) -> list[str]:
        """Add entries; their ids."""
        return [self.client.xadd(stream, fields).decode() for fields in entries]

    def entries(self, stream: str) -> list[dict[bytes, bytes]]:
        """The fields of all entries."""
        return [fields for _, fields in self.client.xrange(stream)]

    def pending(self, stream: str) -> list[tuple[str, int]]:
        """Consumer and number of deliveries of what the group has not acknowledged."""
        found = self.client.xpending_range(stream, GROUP, "-", "+", 1_000)
        return [(each["consumer"].decode(), each["times_delivered"]) for each in found]

    def is_done(self, stream: str) -> bool:
        """Whether the group has acknowledged everything."""
        (about,) = [each for each in self.client.xinfo_groups(stream) if each["name"] == GROUP.encode()]
        return bool(about["pending"] == 0 and about["lag"] == 0)
