"""A consumer's requests to Redis."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import redis

from inbox._consuming.leased.batches import RequestBatches
from inbox_outbox_base.brokers.redis_streams.address import RedisAddress
from inbox_outbox_base.brokers.redis_streams.client import new_async_client

from . import scripts

_PATIENCE = 5.0
"""Seconds in which a connection must be made, and in which any answer must come."""
_BLOCK = 500
"""Milliseconds that Redis waits for an entry before it answers that there is none; a message that is due
waits as long, and so does a stop."""
_CONNECTIONS = 8
_MOST = 100
"""Entries in one script, for which all other clients wait."""


class Received(NamedTuple):
    """An entry that this consumer has."""

    entry: str
    """Its id in the stream."""
    fields: dict[bytes, bytes]
    deliveries: int


class GroupLink:
    """The client, and a stream's group. A link is for one event loop.

    Args:
        lease: seconds after which another consumer takes what this one has not settled and not renewed.
    """

    def __init__(self, address: RedisAddress, stream: str, group: str, consumer: str, lease: int) -> None:
        self._address = address
        self.stream = stream
        self._group = group
        self._consumer = consumer
        self._lease = lease * 1_000
        # Without the colons of the group's name: another stream and group could have the same key.
        self._keys = [stream, f"{stream}:{quote(group, safe='')}:inbox-later"]
        self._client: Any = None
        self._telling: RequestBatches[bytes] = RequestBatches(self._told, _MOST)

    async def open(self, *, declare: bool) -> None:
        """Make the client, and look for the group; make it if that is wanted, from the stream's first entry.

        Raises:
            ResponseError: there is no such stream or group, or the user has no right.
            Exception: one of the client's `FAILURES`.
        """
        if self._client is None:
            self._client = new_async_client(self._address, _PATIENCE, _CONNECTIONS)
            self._claim = self._client.register_script(scripts.CLAIM)
            self._settle = self._client.register_script(scripts.SETTLE)
            self._trim = self._client.register_script(scripts.TRIM)
        if declare:
            await self.make_group()
        await self._client.xinfo_consumers(self.stream, self._group)

    async def make_group(self) -> None:
        """Make the group, and the stream, unless they are there. Raises as `open`."""
        try:
            await self._client.xgroup_create(self.stream, self._group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def taken(self, most: int, held: Sequence[str] | None = None) -> tuple[list[Received], list[str]]:
        """What is due, and what other consumers have lost; and the ids of entries that somebody has deleted
        before they were acknowledged. Raises as `open`.

        Args:
            held: the entries that this consumer has; the others of its own have not arrived. None: nothing
                is known about its own.
        """
        own = [self._lease] if held is None else [0, *held]
        found, gone = await self._claim(
            self._keys, [self._group, self._consumer, self._lease, most, scripts.LATER, *own]
        )
        received = [
            Received(entry.decode(), dict(zip(flat[::2], flat[1::2], strict=True)), int(count))
            for entry, flat, count in found
        ]
        return received, [entry.decode() for entry in gone]

    async def new(self, most: int) -> list[Received]:
        """What no consumer of the group has had; none if there is none for a while. Raises as `open`."""
        answer = await self._client.xreadgroup(
            self._group, self._consumer, {self.stream: ">"}, count=most, block=_BLOCK
        )
        entries = answer[0][1] if answer else []
        return [Received(entry.decode(), fields, 1) for entry, fields in entries]

    async def renew(self, entry: str) -> bytes:
        """Keep an entry for another lease; one of the answers of `scripts.SETTLE`. Raises as `open`."""
        return await self._telling.add(("renew", entry, 0, 0))

    async def acknowledge(self, entry: str) -> bytes:
        """The entry is done. Returns and raises as `renew`."""
        return await self._telling.add(("done", entry, 0, 0))

    async def wait(self, entry: str, seconds: float, deliveries: int) -> bytes:
        """Let the group have the entry again after so many seconds, and as if it had been delivered so often.
        Returns and raises as `renew`."""
        return await self._telling.add(("wait", entry, int(seconds * 1_000), deliveries))

    async def add(self, stream: str, fields: dict[Any, Any]) -> None:
        """Add an entry to a stream, which need not exist. Raises as `open`."""
        await self._client.xadd(stream, fields)

    async def trim(self) -> int:
        """Delete what all groups of the stream have acknowledged; how many entries. Raises as `open`."""
        return int(await self._trim(self._keys[:1]))

    async def reconnect(self) -> None:
        """Close the connections that are not in use: a server that was demoted has a successor, to which new
        ones may lead."""
        await self._client.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
            await client.connection_pool.disconnect()

    async def _told(self, about: list[tuple[str, str, int, int]]) -> list[bytes]:
        flat = [each for one in about for each in one]
        answers: list[bytes] = await self._settle(
            self._keys, [self._group, self._consumer, scripts.LATER, *flat]
        )
        return answers
