"""The latency of a healthy topic: from right before its transaction until its publisher gets the message."""

import time
from collections.abc import Callable, Sequence
from itertools import count

from sqlalchemy import Engine

from outbox import Envelope, Outbox, Outcome

from ._outbox_lab import OutboxLab
from ._outbox_peer import age, pace, stamp
from ._outbox_rows import ACCEPTED

RATE = 20
"""Messages a second."""


class HealthyTopic:
    """Publishes to the topic, and is the publisher that accepts what is sent to it.

    Args:
        limit: how many seconds messages may take.
        others: answers what is sent to other topics.
    """

    def __init__(self, limit: float, others: Callable[[Sequence[Envelope]], list[Outcome]]) -> None:
        self._limit = limit
        self._others = others
        self._numbers = count()
        self._ages: list[float] = []

    def publish(self, engine: Engine) -> None:
        """Publish a message with a key of its own."""
        payload = stamp()
        with engine.begin() as connection:
            Outbox().publish(connection, "healthy", payload, f"order-{next(self._numbers)}")

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Called by the relay."""
        if batch[0].topic == "healthy":
            self._ages.extend(age(message.payload) for message in batch)
            return [ACCEPTED] * len(batch)
        return self._others(batch)

    def wait(self, messages: int) -> list[float]:
        """Wait until this many messages have come since the last wait; return their ages in milliseconds."""
        end = time.monotonic() + self._limit
        while len(self._ages) < messages:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self._ages)} of {messages} messages came in {self._limit} seconds")
            time.sleep(0.01)
        milliseconds = [1_000 * each for each in self._ages]
        self._ages.clear()
        return milliseconds

    def measure(self, engine: Engine, lab: OutboxLab) -> list[float]:
        """The latencies in milliseconds, while a relay runs."""
        # In the first ones connections are opened, and statements prepared.
        self._paced(engine, round(lab.lab.pause(RATE)))
        return self._paced(engine, round(RATE * lab.sizes.seconds))

    def _paced(self, engine: Engine, messages: int) -> list[float]:
        pace(RATE, messages, lambda: self.publish(engine))
        return self.wait(messages)
