"""A consumer for Redis Streams, as small as docs/adapters.md lets it be: the guide is tried on it."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar
from uuid import uuid4

import redis

from inbox import Action, Decision, Delivery, Listener

from .redis_streams import client_of, delivery_of

MANY = 20


@dataclass
class Held:
    """An entry that runs, or waits for its next attempt."""

    fields: dict[bytes, bytes]
    due: float


class SmallConsumer:
    """Takes a stream's messages as a member of the group "suite", and keeps those it has."""

    limits: ClassVar[dict[str, Any]] = {"key": attrgetter("key")}
    idle: ClassVar[int] = 2_000
    """Milliseconds after which what another consumer holds is taken over."""

    def __init__(self, url: str, topic: str, handler: Callable[[Delivery], Any], **options: Any) -> None:
        self._client = client_of(url, 5)
        self._topic, self._handler, self._name = topic, getattr(handler, "outcome", handler), str(uuid4())
        self._held: dict[bytes, Held] = {}
        self._counts = f"{topic}.failures"
        given = {"max_attempts": 16, **options}
        self._listener = Listener(
            attempt=attrgetter("attempt"), failures=lambda each: each.attempt - 1, **self.limits | given
        )

    def stop(self) -> None:
        """Make `run` return."""
        self._listener.stop()

    def run(self) -> None:
        """Take messages until `stop`; in the main thread also until SIGTERM."""
        is_main = threading.current_thread() is threading.main_thread()
        with self._listener.stopping_on_sigterm(signal.SIGINT) if is_main else nullcontext(), self._keeping():
            while not self._listener.stopped:
                try:
                    self._turn()
                except redis.RedisError:
                    time.sleep(0.2)  # it may be starting again; what is not acknowledged comes again
        self._give_back()
        self._client.close()

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """While the block runs, nobody takes over what this consumer has, however long handlers run."""
        ended = threading.Event()

        def keep() -> None:
            while not ended.wait(self.idle / 4_000):
                try:
                    self._keep()
                except redis.RedisError:
                    continue  # it may be starting again

        thread = threading.Thread(target=keep, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _keep(self) -> None:
        # Not what another one has taken over, as after a pause of the whole process.
        found = self._client.xpending_range(self._topic, "suite", "-", "+", 1_000, self._name)
        entries = [each["message_id"] for each in found if each["message_id"] in self._held]
        if entries:
            self._client.xclaim(self._topic, "suite", self._name, 0, entries, justid=True)

    def _turn(self) -> None:
        batch = self._due() or self._abandoned() or self._new()
        if not batch:
            return
        self._held |= {entry: Held(fields, due=0) for entry, fields in batch.items()}
        failures = self._client.hmget(self._counts, list(batch))
        deliveries = [
            delivery_of(self._topic, fields, attempt=1 + int(count or 0))
            for fields, count in zip(batch.values(), failures, strict=True)
        ]
        decisions = self._listener.decide(deliveries, self._handler)
        for (entry, fields), decision in zip(batch.items(), decisions, strict=True):
            self._settle(entry, fields, decision)

    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        with self._client.pipeline() as pipeline:
            if decision.action is Action.RETRY:
                self._held[entry] = Held(fields, time.monotonic() + decision.delay)
                if decision.outcome is not None and decision.outcome.is_failure:
                    self._client.hincrby(self._counts, entry, 1)
                return
            if decision.action is Action.DEAD_LETTER:
                # Not in the transaction, which goes on behind a command that fails.
                self._client.xadd(f"{self._topic}.dead", {**fields, b"reason": decision.reason})
            pipeline.xack(self._topic, "suite", entry)
            pipeline.hdel(self._counts, entry)
            pipeline.execute()
        self._held.pop(entry, None)

    def _due(self) -> dict[bytes, dict[bytes, bytes]]:
        now = time.monotonic()
        return {entry: held.fields for entry, held in self._held.items() if held.due <= now}

    def _abandoned(self) -> dict[bytes, dict[bytes, bytes]]:
        answer = self._client.xautoclaim(self._topic, "suite", self._name, self.idle, count=MANY)
        return dict(answer[1])

    def _new(self) -> dict[bytes, dict[bytes, bytes]]:
        answer = self._client.xreadgroup("suite", self._name, {self._topic: ">"}, count=MANY, block=50)
        return dict(answer[0][1]) if answer else {}

    def _give_back(self) -> None:
        """What is held looks abandoned, so that the next consumer takes it now."""
        if not self._held:
            return
        with suppress(redis.RedisError):  # then it is taken after the usual time
            self._client.xclaim(
                self._topic, "suite", self._name, 0, list(self._held), idle=3_600_000, justid=True
            )
