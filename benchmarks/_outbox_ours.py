"""The outbox as one of the libraries that are measured side by side.

Its publisher accepts everything immediately, like the others' handlers. Unlike them, it keeps the order of
each key.
"""

import gc
import time
from collections.abc import Callable, Sequence

from sqlalchemy import URL, Engine, create_engine

from outbox import Envelope, Message, Outbox, Outcome, Relay, schema

from ._outbox_peer import age, pace, stamp
from ._outbox_rows import ACCEPTED, PAYLOAD, TOPIC, Counting

_CHUNK = 5_000
_KEYS = 1_000


class Ours:
    """A relay, and an outbox that wakes it."""

    def __init__(self, url: URL) -> None:
        self._url = url

    def create(self) -> None:
        """Create the tables."""
        engine = self._engine()
        schema.metadata.create_all(engine)
        engine.dispose()

    def load(self, messages: int) -> None:
        """Publish many in one call, each with its own key."""
        engine, outbox = self._engine(), Outbox(wake=False)
        for start in range(0, messages, _CHUNK):
            numbers = range(start, min(start + _CHUNK, messages))
            with engine.begin() as connection:
                many = [Message(TOPIC, PAYLOAD, f"order-{number}") for number in numbers]
                outbox.publish_many(connection, many)
        engine.dispose()

    def consume(self, messages: int) -> float:
        """Run until the relay finds no more messages."""
        engine, publisher = self._engine(), Counting()
        gc.collect()
        begun = time.perf_counter()
        Relay(engine, publisher).run_once()
        seconds = time.perf_counter() - begun
        engine.dispose()
        if publisher.count != messages:
            raise AssertionError(f"{publisher.count} of {messages} messages were relayed")
        return seconds

    def produce(self, rate: float, messages: int) -> float:
        """Publish one by one."""
        engine, outbox = self._engine(), Outbox()
        number = 0

        def publish() -> None:
            nonlocal number
            number += 1
            with engine.begin() as connection:
                outbox.publish(connection, TOPIC, stamp(), f"order-{number % _KEYS}")

        reached = pace(rate, messages, publish)
        engine.dispose()
        return reached

    def receive(self, messages: int, ready: Callable[[], object]) -> list[float]:
        """A relay, woken by NOTIFY."""
        engine, ages = self._engine(), _Ages(messages)
        ages.relay = Relay(engine, ages)
        ready()
        ages.relay.run()
        engine.dispose()
        return ages.found

    def _engine(self) -> Engine:
        return create_engine(self._url)


class _Ages:
    """A publisher that accepts all messages, records their ages, and stops its relay after the last one."""

    relay: Relay

    def __init__(self, messages: int) -> None:
        self.found: list[float] = []
        self._messages = messages

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Accept all."""
        self.found += [age(message.payload) for message in batch]
        if len(self.found) >= self._messages:
            self.relay.stop()
        return [ACCEPTED] * len(batch)
