"""Kafka's producers: one for each send that is under way."""

import threading
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

_IDLE = 60.0
"""Seconds after which an unused producer is closed."""
_FRESH = 60.0
"""Seconds after which a topic's metadata is requested again. If librdkafka could not refresh metadata for 15
minutes, it drops it. It would then assign messages to partitions during the flush, and a part could leave in
two requests."""
_NEW, _PAUSE = 1.0, 0.1
"""Seconds until the broker must know a new topic, and between two questions."""
_LEAST = 0.01
"""The least time limit in seconds: for the client, a negative one means no limit."""
_PASSING = {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART}


class LentProducer:
    """A producer that one send at a time has to itself."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.producer = Producer(settings)
        self.used = 0.0
        self._asked: dict[str, float] = {}

    def fault_of(self, topic: str, timeout: float) -> KafkaError | None:
        """Ask a broker about a topic; return why nothing can be written to it now, or None."""
        if time.monotonic() < self._asked.get(topic, -_FRESH) + _FRESH:
            return None
        begun = time.monotonic()
        while True:
            fault = self._ask(topic, max(_LEAST, begun + timeout - time.monotonic()))
            if fault is None:
                self._asked[topic] = time.monotonic()
            elif fault.code() in _PASSING and time.monotonic() < begun + min(timeout / 2, _NEW):
                time.sleep(_PAUSE)
                continue
            return fault

    def leaderless(self, topic: str, timeout: float) -> set[int]:
        """Ask a broker which partitions of a topic have no leader now."""
        try:
            found = self.producer.list_topics(topic, timeout=timeout).topics[topic]
        except KafkaException:
            return set()
        return {number for number, partition in found.partitions.items() if partition.leader < 0}

    def _ask(self, topic: str, timeout: float) -> KafkaError | None:
        try:
            found = self.producer.list_topics(topic, timeout=timeout).topics[topic]
        except KafkaException as error:
            no_answer: KafkaError = error.args[0]
            return no_answer
        except RuntimeError as error:  # the client's error for a name that is too long
            return KafkaError(KafkaError.TOPIC_EXCEPTION, str(error))
        fault: KafkaError | None = found.error
        if fault is None and all(partition.leader < 0 for partition in found.partitions.values()):
            return KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "no partition has a leader")
        return fault

    def close(self, seconds: float) -> None:
        """Send nothing more; if a broker hangs, this takes about this many seconds."""
        self.producer.purge()
        self.producer.flush(seconds)


class Producers:
    """As many producers as there are sends at the same time; thread-safe.

    Each send has a producer to itself, which it can purge and close without a loss to other sends.
    """

    def __init__(self, settings: dict[str, Any], closing: float) -> None:
        self._settings = settings
        self._closing = closing
        """How many seconds closing a producer may take."""
        self._lock = threading.Lock()
        self._idle: list[LentProducer] = []
        self._lent: set[LentProducer] = set()

    def open(self) -> None:
        """Open a producer for the first send, which checks the settings; raises KafkaException."""
        self.give_back(self.take())

    def take(self) -> LentProducer:
        """A producer, to be given back."""
        with self._lock:
            lent = self._idle.pop() if self._idle else LentProducer(self._settings)
            self._lent.add(lent)
        return lent

    def give_back(self, lent: LentProducer, *, is_usable: bool = True) -> None:
        """Keep a producer for the next send, or close it: it may still hold messages."""
        lent.used = time.monotonic()
        with self._lock:
            was_closed = lent not in self._lent
            self._lent.discard(lent)
            over = [each for each in self._idle if each.used < lent.used - _IDLE]
            self._idle = [each for each in self._idle if each not in over]
            (self._idle if is_usable and not was_closed else over).append(lent)
        for each in over:
            each.close(self._closing)

    def close(self) -> None:
        """Close all producers, also those of running sends: messages without an answer are not sent any
        more."""
        with self._lock:
            over = [*self._idle, *self._lent]
            self._idle.clear()
            self._lent.clear()
        for each in over:
            each.close(self._closing)
